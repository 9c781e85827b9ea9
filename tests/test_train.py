"""Adversarial training: that it makes models robust, on which images, when it ends, and what it leaves behind."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests import pupils
from tests.pupils import HELD_OUT, KEPT, QUICK, STEPS, Steps, bars, noisy_network, perceptron, record
from wasserball import PGD
from wasserball.train import finetune, train, trainer
from wasserball.train.held_out import HeldOut, Score
from wasserball.train.history import best_of, reason_to_stop
from wasserball.train.samples import split


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    spy = Steps()
    monkeypatch.setattr(trainer, "objective", spy)
    return spy


def robust_accuracy(model: nn.Module) -> float:
    return PGD(eps=0.5, steps=20)(model, *pupils.held_out_bars()).robust_accuracy()


def test_training_makes_a_model_robust(tmp_path: Path) -> None:
    robust: dict[float, float] = {}
    for eps in (0.0, 0.5):
        model, attack = perceptron(), replace(pupils.ATTACK, eps=eps)
        training = train(model, bars(), out=tmp_path / str(eps), recipe=QUICK, attack=attack, epochs=6, batch_size=20)
        robust[eps] = robust_accuracy(model)
    assert robust[0.0] < 0.6
    assert robust[0.5] > 0.9
    assert training.best.robust_accuracy == pytest.approx(robust[0.5], abs=0.05)
    assert training.best.clean_accuracy > 0.95
    assert not any(entry.collapsed for entry in training.history[1:])
    assert training.stopped is None


def test_finetuning_makes_a_standard_model_robust(tmp_path: Path) -> None:
    model = perceptron()
    standard: dict[str, Any] = dict(attack=replace(pupils.ATTACK, eps=0.0), epochs=6, batch_size=20)
    train(model, bars(), out=tmp_path / "standard", recipe=QUICK, **standard)
    before = robust_accuracy(model)
    own: dict[str, Any] = dict(attack=PGD(eps=0.5, steps=5), epochs=5, batch_size=20, held_out=HELD_OUT, rate=1e-2)
    training = finetune(model, bars(), out=tmp_path / "tuned", **own)
    assert before < 0.6
    assert robust_accuracy(model) > 0.9
    assert training.best.clean_accuracy > 0.95


def test_held_out_samples_are_never_trained_on_and_all_others_once_an_epoch(tmp_path: Path, steps: Steps) -> None:
    images, labels = bars()
    train(perceptron(), (images, labels), out=tmp_path / "run", recipe=QUICK, batch_size=40)
    orders = []
    for epoch in range(2):
        seen = torch.cat([clean for clean, _ in steps[epoch * 4 : epoch * 4 + 4]])
        order = [int((images == image).flatten(1).all(1).nonzero()) for image in seen]
        assert sorted(order) == KEPT
        orders.append(order)
    assert orders[0] != orders[1]
    assert [len(clean) for clean, _ in steps[:4]] == [35, 35, 35, 35]


def test_the_limit_leaves_out_what_comes_after_it(tmp_path: Path, steps: Steps) -> None:
    images, labels = bars()
    beyond = images.clone()
    beyond[150:] = torch.nan  # and nobody looks
    train(perceptron(), (beyond, labels), out=tmp_path / "run", recipe=QUICK, limit=150, held_out=30, epochs=1)
    others, _ = split(150, 30)
    seen = torch.cat([clean for clean, _ in steps])
    assert sorted(seen.flatten(1).sum(1).tolist()) == sorted(images[others].flatten(1).sum(1).tolist())


def test_a_model_keeps_its_modes_its_frozen_parameters_and_the_caller_his_random_numbers(tmp_path: Path) -> None:
    pairs = list(zip(*bars(), strict=True))
    for name, data in (("resident", bars()), ("read", pairs)):
        model = noisy_network().eval()
        model[0].train()
        model[1].requires_grad_(False)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        generator = torch.get_rng_state()
        train(model, data, out=tmp_path / name, recipe=QUICK, epochs=1)
        assert torch.equal(torch.get_rng_state(), generator)
        assert [module.training for module in model] == [True, False, False, False, False, False]
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad != name.startswith("1.")
            assert torch.equal(parameter, before[name]) == name.startswith("1.")


def test_held_out_samples_are_judged_in_evaluation_mode_and_teach_nothing(tmp_path: Path) -> None:
    model = noisy_network()
    training = train(model, bars(), out=tmp_path / "run", recipe=QUICK)
    counted = load_file(tmp_path / "run" / "last.safetensors")["model.2.num_batches_tracked"]
    assert int(counted) == 2 * STEPS
    assert model.training
    images, labels = pupils.held_out_bars()
    right = model.eval()(images).argmax(1) == labels
    assert training.best.clean_accuracy == right.double().mean().item()


def test_the_model_is_left_with_the_best_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[dict[str, Tensor]] = []

    def measure(_: HeldOut, model: nn.Module) -> Score:
        weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return Score(clean=0.9, robust=[0.3, 0.6, 0.5][len(weights) - 1], constant=0.5)

    monkeypatch.setattr(HeldOut, "measure", measure)
    model, other = perceptron(), perceptron()
    training = train(model, bars(), out=tmp_path / "run", recipe=QUICK, epochs=3)
    assert training.best is training.history[1]
    pupils.assert_same_weights(dict(model.state_dict()), weights[1])
    assert training.weights == tmp_path / "run" / "best.safetensors"
    pupils.assert_same_weights(load_file(training.weights), weights[1])
    training.load_best(other)
    pupils.assert_same_weights(dict(other.state_dict()), weights[1])
    last = load_file(tmp_path / "run" / "last.safetensors")
    assert all(torch.equal(last[f"model.{name}"], tensor) for name, tensor in weights[2].items())


def test_the_more_accurate_and_then_the_earlier_of_two_epochs_that_hold_alike_is_the_best() -> None:
    first, accurate = record(), record(2, clean_accuracy=0.9)
    history = [first, accurate, replace(accurate, epoch=3), record(4, robust_accuracy=0.4)]
    assert best_of(history) is accurate


# Why a training ends early.


def test_there_is_hope_until_the_patience_is_over() -> None:
    best, worse = record(1, robust_accuracy=0.6), [record(epoch) for epoch in (2, 3, 4)]
    assert reason_to_stop([], 3, 0.1) is None
    assert reason_to_stop([best, *worse[:2]], 3, 0.1) is None
    assert reason_to_stop([best, *worse], 0, 0.1) is None
    assert reason_to_stop([best, *worse], 3, 0.1) == "no better on the held-out ones for 3 epochs; the best was epoch 1"
    assert reason_to_stop([*worse, record(4, robust_accuracy=0.6)], 3, 0.1) is None


def test_robust_overfitting_is_called_by_its_name() -> None:
    history = [record(1, robust_accuracy=0.6), record(2), record(3, train_robust_accuracy=0.9)]
    words = reason_to_stop(history, 2, 0.1)
    assert words is not None
    assert words.startswith("robust overfitting: still better on the training samples, not better on the held-out ones")


def test_a_collapse_counts_with_the_full_radius_and_five_times_in_a_row() -> None:
    fallen = [record(epoch, collapsed=True) for epoch in range(1, 7)]
    assert reason_to_stop(fallen[:4], 0, 0.1) is None
    assert reason_to_stop(fallen[:5], 0, 0.2) is None
    assert reason_to_stop([*fallen[:2], record(3), *fallen[3:]], 0, 0.1) is None
    words = reason_to_stop(fallen[:5], 0, 0.1)
    assert words is not None
    assert "the model has collapsed" in words
    assert "has been so for 5 epochs" in words


class Stubborn(nn.Module):
    """Says the same of all images, nearly."""

    def __init__(self) -> None:
        super().__init__()
        self.model = perceptron()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = 1e-6 * self.model(images) + torch.tensor([1.0, 0.0])
        return logits


def test_a_collapse_is_said_ends_the_training_and_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: Steps
) -> None:
    recipe = replace(QUICK, epochs=9, warm_up=1)
    training = train(Stubborn(), bars(), out=tmp_path / "run", recipe=recipe, progress=True)
    assert training.best.collapsed
    assert all(entry["collapsed"] for entry in pupils.history_of(tmp_path / "run"))
    said = " ".join(capsys.readouterr().err.split())
    assert "epoch 1: the model has collapsed" in said
    assert f"step {6 * STEPS}/{9 * STEPS} · epoch 6/9 · loss" in said
    assert len(training.history) == 6  # the first is not with the full radius
    assert training.stopped is not None
    assert "the model has collapsed" in training.stopped
    steps.clear()
    again = train(Stubborn(), bars(), out=tmp_path / "run", recipe=recipe, resume=True)
    assert again == training
    assert not steps


def test_patience_ends_a_training_that_leads_nowhere(tmp_path: Path) -> None:
    training = train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK, epochs=9, rate=1e-12, patience=2)
    assert len(training.history) == 3
    assert training.stopped is not None
    assert training.stopped.endswith("better on the held-out ones for 2 epochs; the best was epoch 1")
    whole = train(perceptron(), bars(), out=tmp_path / "whole", recipe=QUICK, epochs=3, rate=1e-12, patience=2)
    assert whole.stopped is None


# TensorBoard.


class Writer:
    """Takes the place of TensorBoard's."""

    written: list[tuple[Path, str, float, int]]
    closed = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add_scalar(self, name: str, value: float, step: int) -> None:
        Writer.written.append((self.folder, name, value, step))

    def flush(self) -> None: ...

    def close(self) -> None:
        Writer.closed += 1


def test_figures_are_written_for_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(module, "SummaryWriter", Writer, raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "written", [], raising=False)
    monkeypatch.setattr(Writer, "closed", 0)
    training = train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK)
    expected = {
        (tmp_path / "run" / "tensorboard", name, float(value), entry.epoch)
        for entry in training.history
        for name, value in asdict(entry).items()
        if name != "epoch"
    }
    assert set(Writer.written) == expected
    assert len(Writer.written) == len(expected)
    assert Writer.closed == 1
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if it were not installed
    without = train(perceptron(), bars(), out=tmp_path / "without", recipe=QUICK)
    assert [replace(entry, seconds=0) for entry in without.history] == [
        replace(entry, seconds=0) for entry in training.history
    ]
    assert not (tmp_path / "without" / "tensorboard").exists()
