"""A training may be stopped at any moment, and killed: it goes on, and ends with the bits with which it would have."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests import pupils
from tests.pupils import QUICK, STEPS, Steps, bars, noisy_network, perceptron
from wasserball import PGD
from wasserball.evaluate import StoreError
from wasserball.train import Recipe, Training, train, trainer
from wasserball.train.folder import Folder
from wasserball.train.held_out import HeldOut

FILES = ["best.safetensors", "config.json", "last.safetensors", "metrics.jsonl"]
EVERYTHING = replace(
    QUICK,
    attack=PGD(eps=0.5, steps=3, random_start=True),
    epochs=3,
    radius="random",
    low=0.1,
    clean_share=0.25,
    smoothing=0.1,
    augment="crop-flip",
    weight_decay=1e-3,
    rate_warm_up=0.5,
    clip=1.0,
    average=0.8,
)


VARIANTS = {
    "adam": EVERYTHING,
    "sgd, own radii": replace(EVERYTHING, optimizer="sgd", radius="own"),
    "muon, a leak, a bound": replace(EVERYTHING, optimizer="muon", leak=0.2, bounded=0.5, smoothing=0.0),
    "remembered attacks": replace(EVERYTHING, attack=PGD(eps=0.5, steps=2), augment="none", remember=True),
}
Whole = Callable[[str], tuple[Path, Training, nn.Module]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Undisturbed trainings with everything."""
    done: dict[str, tuple[Path, Training, nn.Module]] = {}

    def run(variant: str) -> tuple[Path, Training, nn.Module]:
        if variant not in done:
            model, out = noisy_network(), tmp_path_factory.mktemp("whole") / "run"
            torch.manual_seed(1)  # what the caller draws from has no say
            done[variant] = out, train(model, bars(), out=out, recipe=VARIANTS[variant]), model
        return done[variant]

    return run


def interrupt_step(number: int) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        steps = Steps()
        steps.stop = number
        monkeypatch.setattr(trainer, "objective", steps)

    return patch


