"""What a training is asked to do: the identity of its folder, and what follows from it for each step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from torch import Tensor

from wasserball import __version__
from wasserball.attacks import Attack
from wasserball.checks import check_count, check_positive
from wasserball.evaluate.folder import Identity

FORMAT = 1
"""Of the folder."""


@dataclass(frozen=True, kw_only=True)
class Setting(Identity):
    """All that the weights depend on, as ``config.json`` keeps it. Steps are counted from 0, through all epochs."""

    model: str
    data: str
    data_fingerprint: str
    samples: int
    """To train on; the held-out ones come after them."""
    held_out: int
    attack: str
    judge: str
    """The attack on the held-out samples."""
    epochs: int
    batch_size: int
    rate: float
    warm_up: float
    clean_share: float
    seed: int
    device: str
    """``"cpu"`` or ``"cuda"``: they round differently."""
    wasserball: str = __version__
    format: int = FORMAT

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "held_out"):
            check_count(name, getattr(self, name))
        if self.samples < 1:
            given = f"{self.data} with {self.samples + self.held_out} samples"
            raise ValueError(f"data must hold more than the {self.held_out} held-out samples (held_out), got {given}")
        check_positive("rate", self.rate)
        _check_number("warm_up", self.warm_up, 0 <= self.warm_up <= self.epochs, f"from 0 to the {self.epochs} epochs")
        _check_number("clean_share", self.clean_share, 0 <= self.clean_share < 1, "in [0, 1)")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed must be an integer >= 0, got {self.seed!r}")

    @property
    def steps(self) -> int:
        """In an epoch."""
        return math.ceil(self.samples / self.batch_size)

    def radius_share(self, step: int) -> float:
        """Of the full radius: it grows linearly from 0. A network that knows nothing yet learns nothing from images
        with which it can be told anything."""
        warm_up = self.warm_up * self.steps
        return min(1.0, step / warm_up) if warm_up else 1.0

    def rate_at(self, step: int) -> float:
        """The learning rate, on a cosine from ``rate`` to 0."""
        return self.rate * (1 + math.cos(math.pi * step / (self.epochs * self.steps))) / 2

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """What :meth:`Identity.json` wrote; ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        return cls(**{item.name: content[item.name] for item in fields(cls)})


def check_attack(attack: object) -> Attack:
    """An attack to train against: any that has one radius and avoids the labels of the data."""
    if not isinstance(attack, Attack):
        raise ValueError(f"attack must be an attack of wasserball, got {type(attack).__name__}")
    if attack.targeted:
        raise ValueError(f"attack must not be targeted, since the labels are those of the data, got {attack!r}")
    if isinstance(attack.eps, Tensor):
        raise ValueError("attack must have one radius for all images, got a tensor of them")
    return attack


def _check_number(name: str, value: object, inside: bool, words: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not inside:
        raise ValueError(f"{name} must be a number {words}, got {value!r}")
