"""A step of adversarial training beside one of standard training: the same model, optimiser and images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from wasserball.attacks import PGD, Attack, FrankWolfe
from wasserball.benchmarks.meter import Meter
from wasserball.benchmarks.problem import random_images
from wasserball.train.objective import Cast
from wasserball.train.progress import Watch
from wasserball.train.recipe import RECIPES, Recipe
from wasserball.train.samples import Samples
from wasserball.train.setting import Setting
from wasserball.train.trainer import Trainer, make_optimizer
from wasserball.zoo import NETWORKS, load_data

ATTACKS: tuple[Attack, ...] = (FrankWolfe(eps=1.0, steps=10), PGD(eps=1.0, steps=10), PGD(eps=1.0, steps=5))
CLASSES = 10
STEPS = 4
"""In a row: in a training the host does not wait for a GPU after each."""


@dataclass(frozen=True)
class TrainingRow:
    """A step of training with one attack on one network."""

    network: str
    batch: int
    attack: str
    replayed: bool
    """Whether the attack is a recorded CUDA graph."""
    milliseconds: float
    standard_milliseconds: float
    """Of a step of standard training."""
    ratio: float
    megabytes_a_sample: float
    """Peak memory beyond that of a standard step."""


@dataclass(frozen=True)
class Pupil:
    """A network with what a step takes, as a recipe has it."""

    recipe: Recipe
    shape: tuple[int, int, int]
    batch: int

    def trainer(self, attack: Attack, device: torch.device, *, replay: bool) -> Trainer:
        """Ready for a step; with a radius of 0 that is one of standard training."""
        plain = dict[str, Any](radius="fixed", low=0.0, focus=0.0, warm_up=0, leak=0.0)
        plain |= dict(clean_share=0.0, bounded=0.0, bounded_late=0.0, remember=False)
        common = plain | dict(held_out=1, batch_size=self.batch, replay=replay)
        recipe = replace(self.recipe, attack=attack, **common)
        torch.manual_seed(0)
        network = NETWORKS[recipe.network]().to(device)
        cast = Cast(network, recipe, device)
        network.to(memory_format=cast.layout)  # type: ignore[call-overload]
        images = random_images((STEPS * self.batch, *self.shape), torch.Generator().manual_seed(0))
        data = load_data((images, torch.arange(len(images)) % CLASSES))
        return Trainer(
            model=cast,
            learner=cast.train(),
            optimizer=make_optimizer(list(network.parameters()), recipe),
            average=None,
            radii=None,
            recipe=recipe,
            setting=Setting(
                model=recipe.network,
                data="random",
                data_fingerprint="",
                samples=len(images),
                recipe=recipe.content(),
                device=device.type,
            ),
            samples=Samples.of(data, torch.arange(len(images)), device, CLASSES, readers=0),
        )


def measure_training(meter: Meter, say: Callable[[str], None], *, quick: bool) -> Iterator[TrainingRow]:
    """Each attack on each network."""
    for pupil in _pupils(meter.device, quick=quick):
        name = f"training {pupil.recipe.network}, {pupil.batch} images"
        standard = _epoch(pupil.trainer(PGD(eps=0.0), meter.device, replay=False))
        for attack in ATTACKS[:1] if quick else ATTACKS:
            chosen = replace(attack, eps=pupil.recipe.eps)
            for replayed in (False, True) if meter.device.type == "cuda" else (False,):
                say(f"{name}, {attack!r}{', replayed' if replayed else ''}")
                adversarial = _epoch(pupil.trainer(chosen, meter.device, replay=replayed))
                (slow, _), (fast, _) = meter.race(adversarial, standard)
                extra = meter.peak_bytes(adversarial) - meter.peak_bytes(standard)
                yield TrainingRow(
                    network=pupil.recipe.network,
                    batch=pupil.batch,
                    attack=repr(chosen),
                    replayed=replayed,
                    milliseconds=slow / STEPS,
                    standard_milliseconds=fast / STEPS,
                    ratio=slow / fast,
                    megabytes_a_sample=max(0, extra) / pupil.batch / 1e6,
                )


def _pupils(device: torch.device, *, quick: bool) -> list[Pupil]:
    mnist, cifar = RECIPES["mnist"], RECIPES["cifar10"]
    if device.type == "cuda":
        return [Pupil(mnist, (1, 28, 28), 256), *(Pupil(cifar, (3, 32, 32), batch) for batch in (256, 512))]
    # In bfloat16 a CPU without instructions for it would be measured, not the training.
    cifar = replace(cifar, precision="float32", channels_last=False)
    return [Pupil(mnist, (1, 28, 28), 16 if quick else 256)] + ([] if quick else [Pupil(cifar, (3, 32, 32), 32)])


def _epoch(trainer: Trainer) -> Callable[[], object]:
    """A few steps."""
    return lambda: trainer.run(1, Watch())
