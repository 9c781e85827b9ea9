"""What a training is asked to do: the identity of its folder, and what follows from it for each step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from wasserball import __version__
from wasserball.evaluate.folder import Identity, differ

FORMAT = 3
"""Of the folder."""
LEAK_ENDS = 2 / 3
"""Of a training: the rest of it is of the network as it will be used."""
LATE = 0.5, 0.75
"""Of a training: while the bound of the loss goes to its last value, and the focus to its radius."""


@dataclass(frozen=True, kw_only=True)
class Setting(Identity):
    """All that the weights depend on, as ``config.json`` keeps it. Steps are counted from 0, through all epochs."""

    model: str
    data: str
    data_fingerprint: str
    samples: int
    """To train on."""
    recipe: dict[str, Any]
    device: str
    """``"cpu"`` or ``"cuda"``: they round differently."""
    wasserball: str = __version__
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.samples < 1:
            held_out = self.recipe["held_out"]
            given = f"{self.data} with {self.samples + held_out} samples"
            raise ValueError(f"data must hold more than the {held_out} held-out samples (held_out), got {given}")

    @property
    def epochs(self) -> int:
        return int(self.recipe["epochs"])

    @property
    def steps(self) -> int:
        """In an epoch."""
        return math.ceil(self.samples / int(self.recipe["batch_size"]))

    def radius_share(self, step: int) -> float:
        """Of the radii that are asked for: they grow linearly from 0. A network that knows nothing yet learns nothing
        from images with which it can be told anything."""
        warm_up = self.recipe["warm_up"] * self.steps
        return min(1.0, step / warm_up) if warm_up else 1.0

    def rate_at(self, step: int) -> float:
        """The learning rate: up a slope, then down a cosine to 0."""
        slope = self.recipe["rate_warm_up"] * self.steps
        rate = self.recipe["rate"] * (1 + math.cos(math.pi * step / (self.epochs * self.steps))) / 2
        return float(rate * min(1.0, (step + 1) / slope) if slope else rate)

    def leak_at(self, step: int) -> float:
        """The slope of ReLUs below 0."""
        return max(0.0, float(self.recipe["leak"]) * (1 - step / (LEAK_ENDS * self.epochs * self.steps)))

    def late(self, step: int) -> float:
        """How much of what is for the end of a training counts already, from 0 to 1."""
        begin, end = LATE
        return min(1.0, max(0.0, (step / (self.epochs * self.steps) - begin) / (end - begin)))

    def bounded_at(self, step: int) -> float:
        """The q of a loss that has a bound."""
        first, last = float(self.recipe["bounded"]), float(self.recipe["bounded_late"])
        return first + (last - first) * self.late(step) if last else first

    def differences(self, other: Identity) -> list[str]:
        """In what two of a kind differ, in words; of the recipes, in which lines."""
        mine, theirs = self._flat(), other._flat() if isinstance(other, Setting) else {}
        return differ(mine, theirs)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """What :meth:`Identity.json` wrote; ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        return cls(**{item.name: content[item.name] for item in fields(cls)})

    def _flat(self) -> dict[str, Any]:
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "recipe"}
        return own | self.recipe
