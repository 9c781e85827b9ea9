"""Small networks to train, images for them to learn from, and what the tests of a training have in common."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from wasserball import FrankWolfe, cli
from wasserball.train import Epoch, Recipe
from wasserball.train.objective import objective
from wasserball.train.samples import split

SIDE, SAMPLES, HELD_OUT, BATCH = 6, 200, 60, 50
ATTACK = FrankWolfe(eps=0.5, steps=5)
QUICK = Recipe(attack=replace(ATTACK, steps=2), epochs=2, batch_size=BATCH, rate=1e-2, held_out=HELD_OUT)
STEPS = math.ceil((SAMPLES - HELD_OUT) / BATCH)
"""In an epoch of that."""
KEPT: list[int] = split(SAMPLES, HELD_OUT)[0].tolist()
"""The samples that are trained on."""


def bars(channels: int = 1) -> tuple[Tensor, Tensor]:
    """A bar on the left or on the right, which little mass cannot change, and a faint one that it can: in the third or
    in the fourth column. Training on clean images relies on both."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 2, (SAMPLES,), generator=generator)
    images = 0.1 * torch.rand(SAMPLES, channels, SIDE, SIDE, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, :, 4 if label else 1] += 0.8 * torch.rand(SIDE, generator=generator)
        image[:, :, 3 if label else 2] += 0.1
    return images, labels


def held_out_bars() -> tuple[Tensor, Tensor]:
    images, labels = bars()
    others = [number for number in range(SAMPLES) if number not in KEPT]
    return images[others], labels[others]


def perceptron() -> nn.Sequential:
    return _seeded(lambda: [nn.Flatten(), nn.Linear(SIDE * SIDE, 16), nn.ReLU(), nn.Linear(16, 2)])


def noisy_network() -> nn.Sequential:
    """With all that a training must put back to be resumed: what is drawn in a step, and buffers."""
    features = SIDE * SIDE
    return _seeded(
        lambda: [
            *(nn.Flatten(), nn.Linear(features, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))
        ]
    )


def convolutional_network(channels: int = 1) -> nn.Sequential:
    return _seeded(
        lambda: [
            *(nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(8 * SIDE * SIDE, 2)),
        ]
    )


def _seeded(layers: Callable[[], list[nn.Module]]) -> nn.Sequential:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(*layers())


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


class Steps(list[tuple[Tensor, Tensor]]):
    """The images and the adversarial images of each step: patched in where the objective sees them. At step ``stop``,
    from 1, comes control-C."""

    stop = 0

    def __call__(
        self, model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor, recipe: Recipe
    ) -> tuple[Tensor, Tensor]:
        assert all(module.training for module in model.modules())
        self.append((images.clone(), adversarial.clone()))
        if len(self) == self.stop:
            raise KeyboardInterrupt
        return objective(model, images, adversarial, labels, recipe)


def record(epoch: int = 1, **changes: Any) -> Epoch:
    """An epoch like any other."""
    usual: dict[str, Any] = dict(loss=1.0, train_robust_accuracy=0.5, clean_accuracy=0.8, robust_accuracy=0.5)
    return Epoch(epoch=epoch, **usual | dict(collapsed=False, radius=0.1, rate=0.1, seconds=1.0) | changes)


def history_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def assert_same_outcome(one: Path, other: Path) -> None:
    """That two folders hold the same bits, but for the seconds that it took."""
    for name in ("last", "best"):
        assert_same_weights(*(load_file(folder / f"{name}.safetensors") for folder in (one, other)))
    mine, theirs = ([entry | dict(seconds=0) for entry in history_of(folder)] for folder in (one, other))
    assert mine == theirs


def invoke(*arguments: object) -> Result:
    """The command line, in this process."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli.app, words, prog_name="wasserball", env={"COLUMNS": "200", "TERM": "dumb"})
