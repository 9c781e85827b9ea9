"""A few samples of a run to look at more closely, the attack to do it with, and what it comes to if it is changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wasserball.attacks import PGD, Attack, AttackResult, Auto
from wasserball.attacks.attack import Ascent, seed_generators
from wasserball.attacks.classifier import Classifier, Model, frozen
from wasserball.evaluate.health.rows import worst_case
from wasserball.evaluate.outcomes import Outcome, Outcomes
from wasserball.zoo import Data

LEAST_STEPS = 50
"""To see what more steps would do: twice a few are still a few."""
MEANS = "steps", "cost", "bounds", "seed", "eot", "batch_size", "backend"
"""What any two attacks can have in common."""
Indices = npt.NDArray[np.int64]


class Samples(NamedTuple):
    """Some images with their labels, and their places in the rows."""

    places: Indices
    images: Tensor
    labels: Tensor

    def keep(self, held: Tensor) -> "Samples":
        """Some of them."""
        return Samples(self.places[held.cpu().numpy()], self.images[held], self.labels[held])


class Before(NamedTuple):
    """What the attack came to on some samples as it was: whether they hold, and by how much."""

    holds: npt.NDArray[np.bool_]
    margin: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Probe:
    """The strongest ascent of a run at its most telling radius, on samples that are the same each time it is made."""

    model: Model
    data: Data
    device: torch.device
    outcomes: Outcomes
    attacks: dict[str, Attack]
    count: int
    """How many samples to take, at most."""

    @cached_property
    def eps(self) -> float:
        """Where the accuracy is nearest to half of the clean one, with survivors: there most can still change."""
        radii = sorted({eps for _, eps in self.outcomes if eps > 0})
        half = self.clean_accuracy / 2
        accuracies = {eps: float(worst_case(self.outcomes, eps).mean()) for eps in radii}
        return min(radii, key=lambda eps: (accuracies[eps] == 0, abs(accuracies[eps] - half), eps), default=0.0)

    @cached_property
    def name(self) -> str | None:
        """What the run calls the attack; None if it is none of the run's."""
        ascents = {name: attack for name, attack in self.attacks.items() if isinstance(attack, Ascent)}
        usable = [name for name, attack in ascents.items() if not attack._ignores_box]
        return min(usable, key=self._accuracy, default=None)

    @cached_property
    def attack(self) -> Ascent:
        """The strongest ascent of the run or, if it had none, a PGD with the means of its strongest attack."""
        if self.name is not None:
            attack = self.attacks[self.name]
            assert isinstance(attack, Ascent)
            return replace(attack, eps=self.eps, return_plan=False, progress=False)
        like = self.attacks[min(self.attacks, key=self._accuracy)]
        return PGD(eps=self.eps, **{name: getattr(like, name) for name in MEANS})

    @cached_property
    def battery(self) -> Auto | None:
        """The run's Auto, if it had one."""
        return next((attack for attack in self.attacks.values() if isinstance(attack, Auto)), None)

    @cached_property
    def correct(self) -> Samples:
        """Some that the model gets right, with mass to move."""
        return self._with_mass(self._any.correct)

    @cached_property
    def survivors(self) -> Samples:
        """Some that hold against every attack, with mass to move."""
        return self._with_mass(worst_case(self.outcomes, self.eps) & self._any.correct)

    @cached_property
    def surviving(self) -> float:
        """The share of all samples that the survivors stand for."""
        return float(worst_case(self.outcomes, self.eps).mean())

    @cached_property
    def clean_accuracy(self) -> float:
        """The share of all samples that the correct ones stand for."""
        return float(self._any.correct.mean())

    @cached_property
    def shown(self) -> Samples:
        """Some samples for questions to the model alone, right or wrong."""
        return self._load(np.ones(len(self._any), dtype=bool))

    @cached_property
    def more_steps(self) -> int:
        """Twice as many, and enough to get somewhere."""
        return max(2 * self.attack.steps, LEAST_STEPS)

    @cached_property
    def longer(self) -> AttackResult:
        """The survivors with more steps."""
        return self.run(self.survivors, steps=self.more_steps)

    def run(self, samples: Samples, **changes: Any) -> AttackResult:
        """The attack, changed."""
        return replace(self.attack, **changes)(self.model, samples.images, samples.labels)

    def before(self, samples: Samples) -> Before:
        """The attack as it was: from the rows, where it is there."""
        if self.name is not None:
            outcome = self.outcomes[self.name, self.eps]
            return Before(outcome.holds[samples.places], outcome["margin"][samples.places])
        result = self.run(samples)
        return Before(~result.success.cpu().numpy(), result.margin.cpu().numpy())

    @contextmanager
    def asking(self, draws: int) -> Iterator[Classifier]:
        """The model as an attack meets it, frozen and with random numbers that are put back."""
        with frozen(self.model), torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            seed_generators(self.attack.seed, self.device)
            yield Classifier(self.model, torch.empty(0, device=self.device), draws)

    @property
    def _any(self) -> Outcome:
        return next(iter(self.outcomes.values()))

    def _accuracy(self, name: str) -> float:
        return float(self.outcomes[name, self.eps].holds.mean()) if (name, self.eps) in self.outcomes else 1.0

    def _with_mass(self, wanted: npt.NDArray[np.bool_]) -> Samples:
        """Those of the wanted that can be attacked at all."""
        samples = self._load(wanted)
        return samples.keep(samples.images.flatten(1).sum(1) > 0)

    def _load(self, wanted: npt.NDArray[np.bool_]) -> Samples:
        """At most ``count`` of the wanted, evenly from first to last."""
        places = wanted.nonzero()[0]
        if len(places) > self.count:
            places = places[np.linspace(0, len(places) - 1, self.count).round().astype(np.int64)]
        index = self._any["index"][places]
        pairs = [self.data.batch(int(number), int(number) + 1) for number in index]
        if not pairs:
            images, labels = self.data.batch(0, 1)
            pairs = [(images[:0], labels[:0])]
        images, labels = (torch.cat(parts).to(self.device) for parts in zip(*pairs, strict=True))
        return Samples(places, images, labels)
