"""Several processes train one model: as one would, but for rounding, and though one of them may die."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from tests import crew, pupils
from tests.pupils import bars, convolutional_network, perceptron
from wasserball.evaluate import StoreError
from wasserball.evaluate.workers import Workers
from wasserball.train import loop, train
from wasserball.train.parallel import together

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")

ROOT = Path(__file__).parent.parent


def launch(target: Path, *more: str) -> None:
    """Two processes that leave behind what came out."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={crew.COUNT}"]
    line = [*launcher, "--max-restarts=1", "-m", "tests.crew", str(target), *more]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("crew")
    launch(target)
    return target


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_batch_norm_sees_all_of_a_batch_that_several_have(folder: Path, momentum: float | None) -> None:
    layer = crew.norm(momentum)
    expected = crew.outcome(layer, layer, *crew.whole_batch(), share=1)
    for rank, part in enumerate(crew.PARTS):
        found = load_file(folder / f"norm {momentum} {rank}.safetensors")
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            mine = expected[name][part] if name in ("normal", "slope", "judged") else expected[name]
            # Gradients of images are of the sum of all losses, which each process counts twice.
            mine = crew.COUNT * mine if name == "slope" else mine
            torch.testing.assert_close(tensor, mine, atol=1e-4, rtol=1e-4, msg=name)


def assert_as_alone(run: Path, alone: Path) -> None:
    training = train(convolutional_network(), bars(), out=alone, recipe=crew.RECIPE)
    mine, theirs = (load_file(path / "last.safetensors") for path in (alone, run))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        most = 2e-3 if tensor.dtype == torch.float16 else 1e-4  # rounding to either side
        torch.testing.assert_close(theirs[name], tensor, atol=most, rtol=most, msg=name)
    told = pupils.history_of(run)
    assert len(told) == len(training.history) == 3
    for entry, record in zip(told, training.history, strict=True):
        assert entry["loss"] == pytest.approx(record.loss, abs=1e-4)
        for name in ("train_robust_accuracy", "clean_accuracy", "robust_accuracy"):
            assert entry[name] == pytest.approx(getattr(record, name), abs=0.02)
        assert (entry["radius"], entry["rate"]) == (record.radius, record.rate)


def test_two_processes_train_as_one_would(folder: Path, tmp_path: Path) -> None:
    assert_as_alone(folder / "run", tmp_path / "alone")


@pytest.mark.slow
def test_one_of_two_processes_may_die(tmp_path: Path) -> None:
    launch(tmp_path, "dies")
    assert_as_alone(tmp_path / "run", tmp_path / "alone")


def test_who_was_started_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    first = train(perceptron(), bars(), out=out, recipe=pupils.QUICK)
    with pytest.raises(StoreError, match="holds a training already"):
        train(perceptron(), bars(), out=out, recipe=pupils.QUICK)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(perceptron(), bars(), out=out, recipe=pupils.QUICK) == first


def test_all_processes_end_with_the_best_weights(folder: Path) -> None:
    best = load_file(folder / "run" / "best.safetensors")
    for rank in range(crew.COUNT):
        pupils.assert_same_weights(load_file(folder / f"model {rank}.safetensors"), best)


def test_alone_a_model_is_left_as_it_is() -> None:
    model = convolutional_network()
    with together(model, Workers()) as learner:
        assert learner is model
        assert type(model[1]) is nn.BatchNorm2d


def test_there_must_be_enough_images_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "join_workers", lambda _: nullcontext(Workers(0, 3)))
    few: list[dict[str, Any]] = [dict(batch_size=2), dict(limit=62)]
    for changes in few:
        with pytest.raises(ValueError, match="batch_size must be at least the 3 processes, got batches of 2"):
            train(perceptron(), bars(), out=tmp_path / "run", recipe=pupils.QUICK, **changes)
