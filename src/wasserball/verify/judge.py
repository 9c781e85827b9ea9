"""The judgement of one sample: box, mass, plan, budget."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wasserball.verify.space import Floats, Space
from wasserball.verify.transport import wasserstein


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

    def __call__(self, clean: Floats, image: Floats, plan: Floats | None, radius: float) -> Finding:
        """Judge ``image`` by the ball around ``clean``, both ``(C, size)``, with a plan ``(K, C, size)`` or without."""
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

    def _spent(self, plan: Floats, clean: Floats, image: Floats) -> tuple[float, str]:
        """The bound on the Wasserstein distance that ``plan`` proves, or ``inf`` and why it proves none."""
        if not (plan >= 0).all():
            return math.inf, f"an entry is {plan.min():.2g}"
        forbidden = np.isinf(self.space.prices)
        stray = plan.max(where=forbidden[:, None], initial=0.0)
        if stray > 0:
            return math.inf, f"an entry that must be 0 is {stray:.2g}"
        rows = plan.sum(0)
        if fault := self._mismatch(rows, clean):
            return math.inf, f"a row sum differs from the clean image by {fault:.2g}"

        # Any plan may serve as the witness: with its rows scaled to the clean image, this one starts there exactly.
        plan = plan * np.divide(clean, rows, out=np.zeros_like(rows), where=rows > 0)
        columns = self._column_sums(plan)
        if fault := self._mismatch(columns, image):
            return math.inf, f"a column sum differs from the image by {fault:.2g}"
        spent = float(np.einsum("kcn,kn->", plan, np.where(forbidden, 0.0, self.space.prices)))
        return spent + self.space.noise_price(image - columns), ""

    def _mismatch(self, sums: Floats, stored: Floats) -> float:
        """How far the worst sum is off; 0 if that is no more than K terms, rounded and added in any order, explain."""
        difference = np.abs(sums - stored)
        explained = difference <= self.tolerance * stored + len(self.space.destination) * self._ulp(stored)
        return float(difference.max(where=~explained, initial=0.0))

    def _column_sums(self, plan: Floats) -> Floats:
        sums = np.empty((plan.shape[1], self.space.size + 1))
        for channel, entries in enumerate(plan.swapaxes(0, 1)):
            sums[channel] = np.bincount(self.space.destination.ravel(), entries.ravel(), self.space.size + 1)
        return sums[:, :-1]  # the last is the outside, where nothing goes

    def _rounding(self, clean: Floats, image: Floats, plan: Floats | None) -> float:
        """What it can cost that the pixels that changed, or that the plan moves mass from or to, are rounded.

        A sum of K terms is off by about √K half ulps, independently of all others [Higham and Mary, A new approach to
        probabilistic rounding error analysis, SISC 2019]. Errors that conspire are not excused.
        """
        rounded = image != clean
        if plan is not None:
            stays = self.space.destination == np.arange(self.space.size)
            away = np.where(stays[:, None], 0.0, plan)
            rounded |= (away.sum(0) > 0) | (self._column_sums(away) > 0)
        variance = len(self.space.destination) * (self._ulp(image) / 2) ** 2
        return self.space.random_noise_price(np.where(rounded, variance, 0.0))

    def _ulp(self, values: Floats) -> Floats:
        return np.spacing(values.astype(self.precision)).astype(np.float64)


def _ratio(amount: float, total: float) -> float:
    """``amount / total`` for a sample that may be black."""
    return amount / total if total else math.inf if amount else 0.0
