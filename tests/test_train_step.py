"""A step of a training: what is minimised, in which precision, and what becomes of the weights."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests import pupils
from tests.pupils import ATTACK, QUICK, STEPS, bars, convolutional_network, noisy_network, perceptron
from wasserball.train import Recipe, train
from wasserball.train.held_out import HeldOut, Score
from wasserball.train.objective import objective
from wasserball.train.recipe import OptimizerName
from wasserball.train.samples import split


def cross_entropy(logits: list[float], label: int, smoothing: float = 0.0) -> float:
    """By the formula, in float64."""
    total = math.log(sum(math.exp(logit) for logit in logits))
    return sum(
        (total - logit) * ((1 - smoothing) * (number == label) + smoothing / len(logits))
        for number, logit in enumerate(logits)
    )


def divergence(clean: list[float], adversarial: list[float]) -> float:
    """Kullback and Leibler's, of what is said of a clean image from what is said of another."""
    ours, theirs = ([math.exp(x) / sum(map(math.exp, logits)) for x in logits] for logits in (clean, adversarial))
    return sum(p * math.log(p / q) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        *({}, dict(smoothing=0.2), dict(clean_share=0.25), dict(clean_share=0.25, smoothing=0.1)),
        *(dict(trades=6.0), dict(trades=6.0, smoothing=0.1)),
        *(dict(bounded=0.5), dict(bounded=1.0), dict(bounded=0.7, clean_share=0.25)),
    ],
    ids=str,
)
def test_the_objective_is_its_formula(options: dict[str, float]) -> None:
    images, labels = (tensor[:10] for tensor in bars())
    model, adversarial = perceptron(), bars()[0][:10].flip(3)
    losses, logits = objective(model, images, adversarial, labels, Recipe(**options))  # type: ignore[arg-type]
    torch.testing.assert_close(logits, model(adversarial))
    share, smoothing = options.get("clean_share", 0.0), options.get("smoothing", 0.0)
    for loss, label, image, other in zip(losses.tolist(), labels.tolist(), images, adversarial, strict=True):
        calm, excited = (model.double()(x.double().unsqueeze(0))[0].tolist() for x in (image, other))
        easy, hard = (cross_entropy(said, label, smoothing) for said in (calm, excited))
        if power := options.get("bounded"):
            easy, hard = ((1 - math.exp(-value) ** power) / power for value in (easy, hard))
        expected = (1 - share) * hard + share * easy
        if "trades" in options:
            expected = easy + options["trades"] * divergence(calm, excited)
        assert loss == pytest.approx(expected, rel=1e-5)


def test_batch_norms_see_clean_and_adversarial_images_together() -> None:
    images, labels = (tensor[:20] for tensor in bars())
    model, alike = convolutional_network(), convolutional_network()
    objective(model, images, images.flip(3), labels, Recipe(trades=1.0))
    alike(torch.cat([images, images.flip(3)]))
    pupils.assert_same_weights(dict(model.state_dict()), dict(alike.state_dict()))


@pytest.fixture
def norms() -> Iterator[list[float]]:
    """The norms of the gradients with which any optimiser takes its steps."""
    seen: list[float] = []

    def look(optimizer: Optimizer, *_: Any) -> None:
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        seen.append(math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients)))

    handle = register_optimizer_step_pre_hook(look)
    yield seen
    handle.remove()


@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
def test_long_gradients_are_cut_and_short_ones_left(tmp_path: Path, norms: list[float], optimizer: Any) -> None:
    train(perceptron(), bars(), out=tmp_path / "free", recipe=QUICK, optimizer=optimizer)
    free, bound = norms.copy(), sorted(norms)[STEPS]
    norms.clear()
    train(perceptron(), bars(), out=tmp_path / "cut", recipe=QUICK, optimizer=optimizer, clip=bound)
    assert len(norms) == len(free) == 2 * STEPS
    assert max(norms) <= bound * (1 + 1e-5)
    assert norms[0] == pytest.approx(min(free[0], bound), rel=1e-5)
    assert max(free) > 1.01 * bound


