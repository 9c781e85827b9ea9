"""Adversarial training: that it makes models robust, that it can be stopped anywhere, and what it leaves behind."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from wasserball import PGD, FrankWolfe, cli, verify, zoo
from wasserball.evaluate import StoreError
from wasserball.train import Epoch, Training, train, trainer
from wasserball.train.history import best_of
from wasserball.train.setting import Setting

SIDE, SAMPLES, HELD_OUT = 6, 200, 60
ATTACK = FrankWolfe(eps=0.5, steps=5)
QUICK: dict[str, Any] = dict(attack=replace(ATTACK, steps=2), epochs=2, batch_size=50, rate=1e-2, held_out=HELD_OUT)
STEPS = math.ceil((SAMPLES - HELD_OUT) / 50)


def bars() -> tuple[Tensor, Tensor]:
    """A bar on the left or on the right, which little mass cannot change, and a faint one that it can: in the third or
    in the fourth column. Training on clean images relies on both."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 2, (SAMPLES,), generator=generator)
    images = 0.1 * torch.rand(SAMPLES, 1, SIDE, SIDE, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, :, 4 if label else 1] += 0.8 * torch.rand(SIDE, generator=generator)
        image[0, :, 3 if label else 2] += 0.1
    return images, labels


def perceptron() -> nn.Sequential:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 16), nn.ReLU(), nn.Linear(16, 2))


