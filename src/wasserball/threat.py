"""The Wasserstein threat model as objects: what moving mass costs, and the ball around a clean sample.

A cost also fixes how a transport plan is laid out in memory, and so owns the few operations that depend on the layout:
reading a value at each destination, and adding up what arrives there.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from wasserball.checks import Ranges, check_bounds, check_floating, check_per_sample, check_real
from wasserball.sums import ordered_sum, sample_sum

Metric = Literal["euclidean", "l1", "linf"]


class Cost(ABC):
    """The price of moving one unit of mass, and the layout of plans that goes with it.

    Every plan has one axis, ``axis``, that runs over the destinations of a source; the others are those of the mass.
    """

    axis: int
    space: tuple[int, ...]
    """The axes of the mass along which it can move; the others are the batch and the channels."""

    @abstractmethod
    def check_mass(self, name: str, mass: Tensor) -> None:
        """Raise ``ValueError`` where the shape of ``mass`` does not fit this cost."""

    @abstractmethod
    def plan_shape(self, mass: Tensor) -> tuple[int, ...]:
        """The shape of a plan that moves ``mass``."""

    @abstractmethod
    def entries(self, mass: Tensor) -> tuple[Tensor, Tensor]:
        """The cost (float64, 0 where forbidden) and whether the move is allowed; both broadcast against a plan."""

    @abstractmethod
    def gather(self, image: Tensor) -> Tensor:
        """``image`` at the destination of each plan entry (0 outside), broadcastable to the plan."""

    @abstractmethod
    def scatter(self, plan: Tensor) -> Tensor:
        """The column sums of a plan: what arrives at each destination."""

    @abstractmethod
    def diagonal(self, plan: Tensor) -> Tensor:
        """A writable view, shaped like the mass, of what stays where it is."""

    @abstractmethod
    def home(self, mass: Tensor) -> Tensor:
        """The number of each source itself among its destinations, shaped like the mass."""

    @property
    @abstractmethod
    def is_metric(self) -> bool:
        """Whether the cost obeys the triangle inequality, so that mass common to two samples may be cancelled."""

    def scatter_slices(self, count: int, entries: Callable[[int], Tensor]) -> Tensor:
        """Column sums of the plan whose ``k``-th destination slice is ``entries(k)``."""
        return self.scatter(torch.stack([entries(k) for k in range(count)], dim=self.axis))

    def row_sums(self, plan: Tensor) -> Tensor:
        """What leaves each source."""
        return ordered_sum(plan, self.axis)

    def spent(self, plan: Tensor, mass: Tensor) -> Tensor:
        """``<C, plan>`` for each sample, in float64."""
        return sample_sum(ordered_sum(plan.double() * self.entries(mass)[0], self.axis))

    def identity(self, mass: Tensor) -> Tensor:
        """The plan that moves nothing."""
        plan = mass.new_zeros(self.plan_shape(mass))
        self.diagonal(plan).copy_(mass)
        return plan


@dataclass(frozen=True)
class LocalCost(Cost):
    """Mass moves within its channel to the ``window``×``window`` pixels around it, at the price ``distance**power``.

    Plans have the shape ``(B, K, C, H, W)``: entry ``[b, k, c, h, w]`` goes *from* pixel ``(h, w)`` *to* ``(h, w)``
    plus the ``k``-th of ``K = window²`` offsets, in row-major order, and is exactly 0 where that lies outside.

    >>> wb.LocalCost(3).prices[:5]
    (1.4142135623730951, 1.0, 1.4142135623730951, 1.0, 0.0)
    >>> wb.LocalCost(3, metric="l1", power=2).prices[:5]
    (4.0, 1.0, 4.0, 1.0, 0.0)
    """

    window: int = 5
    """Pixels a side, an odd number."""
    metric: Metric = "euclidean"
    """How the distance between two pixels is measured."""
    power: float = 1
    """Of the distance, at least 1."""
    axis: int = field(default=1, init=False, repr=False, compare=False)
    space: tuple[int, ...] = field(default=(-2, -1), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1 or self.window % 2 == 0:
            raise ValueError(f"window must be an odd integer >= 1, got {self.window!r}")
        if self.metric not in get_args(Metric):
            raise ValueError(f"metric must be one of {', '.join(get_args(Metric))}, got {self.metric!r}")
        if isinstance(self.power, bool) or not isinstance(self.power, int | float) or not 1 <= self.power < math.inf:
            raise ValueError(f"power must be a finite number >= 1, got {self.power!r}")
        try:
            self.price(self.window, self.window)
        except OverflowError:
            raise ValueError(f"power must leave prices finite, got {self.power!r}") from None

    @cached_property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """The ``K`` moves (down, right), in the order of the plan."""
        reach = range(-(self.window // 2), self.window // 2 + 1)
        return tuple((down, right) for down in reach for right in reach)

    @cached_property
    def prices(self) -> tuple[float, ...]:
        """The cost of each offset."""
        return tuple(self.price(down, right) for down, right in self.offsets)

    @cached_property
    def shells(self) -> tuple[tuple[float, tuple[int, ...]], ...]:
        """The distinct costs, cheapest first, each with its offsets: 6 for the 25 moves of a 5×5 window."""
        groups: dict[float, list[int]] = {}
        for k, price in enumerate(self.prices):
            groups.setdefault(price, []).append(k)
        return tuple((price, tuple(groups[price])) for price in sorted(groups))

    def price(self, down: int, right: int) -> float:
        """The cost of one unit moved by ``(down, right)``, also beyond the window."""
        if self.metric == "euclidean":
            # The squared distance is a whole number: equal distances get equal prices, bit for bit.
            return float((down * down + right * right) ** (self.power / 2))
        distance = abs(down) + abs(right) if self.metric == "l1" else max(abs(down), abs(right))
        return float(distance**self.power)

    @property
    def is_metric(self) -> bool:
        return self.power == 1

    def check_mass(self, name: str, mass: Tensor) -> None:
        if mass.ndim != 4:
            raise ValueError(f"{name} must have shape (B, C, H, W) for {self}, got {tuple(mass.shape)}")

    def plan_shape(self, mass: Tensor) -> tuple[int, ...]:
        return (mass.shape[0], len(self.offsets), *mass.shape[1:])

    def entries(self, mass: Tensor) -> tuple[Tensor, Tensor]:
        return _local_entries(self, mass.shape[2], mass.shape[3], mass.device)

    def gather(self, image: Tensor) -> Tensor:
        reach = self.window // 2
        windows = F.pad(image, (reach, reach, reach, reach)).unfold(2, self.window, 1).unfold(3, self.window, 1)
        return windows.permute(0, 4, 5, 1, 2, 3).reshape(self.plan_shape(image))

    def scatter(self, plan: Tensor) -> Tensor:
        return self.scatter_slices(plan.shape[1], lambda k: plan[:, k])

    def scatter_slices(self, count: int, entries: Callable[[int], Tensor]) -> Tensor:
        reach = self.window // 2
        first = entries(0)
        *outer, height, width = first.shape
        canvas = first.new_zeros((*outer, height + 2 * reach, width + 2 * reach))
        for k, (down, right) in enumerate(self.offsets[:count]):
            canvas[..., reach + down : reach + down + height, reach + right : reach + right + width] += (
                first if k == 0 else entries(k)
            )
        return canvas[..., reach : reach + height, reach : reach + width].contiguous()

    def diagonal(self, plan: Tensor) -> Tensor:
        return plan[:, len(self.offsets) // 2]

    def home(self, mass: Tensor) -> Tensor:
        return torch.full_like(mass, len(self.offsets) // 2, dtype=torch.int64)


def check_cost(cost: object) -> None:
    """Raise ``ValueError`` for anything but a cost."""
    if not isinstance(cost, Cost):
        raise ValueError(f"cost must be a LocalCost or a DenseCost, got {cost!r}")


def check_mass(mass: Tensor, cost: Cost, bounds: tuple[float, float] | None, ranges: Ranges) -> None:
    """Raise ``ValueError`` where this is no mass for this cost; ``ranges`` looks at its values."""
    check_cost(cost)
    check_floating("mass", mass)
    cost.check_mass("mass", mass)
    ranges.ask("mass", mass, 0, math.inf if bounds is None else check_bounds(bounds))


@lru_cache(maxsize=32)
def _local_entries(cost: LocalCost, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows = torch.arange(height, device=device).view(1, 1, height, 1)
    columns = torch.arange(width, device=device).view(1, 1, 1, width)
    down, right = (torch.tensor(moves, device=device).view(-1, 1, 1, 1) for moves in zip(*cost.offsets, strict=True))
    allowed = (rows + down >= 0) & (rows + down < height) & (columns + right >= 0) & (columns + right < width)
    prices = torch.tensor(cost.prices, dtype=torch.float64, device=device).view(-1, 1, 1, 1)
    return prices, allowed


@dataclass(frozen=True, eq=False, repr=False)
class DenseCost(Cost):
    """Mass moves between any two of ``n`` points: ``matrix[i, j]`` is the price from i to j, ``inf`` forbids the move.

    The price is 0 exactly on the diagonal and positive elsewhere; it need not be symmetric. Mass has the shape
    ``(B, n)``, or ``(B, C, n)`` for C channels that share one budget; plans are ``(B, n, n)`` or ``(B, C, n, n)``.

    >>> wb.DenseCost(torch.tensor([[0, 1.0, 2], [1, 0, 1], [2, 1, 0]])).is_metric
    True
    """

    matrix: Tensor
    """The prices, ``(n, n)``; kept in float64."""
    axis: int = field(default=-1, init=False, repr=False)
    space: tuple[int, ...] = field(default=(-1,), init=False, repr=False)

    def __post_init__(self) -> None:
        matrix = self.matrix
        if not isinstance(matrix, Tensor):
            raise ValueError(f"matrix must be a torch.Tensor, got {type(matrix).__name__}")
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.numel() == 0:
            raise ValueError(f"matrix must be square and not empty, got shape {tuple(matrix.shape)}")
        check_real("matrix", matrix)
        matrix = matrix.detach().to(torch.float64, copy=True)
        off_diagonal = ~torch.eye(matrix.shape[0], dtype=torch.bool, device=matrix.device)
        for bad, wanted in (
            (torch.isnan(matrix), "not NaN"),
            (matrix < 0, ">= 0"),
            ((matrix != 0) & ~off_diagonal, "0 on the diagonal"),
            ((matrix == 0) & off_diagonal, "> 0 off the diagonal"),
        ):
            if bad.any():
                i, j = bad.nonzero()[0].tolist()
                raise ValueError(f"matrix must be {wanted}: entry ({i}, {j}) is {matrix[i, j].item()!r}")
        object.__setattr__(self, "matrix", matrix)

    def __repr__(self) -> str:
        return f"DenseCost({self.matrix.shape[0]} points)"

    @cached_property
    def is_metric(self) -> bool:
        matrix = self.matrix.cpu()
        if not torch.equal(matrix, matrix.T):
            return False
        slack = 1e-12 * matrix.clamp(max=torch.finfo(matrix.dtype).max)
        return all(bool((matrix <= row[:, None] + row[None, :] + slack).all()) for row in matrix)

    def check_mass(self, name: str, mass: Tensor) -> None:
        n = self.matrix.shape[0]
        if mass.ndim not in (2, 3) or mass.shape[-1] != n:
            raise ValueError(
                f"{name} must have shape (B, {n}) or (B, C, {n}) for a cost of {n} points, got {tuple(mass.shape)}"
            )

    def plan_shape(self, mass: Tensor) -> tuple[int, ...]:
        return (*mass.shape, mass.shape[-1])

    def entries(self, mass: Tensor) -> tuple[Tensor, Tensor]:
        matrix = self.matrix.to(mass.device)
        allowed = torch.isfinite(matrix)
        return torch.where(allowed, matrix, 0.0), allowed

    def gather(self, image: Tensor) -> Tensor:
        return image.unsqueeze(-2)

    def scatter(self, plan: Tensor) -> Tensor:
        return ordered_sum(plan, -2)

    def diagonal(self, plan: Tensor) -> Tensor:
        return plan.diagonal(dim1=-2, dim2=-1)

    def home(self, mass: Tensor) -> Tensor:
        return torch.arange(mass.shape[-1], device=mass.device).expand(mass.shape).clone()


@dataclass(frozen=True, eq=False)
class WassersteinBall:
    """All that can be reached from ``mass`` at a cost of at most ``eps`` times its total: ``{Πᵀ1 : Π1 = mass, Π ≥ 0,
    <C, Π> ≤ eps·Σ mass}``, and, where ``bounds=(0, high)`` is given, no pixel above ``high``.

    One budget holds for all channels of a sample together; mass never leaves its channel.

    >>> ball = wb.WassersteinBall(torch.full((2, 1, 4, 4), 0.5), eps=0.1)
    >>> ball.total, ball.budget
    (tensor([8., 8.], dtype=torch.float64), tensor([0.8000, 0.8000], dtype=torch.float64))
    """

    mass: Tensor
    """The clean samples, ``(B, C, H, W)`` for images."""
    eps: float | Tensor
    """The radius relative to the mass, one for all samples or one for each."""
    cost: Cost = field(default_factory=LocalCost)
    """What moving mass costs."""
    bounds: tuple[float, float] | None = None
    """The pixel box, if there is one."""

    def __post_init__(self) -> None:
        ranges = Ranges()
        check_mass(self.mass, self.cost, self.bounds, ranges)
        ranges.check()
        object.__setattr__(self, "eps", check_per_sample("eps", self.eps, self.mass))

    @cached_property
    def total(self) -> Tensor:
        """The mass of each sample, ``(B,)`` in float64."""
        return sample_sum(self.mass.double())

    @cached_property
    def budget(self) -> Tensor:
        """``δ = eps · Σ mass`` of each sample, ``(B,)`` in float64."""
        return self.eps * self.total