def test_sgd_follows_nesterov(tmp_path: Path) -> None:
    """Two steps of it, without an attack, from the formula."""
    images, labels = (tensor[:20] for tensor in bars())
    model, mine = perceptron(), perceptron()
    attack = replace(ATTACK, eps=0.0)
    own: dict[str, Any] = dict(attack=attack, batch_size=10, held_out=10, epochs=2, warm_up=0, rate=0.1)
    own |= dict(optimizer="sgd", weight_decay=0.01)
    train(model, (images, labels), out=tmp_path / "run", recipe=QUICK, **own)
    kept, _ = split(20, 10)
    speed = [torch.zeros_like(parameter) for parameter in mine.parameters()]
    for rate in (0.1, 0.05):
        loss = nn.functional.cross_entropy(mine(images[kept]), labels[kept])
        slopes = torch.autograd.grad(loss, list(mine.parameters()))
        with torch.no_grad():
            for number, (parameter, slope) in enumerate(zip(mine.parameters(), slopes, strict=True)):
                whole = slope + 0.01 * parameter
                speed[number] = 0.9 * speed[number] + whole
                parameter.sub_(rate * (whole + 0.9 * speed[number]))
    last = load_file(tmp_path / "run" / "last.safetensors")
    for name, parameter in mine.named_parameters():
        torch.testing.assert_close(last[f"model.{name}"], parameter.detach(), atol=1e-5, rtol=1e-5)


def test_the_average_is_its_recursion_and_is_what_is_judged_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, measure = noisy_network(), HeldOut.measure
    weights: list[dict[str, Tensor]] = []
    judged: list[dict[str, Tensor]] = []

    def now() -> dict[str, Tensor]:
        return {name: tensor.double().clone() for name, tensor in model.state_dict().items()}

    def note(*_: Any) -> None:
        weights.append(now())

    def judge(mine: HeldOut, whom: nn.Module) -> Score:
        judged.append(now())
        return measure(mine, whom)

    start = now()
    monkeypatch.setattr(HeldOut, "measure", judge)
    handle = register_optimizer_step_post_hook(note)
    try:
        training = train(model, bars(), out=tmp_path / "run", recipe=QUICK, epochs=5, average=0.5)
    finally:
        handle.remove()
    averages = []
    for step, own in enumerate(weights):
        decay = min(0.5, (1 + step) / (10 + step))
        start = {name: decay * start[name] + (1 - decay) * own[name] for name in own}
        averages.append(start | {"2.num_batches_tracked": own["2.num_batches_tracked"]})
    last, best = (load_file(tmp_path / "run" / f"{name}.safetensors") for name in ("last", "best"))
    for name, tensor in averages[-1].items():
        torch.testing.assert_close(last[f"average.{name}"].double(), tensor, atol=1e-6, rtol=1e-5)
        assert torch.equal(last[f"model.{name}"].double(), weights[-1][name])
    for epoch, kept in enumerate(judged, start=1):
        for name, tensor in averages[epoch * STEPS - 1].items():
            torch.testing.assert_close(kept[name], tensor, atol=1e-6, rtol=1e-5)
    for name, tensor in averages[training.best.epoch * STEPS - 1].items():
        torch.testing.assert_close(best[name].double(), tensor, atol=1e-6, rtol=1e-5)
    pupils.assert_same_weights(dict(model.state_dict()), best)
    images, labels = pupils.held_out_bars()
    right = model.eval()(images).argmax(1) == labels
    assert training.best.clean_accuracy == right.double().mean().item()


def test_bfloat16_is_for_the_passes_and_float32_is_what_is_kept(tmp_path: Path) -> None:
    model = convolutional_network(channels=3)
    passes: list[tuple[bool, torch.dtype, bool, bool]] = []

    def look(layer: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        layout = dict(memory_format=torch.channels_last)
        flat = inputs[0].is_contiguous(**layout), layer.weight.is_contiguous(**layout)
        passes.append((layer.training, output.dtype, *flat))

    handle = model[0].register_forward_hook(look)
    options: dict[str, Any] = dict(precision="bfloat16", channels_last=True, average=0.9)
    training = train(model, bars(channels=3), out=tmp_path / "run", recipe=QUICK, epochs=3, **options)
    handle.remove()
    learning = [entry for entry in passes if entry[0]]
    assert len(learning) == 3 * STEPS
    assert set(learning) == {(True, torch.bfloat16, True, True)}
    assert {dtype for trained, dtype, *_ in passes if not trained} == {torch.bfloat16, torch.float32}  # attack, judge
    assert training.best.clean_accuracy > 0.8
    kept = load_file(tmp_path / "run" / "last.safetensors") | load_file(training.weights) | dict(model.state_dict())
    for name, tensor in kept.items():
        assert tensor.dtype == (torch.int64 if name.endswith("tracked") else torch.float32)
        assert tensor.is_contiguous()
    weight = kept["model.0.weight"]
    assert not torch.equal(weight, weight.bfloat16().float())