def noisy_network() -> nn.Sequential:
    """With all that a training must put back to be resumed: what is drawn in a step, and buffers."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        features = nn.Linear(SIDE * SIDE, 16)
        return nn.Sequential(nn.Flatten(), features, nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))


class Spy(nn.Module):
    """Tells of each forward pass in training mode, and may change its logits."""

    def __init__(self, told: Callable[[int, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.told, self.calls = perceptron(), told, 0

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        if not self.training:
            return logits
        self.calls += 1
        return self.told(self.calls, logits)


class Losses(list[tuple[Tensor, Tensor]]):
    """The images and the adversarial images of each step, in place of the real loss that sees them."""

    def __call__(self, model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor, share: float) -> Tensor:
        assert all(module.training for module in model.modules())
        self.append((images.clone(), adversarial.clone()))
        return F.cross_entropy(model(adversarial), labels)


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Losses:
    spy = Losses()
    monkeypatch.setattr(trainer, "adversarial_loss", spy)
    return spy


def history_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_training_makes_a_model_robust(tmp_path: Path) -> None:
    robust: dict[float, float] = {}
    for eps in (0.0, 0.5):
        model, attack = perceptron(), replace(ATTACK, eps=eps)
        training = train(model, bars(), out=tmp_path / str(eps), **QUICK | dict(attack=attack, epochs=6, batch_size=20))
        images, labels = (tensor[-HELD_OUT:] for tensor in bars())
        robust[eps] = PGD(eps=0.5, steps=20)(model, images, labels).robust_accuracy()
    assert robust[0.0] < 0.6
    assert robust[0.5] > 0.9
    assert training.history[-1].robust_accuracy == pytest.approx(robust[0.5])
    assert training.best.clean_accuracy > 0.95
    assert not any(record.collapsed for record in training.history[1:])


def test_the_loss_is_on_valid_images_of_a_growing_radius(tmp_path: Path, losses: Losses) -> None:
    train(perceptron(), bars(), out=tmp_path / "run", warm_up=2, **QUICK | dict(epochs=3))
    radii = [0.5 * min(1.0, step / (2 * STEPS)) for step in range(3 * STEPS)]
    assert len(losses) == len(radii)
    for (images, adversarial), radius in zip(losses, radii, strict=True):
        certificate = verify(images, adversarial, eps=radius)
        assert certificate.valid.all()
        assert torch.equal(images, adversarial) == (radius == 0)
    assert certificate.distance.max() > 0.4
    assert [record["radius"] for record in history_of(tmp_path / "run")] == pytest.approx(
        [radii[STEPS - 1], radii[2 * STEPS - 1], 0.5]
    )


def test_held_out_samples_are_never_trained_on_and_all_others_once_an_epoch(tmp_path: Path, losses: Losses) -> None:
    images, labels = bars()
    train(perceptron(), (images, labels), out=tmp_path / "run", **QUICK | dict(batch_size=40))
    orders = []
    for epoch in range(2):
        seen = torch.cat([clean for clean, _ in losses[epoch * 4 : epoch * 4 + 4]])
        order = [int((images == image).flatten(1).all(1).nonzero()) for image in seen]
        assert sorted(order) == list(range(SAMPLES - HELD_OUT))
        orders.append(order)
    assert orders[0] != orders[1]
    assert [len(clean) for clean, _ in losses[:4]] == [35, 35, 35, 35]


def test_the_limit_leaves_out_what_comes_after_it(tmp_path: Path, losses: Losses) -> None:
    images, labels = bars()
    train(perceptron(), (images, labels), out=tmp_path / "run", limit=150, **QUICK | dict(epochs=1))
    seen = torch.cat([clean for clean, _ in losses])
    assert sorted(seen.flatten(1).sum(1).tolist()) == sorted(images[: 150 - HELD_OUT].flatten(1).sum(1).tolist())


def test_a_model_keeps_its_modes_its_frozen_parameters_and_the_caller_his_random_numbers(tmp_path: Path) -> None:
    model = noisy_network().eval()
    model[0].train()
    model[1].requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    generator = torch.get_rng_state()
    train(model, bars(), out=tmp_path / "run", **QUICK | dict(epochs=1))
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model] == [True, False, False, False, False, False]
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad != name.startswith("1.")
        assert torch.equal(parameter, before[name]) == name.startswith("1.")


def test_held_out_samples_are_judged_in_evaluation_mode_and_teach_nothing(tmp_path: Path) -> None:
    model = noisy_network()
    training = train(model, bars(), out=tmp_path / "run", **QUICK)
    assert int(model.state_dict()["2.num_batches_tracked"]) == 2 * STEPS
    assert model.training
    images, labels = (tensor[-HELD_OUT:] for tensor in bars())
    right = model.eval()(images).argmax(1) == labels
    assert training.history[-1].clean_accuracy == right.double().mean().item()


@pytest.mark.parametrize("stop", [2, STEPS + 2], ids=["in the first epoch", "in the second epoch"])
def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    options = QUICK | dict(attack=replace(ATTACK, steps=2, random_start=True), epochs=3, clean_share=0.25)
    whole = noisy_network()
    torch.manual_seed(1)  # what the caller draws from has no say
    expected = train(whole, bars(), out=tmp_path / "whole", **options)

    real, calls = trainer.adversarial_loss, 0

    def interrupted(*arguments: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt
        return real(*arguments)

    model = noisy_network()
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "adversarial_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(model, bars(), out=tmp_path / "parts", **options)
    torch.manual_seed(2)
    # The model, half way through an epoch, is not what it goes on with: that is in the folder.
    resumed = train(model, bars(), out=tmp_path / "parts", resume=True, **options)
    assert_same_weights(whole.state_dict(), model.state_dict())
    for name in ("last", "best"):
        assert_same_weights(*(load_file(tmp_path / run / f"{name}.safetensors") for run in ("whole", "parts")))
    assert [replace(r, seconds=0) for r in resumed.history] == [replace(r, seconds=0) for r in expected.history]
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        *("best.safetensors", "config.json", "last.safetensors", "metrics.jsonl")
    ]


def test_what_was_finished_is_not_done_again_and_lost_files_are_made_again(tmp_path: Path, losses: Losses) -> None:
    options = QUICK | dict(epochs=1)
    first = train(perceptron(), bars(), out=tmp_path / "run", **options)
    kept = (tmp_path / "run" / "metrics.jsonl").read_text()
    # As if the process had died when it had written last.safetensors.
    (tmp_path / "run" / "metrics.jsonl").unlink()
    first.weights.unlink()
    losses.clear()
    again = train(perceptron(), bars(), out=tmp_path / "run", resume=True, **options)
    assert not losses
    assert again == first
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == kept
    assert again.weights.exists()


def nan_logits(call: int, logits: Tensor) -> Tensor:
    return logits * math.nan if call == STEPS + 2 else logits


def nan_gradient(call: int, logits: Tensor) -> Tensor:
    if call == STEPS + 2:
        return torch.sqrt(logits - logits.detach()) + logits.detach()  # its slope at 0 is infinite
    return logits


@pytest.mark.parametrize(
    ("trouble", "words"), [(nan_logits, "the loss is nan"), (nan_gradient, "the gradient of the loss is not finite")]
)
def test_a_loss_that_is_not_finite_stops_the_training_and_spoils_nothing(
    tmp_path: Path, trouble: Callable[[int, Tensor], Tensor], words: str
) -> None:
    good = perceptron()
    train(good, bars(), out=tmp_path / "good", **QUICK)
    model, out = Spy(trouble), tmp_path / "bad"
    with pytest.raises(ValueError, match=f"epoch 2, step 2: {words}") as caught:
        train(model, bars(), out=out, **QUICK)
    assert "last.safetensors is as it was after epoch 1" in str(caught.value)
    assert model.training
    assert [record["epoch"] for record in history_of(out)] == [1]
    model.told = lambda _, logits: logits
    train(model, bars(), out=out, resume=True, **QUICK)
    assert_same_weights(good.state_dict(), model.model.state_dict())


def test_a_model_that_overflows_under_attack_is_told_by_epoch_and_step(tmp_path: Path) -> None:
    model = perceptron()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(ValueError, match="epoch 1, step 1: model must return finite logits"):
        train(model, bars(), out=tmp_path / "run", **QUICK)


class Stubborn(nn.Module):
    """Says the same of all images, nearly."""

    def __init__(self) -> None:
        super().__init__()
        self.model = perceptron()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = 1e-6 * self.model(images) + torch.tensor([1.0, 0.0])
        return logits


def test_a_collapse_is_said_and_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = train(Stubborn(), bars(), out=tmp_path / "run", progress=True, **QUICK | dict(epochs=1))
    assert training.best.collapsed
    assert history_of(tmp_path / "run")[0]["collapsed"] is True
    assert "epoch 1: the model has collapsed" in " ".join(capsys.readouterr().err.split())


def test_the_best_epoch_holds_best_and_its_weights_can_be_loaded(tmp_path: Path) -> None:
    model = perceptron()
    training = train(model, bars(), out=tmp_path / "run", **QUICK)
    assert training.best.robust_accuracy == max(record.robust_accuracy for record in training.history)
    assert training.weights == tmp_path / "run" / "best.safetensors"
    training.load_best(model)
    assert_same_weights(dict(model.state_dict()), load_file(training.weights))


def test_the_more_accurate_and_then_the_earlier_of_two_epochs_that_hold_alike_is_the_best() -> None:
    first = Epoch(
        epoch=1,
        loss=1.0,
        train_robust_accuracy=0.5,
        clean_accuracy=0.8,
        robust_accuracy=0.5,
        collapsed=False,
        radius=0.1,
        rate=0.1,
        seconds=1.0,
    )
    accurate = replace(first, epoch=2, clean_accuracy=0.9)
    assert (
        best_of([first, accurate, replace(accurate, epoch=3), replace(first, epoch=4, robust_accuracy=0.4)]) is accurate
    )


def test_a_share_of_the_loss_is_on_clean_images() -> None:
    images, labels = (tensor[:10] for tensor in bars())
    model, adversarial = perceptron(), images.flip(3)
    mixed = trainer.adversarial_loss(model, images, adversarial, labels, 0.25)
    hard, easy = (F.cross_entropy(model(x), labels) for x in (adversarial, images))
    assert mixed.item() == pytest.approx((0.75 * hard + 0.25 * easy).item())
    assert torch.equal(trainer.adversarial_loss(model, images, adversarial, labels, 0.0), hard)


def test_the_rate_falls_on_a_cosine() -> None:
    setting = Setting(
        model="m",
        data="d",
        data_fingerprint="f",
        samples=100,
        held_out=1,
        attack="a",
        judge="j",
        epochs=4,
        batch_size=50,
        rate=0.1,
        warm_up=0,
        clean_share=0,
        seed=0,
        device="cpu",
    )
    assert [setting.rate_at(step) for step in (0, 4, 8)] == pytest.approx([0.1, 0.05, 0])
    assert setting.radius_share(0) == 1
    assert Setting.parse(json.loads(setting.json("train"))) == setting


def test_a_folder_that_is_not_this_training_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = QUICK | dict(epochs=1)
    train(perceptron(), bars(), out=out, **options)
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(StoreError, match="holds a training already: resume it"):
        train(perceptron(), bars(), out=out, **options)
    with pytest.raises(StoreError, match=r"another configuration: epochs is 2, there 1; rate is 0\.5"):
        train(perceptron(), bars(), out=out, resume=True, **options | dict(epochs=2, rate=0.5))
    images, labels = bars()
    with pytest.raises(StoreError, match="data_fingerprint is"):
        train(perceptron(), (images / 2, labels), out=out, resume=True, **options)
    with pytest.raises(ValueError, match=r"weights .*last\.safetensors do not fit Sequential: missing"):
        train(noisy_network(), bars(), out=out, resume=True, **options)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept
    (out / "last.safetensors").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match=r"last\.safetensors is damaged"):
        train(perceptron(), bars(), out=out, resume=True, **options)
    (out / "config.json").write_text("[]")
    with pytest.raises(StoreError, match=r"config\.json must be the configuration of a training"):
        train(perceptron(), bars(), out=out, resume=True, **options)
    with pytest.raises(StoreError, match="must be a new or an empty folder"):
        train(perceptron(), bars(), out=tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(attack="fw"), "attack must be an attack of wasserball, got str"),
        (dict(attack=replace(ATTACK, targeted=True)), "attack must not be targeted"),
        (dict(attack=replace(ATTACK, eps=torch.ones(3))), "attack must have one radius for all images"),
        (dict(epochs=0), "epochs must be an integer >= 1, got 0"),
        (dict(batch_size=0), "batch_size must be an integer >= 1, got 0"),
        (dict(held_out=0), "held_out must be an integer >= 1, got 0"),
        (dict(held_out=SAMPLES), "data must hold more than the 200 held-out samples .*, got images with 200 samples"),
        (dict(limit=0), "limit must be an integer >= 1, got 0"),
        (dict(rate=0), "rate must be a finite number > 0, got 0"),
        (dict(warm_up=4), "warm_up must be a number from 0 to the 2 epochs, got 4"),
        (dict(clean_share=1), r"clean_share must be a number in \[0, 1\), got 1"),
        (dict(seed=-1), "seed must be an integer >= 0, got -1"),
        (dict(model=lambda images: images), "model must be an nn.Module, got function"),
        (dict(model=nn.Flatten()), "model must have parameters that require a gradient"),
        (dict(data=(bars()[0], bars()[1].sort()[0])), "its last 60 samples, .* are all of class 1"),
        (dict(data=(bars()[0], -torch.ones(SAMPLES, dtype=torch.int64))), "data must have labels"),
        (dict(data=(bars()[0], 5 * bars()[1])), "epoch 1, step 1: labels must be from 0 to 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_nonsense_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = dict(model=perceptron(), data=bars(), out=tmp_path / "run") | QUICK | options
    with pytest.raises(ValueError, match=message):
        train(given.pop("model"), given.pop("data"), **given)


# The command line.


def invoke(*arguments: object) -> Result:
    words = ["train", "--device", "cpu", *map(str, arguments)]
    return CliRunner().invoke(cli.app, words, prog_name="wasserball", env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    path = tmp_path / "digits.npz"
    images, labels = zoo.load_sample()
    np.savez(path, images=images.numpy(), labels=labels.numpy())
    return path


COMMON = ("--limit", 90, "--held-out", 30, "--batch-size", 30, "--steps", 1, "--epochs", 2)


def test_the_command_writes_weights_that_the_zoo_reads(tmp_path: Path, digits: Path) -> None:
    out = tmp_path / "run"
    result = invoke("--data", digits, "--out", out, "--eps", 0.2, *COMMON)
    assert result.exit_code == 0, result.output
    assert "robust accuracy" in result.output
    assert "best.safetensors" in result.output
    config = json.loads((out / "config.json").read_text())
    assert config["model"] == "mnist"
    assert config["attack"] == "FrankWolfe(eps=0.2, steps=1)"
    assert config["command"].startswith("wasserball")
    weights = load_file(out / "best.safetensors")
    for model in (zoo.load_model("mnist", weights=out / "best.safetensors"), zoo.load_model(out / "best.safetensors")):
        assert_same_weights(dict(model.state_dict()), weights)

    again = invoke("--data", digits, "--out", out, "--eps", 0.2, *COMMON)
    assert again.exit_code == 1
    assert "resume it (--resume)" in again.output
    other = invoke("--data", digits, "--out", out, "--eps", 0.3, *COMMON, "--resume")
    assert other.exit_code == 1
    assert 'FrankWolfe(eps=0.3, steps=1)", there' in other.output
    assert invoke("--data", digits, "--out", out, "--eps", 0.2, *COMMON, "--resume").exit_code == 0

    tuned = invoke("--data", digits, "--out", tmp_path / "tuned", "--weights", out / "best.safetensors", *COMMON)
    assert tuned.exit_code == 0, tuned.output
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["model"] == "mnist with best"


def test_the_command_trains_a_model_of_ones_own(tmp_path: Path, digits: Path) -> None:
    code = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    (tmp_path / "net.py").write_text(code)
    source = f"{tmp_path / 'net.py'}:build"
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        out = tmp_path / name
        result = invoke("--model", source, "--data", digits, "--out", out, "--attack", "pgd", "--seed", seed, *COMMON)
        assert result.exit_code == 0, result.output
    one, same, other = (load_file(tmp_path / name / "last.safetensors") for name in ("one", "same", "other"))
    assert_same_weights(one, same)
    assert not torch.equal(one["model.1.weight"], other["model.1.weight"])
    zoo.load_model(source, weights=tmp_path / "one" / "best.safetensors")


def test_an_interrupted_command_says_how_to_go_on(
    tmp_path: Path, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> Training:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "adversarial_loss", interrupt)
    result = invoke("--data", digits, "--out", tmp_path / "run", *COMMON)
    assert result.exit_code == 130
    assert "the same command with --resume goes on" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--attack", "sinkhorn"], 2, "must be fw or pgd, got 'sinkhorn'"),
        (["--device", "tpu"], 2, "must be cpu or cuda"),
        (["--model", "nothing"], 1, "there is no model or file 'nothing'"),
        (["--warm-up", "3"], 1, "warm_up must be a number from 0 to the 2 epochs"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_nonsense_on_the_command_line(
    tmp_path: Path, digits: Path, arguments: list[str], code: int, message: str
) -> None:
    result = invoke("--data", digits, "--out", tmp_path / "run", *COMMON, *arguments)
    assert result.exit_code == code
    assert message in " ".join(result.output.split())
