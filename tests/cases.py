"""Problems for the operators, drawn by hypothesis: over costs, shapes, scales, dtypes and the corners of each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from wasserball import Cost, DenseCost, LocalCost


@dataclass(frozen=True, repr=False)
class Problem:
    """A projection or an oracle call for a batch of two samples."""

    cost: Cost
    mass: Tensor
    target: Tensor
    gradient: Tensor
    budget: Tensor
    scale: float
    """The one common scale of mass, target and budget; errors are relative to it."""

    def __repr__(self) -> str:
        kind = f"{tuple(self.mass.shape)} {self.mass.dtype} of scale {self.scale:g}"
        return f"Problem({self.cost}, mass {kind}, budget {self.budget.tolist()})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every tensor

    @property
    def high(self) -> float:
        """The capacity of a pixel: that of a white one."""
        return self.mass.new_tensor(self.scale).item()


@st.composite
def costs(draw: st.DrawFn, largest: int) -> tuple[Cost, tuple[int, ...], float]:
    """A cost, the shape of one sample of mass, and the smallest positive price."""
    channels = draw(st.integers(1, 3))
    if draw(st.booleans()):
        cost = LocalCost(
            window=draw(st.sampled_from([1, 3, 5, 7, 9])),
            metric=draw(st.sampled_from(["euclidean", "l1", "linf"])),
            power=draw(st.sampled_from([1, 1.5, 2])),
        )
        return cost, (channels, draw(st.integers(1, largest)), draw(st.integers(1, largest))), 1.0
    points, smallest = draw(st.integers(1, largest)), draw(st.sampled_from([0.01, 1.0, 100.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    matrix = smallest * (1 + 10 * rng.random((points, points)) ** 3)
    matrix[rng.random((points, points)) < draw(st.sampled_from([0, 0.2]))] = np.inf
    np.fill_diagonal(matrix, 0)
    shape = (points,) if channels == 1 and draw(st.booleans()) else (channels, points)
    return DenseCost(torch.from_numpy(matrix)), shape, smallest


@st.composite
def problems(draw: st.DrawFn, largest: int = 9, tiniest: float = -6) -> Problem:
    """Masses with black and white pixels, targets of any kind, budgets of 0 and from 10**tiniest to far above need."""
    cost, shape, smallest = draw(costs(largest))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    scale = 10.0 ** draw(st.integers(-6, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    grey = rng.random((2, *shape))
    looks = [grey, np.clip(3 * grey - 1, 0, 1), np.ones_like(grey), 1 - 0.01 * grey, np.zeros_like(grey)]
    mass = looks[draw(st.integers(0, len(looks) - 1))]
    masses = torch.from_numpy(scale * mass).to(dtype)
    gradient = torch.from_numpy(rng.standard_normal((2, *shape))).to(dtype)
    step = scale * 10.0 ** draw(st.floats(-2, 0.5))
    if draw(st.booleans()):
        change = cost.gather(gradient).expand(cost.plan_shape(masses))
    else:
        change = torch.from_numpy(rng.standard_normal(cost.plan_shape(masses))).to(dtype)
    budget = [
        draw(st.one_of(st.just(0.0), st.floats(tiniest, 2).map(lambda e: scale * smallest * 10**e))) for _ in "ab"
    ]
    target = cost.identity(masses) + step * change
    return Problem(cost, masses, target, gradient, torch.tensor(budget, dtype=torch.float64), scale)
