"""The judgement of one sample: box, mass, plan, budget."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from wasserball.verify.space import Floats, Indices, Space
from wasserball.verify.transport import wasserstein


class Moves(NamedTuple):
    """The entries of a plan that are not 0, in float64: few of those that could be there."""

    move: Indices
    channel: Indices
    source: Indices
    mass: Floats

    @classmethod
    def of(cls, plan: npt.NDArray[np.floating]) -> Self:
        """The entries of a plan ``(K, C, size)`` of any precision."""
        flat = plan.reshape(-1)
        entry = np.flatnonzero(flat != 0)
        rest, source = np.divmod(entry, plan.shape[2])
        move, channel = np.divmod(rest, plan.shape[1])
        return cls(move, channel, source, flat[entry].astype(np.float64))


class Finding(NamedTuple):
    """One sample's row of a certificate."""

    distance: float
    mass_error: float
    box_error: float
    exact: bool
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Judge:
    """The measures that all samples of a batch have in common."""

    space: Space
    high: float
    tolerance: float
    precision: np.dtype[np.floating]
    """The coarsest type in which images or plans are stored."""

    def __call__(self, clean: Floats, image: Floats, plan: Moves | None, radius: float) -> Finding:
        """Judge ``image`` by the ball around ``clean``, both ``(C, size)``, with a plan or without."""
        if not np.isfinite(image).all():
            return Finding(math.inf, math.inf, math.inf, False, ("image: a pixel is not finite",))
        faults = []
        box_error = max(0.0, float(image.max()) - self.high, -float(image.min()))
        if box_error > 0:
            faults.append(f"box: a pixel is {box_error:.2g} outside [0, {self.high:g}]")

        total, masses = float(clean.sum()), clean.sum(1)
        change = np.abs(image.sum(1) - masses)
        slack = self.tolerance * masses + self._ulp(image).sum(1, where=image > 0) / 2
        worst = np.argmax(change - slack)
        mass_kept = change[worst] <= slack[worst]
        if not mass_kept:
            faults.append(f"mass: channel {worst} changes by {change[worst]:.2g}")

        spent, exact, fault = math.inf, False, ""
        if mass_kept and image.min() >= 0:  # else there is nothing that a plan could lead to
            if plan is None:
                spent, exact = wasserstein(clean, image, self.space, slack)
            else:
                spent, fault = self._spent(plan, clean, image)
            budget = radius * total
            if fault:
                faults.append(f"plan: {fault}")
            elif not spent <= budget * (1 + self.tolerance) + self._rounding(clean, image, plan):
                faults.append(f"budget: the cost is {spent:.7g}, the budget {budget:.7g}")
        return Finding(
            distance=_ratio(spent, total),
            mass_error=_ratio(float(change.max()), total),
            box_error=box_error,
            exact=exact,
            faults=tuple(faults),
        )

    def _spent(self, plan: Moves, clean: Floats, image: Floats) -> tuple[float, str]:
        """The bound on the Wasserstein distance that ``plan`` proves, or ``inf`` and why it proves none."""
        if not (plan.mass >= 0).all():
            return math.inf, f"an entry is {plan.mass.min():.2g}"
        target = self.space.target(plan.move, plan.source)
        inside = target < self.space.size
        prices = np.where(inside, self.space.price(plan.source, np.where(inside, target, 0)), np.inf)
        stray = plan.mass.max(where=np.isinf(prices), initial=0.0)
        if stray > 0:
            return math.inf, f"an entry that must be 0 is {stray:.2g}"
        rows = self._sums(plan.channel, plan.source, plan.mass, clean)
        if fault := self._mismatch(rows, clean):
            return math.inf, f"a row sum differs from the clean image by {fault:.2g}"

        # Any plan may serve as the witness: with its rows scaled to the clean image, this one starts there exactly.
        scale = np.divide(clean, rows, out=np.zeros_like(rows), where=rows > 0)
        mass = plan.mass * scale[plan.channel, plan.source]
        columns = self._sums(plan.channel, target, mass, image)
        if fault := self._mismatch(columns, image):
            return math.inf, f"a column sum differs from the image by {fault:.2g}"
        return float(mass @ prices) + self.space.noise_price(image - columns), ""

    def _mismatch(self, sums: Floats, stored: Floats) -> float:
        """How far the worst sum is off; 0 if that is no more than K terms, rounded and added in any order, explain."""
        difference = np.abs(sums - stored)
        explained = difference <= self.tolerance * stored + self.space.count * self._ulp(stored)
        return float(difference.max(where=~explained, initial=0.0))

    def _sums(self, channel: Indices, point: Indices, mass: Floats, like: Floats) -> Floats:
        """What comes together at each point of each channel."""
        sums = np.bincount(channel * self.space.size + point, mass, like.size).reshape(like.shape)
        return sums.astype(np.float64)  # counts of no entries at all are integers

    def _rounding(self, clean: Floats, image: Floats, plan: Moves | None) -> float:
        """What it can cost that the pixels that changed, or that the plan moves mass from or to, are rounded.

        A sum of K terms is off by about √K half ulps, independently of all others [Higham and Mary, A new approach to
        probabilistic rounding error analysis, SISC 2019]. Errors that conspire are not excused.
        """
        rounded = image != clean
        if plan is not None:
            target = self.space.target(plan.move, plan.source)
            leaves = target != plan.source
            rounded[plan.channel[leaves], plan.source[leaves]] = True
            rounded[plan.channel[leaves], target[leaves]] = True
        variance = self.space.count * (self._ulp(image) / 2) ** 2
        return self.space.random_noise_price(np.where(rounded, variance, 0.0))

    def _ulp(self, values: Floats) -> Floats:
        return np.spacing(values.astype(self.precision)).astype(np.float64)


def _ratio(amount: float, total: float) -> float:
    """``amount / total`` for a sample that may be black."""
    return amount / total if total else math.inf if amount else 0.0
