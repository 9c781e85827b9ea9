"""What goes wrong in a training: it is said in a sentence, and what was finished stays as good as it was."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from tests import pupils
from tests.pupils import QUICK, SAMPLES, STEPS, Spy, bars, perceptron
from wasserball.train import train, trainer
from wasserball.train.objective import objective

AVERAGED = replace(QUICK, average=0.5)
MOMENT = STEPS + 2
"""Of the trouble: the second step of the second epoch."""


def nan_logits(call: int, logits: Tensor) -> Tensor:
    return logits * math.nan if call == MOMENT else logits


def infinite_gradient(call: int, logits: Tensor) -> Tensor:
    return torch.sqrt(logits - logits.detach()) + logits.detach() if call == MOMENT else logits  # at 0


def huge_loss(call: int, logits: Tensor) -> Tensor:
    return 1e4 * logits if call == MOMENT else logits


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training to which nothing happens."""
    out = tmp_path_factory.mktemp("good") / "run"
    train(Spy(lambda _, logits: logits), bars(), out=out, recipe=AVERAGED)
    return out


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (nan_logits, "the loss or its gradient is not finite; a smaller rate or a longer warm_up may help"),
        (infinite_gradient, "the loss or its gradient is not finite"),
        (huge_loss, r"the training diverges, its loss is \d+.*; a smaller rate, a longer warm_up or clip may help"),
    ],
)
def test_a_loss_that_explodes_stops_the_training_and_spoils_nothing(
    tmp_path: Path, trouble: Callable[[int, Tensor], Tensor], words: str, optimizer: Any
) -> None:
    recipe, whole, out = replace(AVERAGED, optimizer=optimizer), tmp_path / "good", tmp_path / "bad"
    train(Spy(lambda _, logits: logits), bars(), out=whole, recipe=recipe)
    model = Spy(trouble)
    with pytest.raises(ValueError, match=f"^epoch 2, step 2: {words}") as caught:
        train(model, bars(), out=out, recipe=recipe)
    assert "last.safetensors are as they were after epoch 1)" in str(caught.value)
    assert model.training
    assert [entry["epoch"] for entry in pupils.history_of(out)] == [1]
    kept = load_file(out / "last.safetensors")
    for name, tensor in model.state_dict().items():
        assert tensor.isfinite().all()
        assert torch.equal(tensor, kept[f"model.{name}"])
    model.told = lambda _, logits: logits
    train(model, bars(), out=out, recipe=recipe, resume=True)
    pupils.assert_same_outcome(out, whole)


def test_weights_that_are_not_finite_are_told_in_the_first_step(tmp_path: Path) -> None:
    model = perceptron()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(ValueError, match="epoch 1, step 1: the loss or its gradient is not finite"):
        train(model, bars(), out=tmp_path / "run", recipe=QUICK)


def test_a_full_disk_is_said_with_the_file_and_costs_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: Path
) -> None:
    resource = pytest.importorskip("resource", reason="no limit on the size of files there")
    out, model, steps = tmp_path / "run", Spy(lambda _, logits: logits), 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(*arguments: Any) -> tuple[Tensor, Tensor]:
        nonlocal steps
        steps += 1
        if steps == MOMENT:
            limit = (out / "last.safetensors").stat().st_size - 1
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        return objective(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "objective", fill)
        try:
            with pytest.raises(OSError, match=r"could not be written \(File too large\)") as caught:
                train(model, bars(), out=out, recipe=AVERAGED)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(out / "last.safetensors")
    assert not list(out.rglob(".*.part"))
    with safe_open(out / "last.safetensors", framework="pt") as file:
        assert '"epoch": 1' in file.metadata()["history"]
        assert '"epoch": 2' not in file.metadata()["history"]
    train(model, bars(), out=out, recipe=AVERAGED, resume=True)
    pupils.assert_same_outcome(out, good)


class Answer(nn.Module):
    """Says something else than logits."""

    def __init__(self, said: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.model, self.said = perceptron(), said

    def forward(self, images: Tensor) -> Any:
        return self.said(self.model(images))


IMAGES, LABELS = bars()
UNKNOWN = LABELS.index_fill(0, torch.tensor([8]), -1)
BEYOND = LABELS.index_fill(0, torch.tensor([9]), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(recipe="nothing"), "recipe must be one of default, .*, got 'nothing'"),
        (dict(nothing=1), "there is nothing like 'nothing' to choose in a recipe, only network, attack"),
        (dict(epochs=0), "epochs must be an integer >= 1, got 0"),
        (dict(held_out=SAMPLES), "data must hold more than the 200 held-out samples .*, got images with 200 samples"),
        (dict(limit=0), "limit must be an integer >= 1, got 0"),
        (dict(limit=60), "data must hold more than the 60 held-out samples .*, got images with 60 samples"),
        (dict(model=lambda images: images), "model must be an nn.Module, got function"),
        (dict(model=nn.Flatten()), "model must have parameters that require a gradient"),
        (dict(model=nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), leak=0.1), "leak must be 0 for a model that has no"),
        (dict(model=nn.Linear(5, 2)), r"model must take images of images, \(1, 6, 6\), but: "),
        (dict(model=nn.Linear(6, 2)), r"logits of shape \(1, classes\) for one image, 2 or more, got \(1, 1, 6, 2\)"),
        (dict(model=Answer(lambda logits: logits[:, :1])), r"2 or more, got \(1, 1\)"),
        (dict(model=Answer(lambda logits: logits[0])), r"2 or more, got \(2,\)"),
        (dict(model=Answer(lambda logits: [logits])), "2 or more, got list"),
        (dict(data=(IMAGES, torch.ones_like(LABELS))), "several classes: the 60 samples .* all of class 1 in images"),
        (dict(data=(IMAGES, UNKNOWN)), "data must have labels to train on, sample 8 has none"),
        (dict(data=(IMAGES, BEYOND)), "labels from 0 to 1, the model has 2 classes: sample 9 of images has 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_nonsense_is_refused_before_anything_is_written(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = dict(model=perceptron(), data=bars(), out=tmp_path / "run", recipe=QUICK) | options
    with pytest.raises(ValueError, match=message):
        train(given.pop("model"), given.pop("data"), **given)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(("labels", "words"), [(UNKNOWN, "sample 8 has none"), (BEYOND, "sample 9 of list has 2")])
def test_labels_that_are_read_on_the_way_are_checked_then(tmp_path: Path, labels: Tensor, words: str) -> None:
    pairs = list(zip(IMAGES, labels.tolist(), strict=True))
    with pytest.raises(ValueError, match=rf"{words} \(model and .* are as they were after epoch 0\)"):
        train(perceptron(), pairs, out=tmp_path / "run", recipe=QUICK)