def interrupt_call(owner: type, name: str, number: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Instead of a method's call of this number."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = getattr(owner, name), 0

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    return patch


MOMENTS = {
    "before the first weights are kept": interrupt_call(Folder, "save", 1),
    "in the first step": interrupt_step(1),
    "in the first epoch": interrupt_step(STEPS),
    "in the second epoch": interrupt_step(STEPS + 2),
    "in the last step": interrupt_step(3 * STEPS),
    "among the held-out samples": interrupt_call(HeldOut, "measure", 2),
    "before an epoch is kept": interrupt_call(Folder, "save", 3),
    "before the best weights are written": interrupt_call(Folder, "_derive", 4),  # the second is that of a restore
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_resumed_training_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole, moment: str, variant: str
) -> None:
    expected, training, ended = whole(variant)
    model, out, recipe = noisy_network(), tmp_path / "parts", VARIANTS[variant]
    with monkeypatch.context() as patch:
        MOMENTS[moment](patch)
        with pytest.raises(KeyboardInterrupt):
            train(model, bars(), out=out, recipe=recipe)
    torch.manual_seed(2)
    # The model, half way through an epoch, is not what it goes on with: that is in the folder.
    if not (out / "last.safetensors").exists():
        model = noisy_network()
    resumed = train(model, bars(), out=out, recipe=recipe, resume=True)
    pupils.assert_same_outcome(out, expected)
    pupils.assert_same_weights(dict(model.state_dict()), dict(ended.state_dict()))
    assert [replace(r, seconds=0) for r in resumed.history] == [replace(r, seconds=0) for r in training.history]
    assert sorted(path.name for path in out.iterdir() if path.name != "tensorboard") == FILES


def test_what_was_finished_is_not_done_again_and_lost_files_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    monkeypatch.setattr(trainer, "objective", steps)
    recipe = replace(QUICK, epochs=1)
    first = train(perceptron(), bars(), out=tmp_path / "run", recipe=recipe)
    kept = (tmp_path / "run" / "metrics.jsonl").read_text()
    # As if the process had died when it had written last.safetensors.
    (tmp_path / "run" / "metrics.jsonl").unlink()
    first.weights.unlink()
    steps.clear()
    again = train(perceptron(), bars(), out=tmp_path / "run", recipe=recipe, resume=True)
    assert not steps
    assert again == first
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == kept
    assert again.weights.exists()


def test_a_folder_that_is_not_this_training_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    recipe = replace(QUICK, epochs=1)
    train(perceptron(), bars(), out=out, recipe=recipe)
    kept = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}

    def again(model: nn.Module, data: Any = None, **changes: Any) -> None:
        train(model, data or bars(), out=out, recipe=recipe, resume=True, **changes)

    with pytest.raises(StoreError, match="holds a training already: resume it"):
        train(perceptron(), bars(), out=out, recipe=recipe)
    with pytest.raises(StoreError, match=r"another configuration: epochs is 2, there 1; rate is 0\.5"):
        again(perceptron(), epochs=2, rate=0.5)
    with pytest.raises(StoreError, match=r'attack is "FrankWolfe\(eps=0\.4, steps=2\)", there "FrankWolfe'):
        again(perceptron(), attack=replace(recipe.attack, eps=0.4))
    images, labels = bars()
    with pytest.raises(StoreError, match="data_fingerprint is"):
        again(perceptron(), (images / 2, labels))
    with pytest.raises(ValueError, match=r"weights .*last\.safetensors do not fit Sequential: missing"):
        again(noisy_network())
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == kept
    (out / "last.safetensors").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match=r"last\.safetensors is damaged"):
        again(perceptron())
    (out / "config.json").write_text('{"format": 1}')
    with pytest.raises(StoreError, match=r"config\.json must be of format 3, got 1"):
        again(perceptron())
    (out / "config.json").write_text("[]")
    with pytest.raises(StoreError, match=r"config\.json must be the configuration of a training"):
        again(perceptron())
    with pytest.raises(StoreError, match="must be a new or an empty folder"):
        train(perceptron(), bars(), out=tmp_path, recipe=recipe)


def test_a_training_goes_on_from_any_weights_but_not_with_a_recipe_of_another_name(tmp_path: Path) -> None:
    """The name of a recipe is not part of what a training is: what is in it is."""
    recipe = replace(QUICK, epochs=1)
    train(perceptron(), bars(), out=tmp_path / "run", recipe=recipe)
    changes = {name: getattr(recipe, name) for name in recipe.content()}
    train(perceptron(), bars(), out=tmp_path / "run", recipe="default", resume=True, **changes)
    with pytest.raises(StoreError, match="another configuration: attack is"):
        train(perceptron(), bars(), out=tmp_path / "run", recipe=Recipe(held_out=60), resume=True)


COMMAND = ["train", "--data=mnist-sample", "--split=test", "--device=cpu", "--held-out=40", "--batch-size=40"]
COMMAND += ["--steps=3", "--epochs=8", "--warm-up=1", "--radius=random", "--rate=.05"]
COMMAND += ["--set=average=0.9", "--set=clip=1", "--set=optimizer=sgd", "--set=augment=crop-flip"]


def test_a_training_that_is_killed_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "killed"
    line = [sys.executable, "-m", "wasserball", *COMMAND, f"--out={out}"]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while process.poll() is None and not (out / "metrics.jsonl").exists():
        assert time.monotonic() < deadline, "the training makes no progress"
        time.sleep(0.01)
    time.sleep(0.3 * random.random())
    process.kill()
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    for arguments in (["--out", whole], ["--out", out, "--resume"]):
        result = pupils.invoke(*COMMAND, *arguments)
        assert result.exit_code == 0, result.output
    pupils.assert_same_outcome(out, whole)
    assert not list(out.rglob(".*.part"))
    assert "average.0.weight" in load_file(out / "last.safetensors")
