"""The points between which mass moves, straight from the definition of a cost: prices, destinations, neighbourhoods."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from wasserball.threat import DenseCost, LocalCost

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


class Space(ABC):
    """``size`` numbered points; a sample is an array ``(C, size)``, a plan ``(K, C, size)`` with K moves from each."""

    cost: LocalCost | DenseCost
    size: int
    count: int
    """K: how many moves there are from a point."""
    farthest: float
    """The highest price between two points, ``inf`` where a move is forbidden."""
    dearest: float
    """The highest price of an allowed move."""

    @abstractmethod
    def moves(self, plan: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """A plan in the layout of the cost, as ``(K, C, size)``."""

    @abstractmethod
    def target(self, move: Indices, source: Indices) -> Indices:
        """Where each move from its source goes; ``size`` where that lies outside."""

    @abstractmethod
    def price(self, source: Indices, target: Indices) -> Floats:
        """The price from each source to its target, ``inf`` where the move is forbidden."""

    @abstractmethod
    def cells(self, values: Floats) -> Iterator[tuple[Floats, float]]:
        """The sums of ``values`` over larger and larger cells, the last as large as the space, and the most that a plan
        can come to cost in addition when one unit of mass ends at another point of the same cell."""

    @abstractmethod
    def cheapest(self, sources: Indices, targets: Indices, count: int) -> tuple[Indices, Indices]:
        """About ``count`` of the cheapest pairs, as positions in ``sources`` and ``targets``."""

    def noise_price(self, values: Floats) -> float:
        """The most it costs to move mass until ``values`` are evened out, but for their total.

        What cancels in a cell is moved within that cell, what is left within a larger one.
        """
        return self._evening_price(values, np.abs)[0]

    def random_noise_price(self, variances: Floats) -> float:
        """The same for independent random values of these variances, by the standard deviation of each cell's sum.

        Whatever is left of their total is charged too: chance may as well have made it 0.
        """
        bill, left, price = self._evening_price(variances, np.sqrt)
        return bill + price * left / 2

    def _evening_price(self, values: Floats, magnitude: Callable[[Floats], Floats]) -> tuple[float, float, float]:
        """The bill, the mass that is left of the total, and the highest price on the bill."""
        bill, left, price = 0.0, float(magnitude(values).sum()), 0.0
        for sums, price in self.cells(values):
            remaining = float(magnitude(sums).sum())
            bill += price * (left - remaining) / 2  # each unit that moves evens out one that is over and one that lacks
            left = remaining
        return bill, left, price


class Grid(Space):
    """The pixels of an image, row by row, under a :class:`LocalCost`."""

    def __init__(self, cost: LocalCost, height: int, width: int) -> None:
        self.cost: LocalCost = cost
        self.height, self.width = height, width
        self.size = height * width
        self.farthest = self.dearest = float(self._offset_price(height - 1, width - 1))
        self.count = cost.window**2

    def _offset_price(self, down: Indices | int, right: Indices | int) -> Floats:
        distance = {"euclidean": np.hypot, "l1": np.add, "linf": np.maximum}[self.cost.metric]
        return np.asarray(distance(np.abs(down), np.abs(right)) ** float(self.cost.power))

    def target(self, move: Indices, source: Indices) -> Indices:
        down, right = np.divmod(move, self.cost.window)
        return self._shift(source, down - self.cost.window // 2, right - self.cost.window // 2)

    def _shift(self, pixels: Indices, down: Indices | int, right: Indices | int) -> Indices:
        row, column = pixels // self.width + down, pixels % self.width + right
        inside = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
        return np.where(inside, row * self.width + column, self.size)

    def moves(self, plan: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        return plan.reshape(len(plan), -1, self.size)

    def price(self, source: Indices, target: Indices) -> Floats:
        return self._offset_price(
            source // self.width - target // self.width, source % self.width - target % self.width
        )

    def cells(self, values: Floats) -> Iterator[tuple[Floats, float]]:
        # In a metric, a new end of a move costs at most its distance from the old end. Otherwise the whole move has to
        # be charged again, from a source that is up to half a window away.
        detour = 0 if self.cost.is_metric else self.cost.window // 2
        sums, side = values.reshape(-1, self.height, self.width), 1
        while side < max(self.height, self.width):
            side *= 2
            sums = np.pad(sums, ((0, 0), (0, sums.shape[1] % 2), (0, sums.shape[2] % 2)))
            sums = sums[:, ::2, ::2] + sums[:, 1::2, ::2] + sums[:, ::2, 1::2] + sums[:, 1::2, 1::2]
            reach = side - 1 + detour
            yield sums, float(self._offset_price(min(reach, self.height - 1), min(reach, self.width - 1)))

    def cheapest(self, sources: Indices, targets: Indices, count: int) -> tuple[Indices, Indices]:
        position = np.full(self.size + 1, -1)
        position[targets] = np.arange(targets.size)
        down, right = np.mgrid[1 - self.height : self.height, 1 - self.width : self.width].reshape(2, -1)
        starts, ends = [], []
        for k in np.argsort(self._offset_price(down, right), kind="stable"):
            end = position[self._shift(sources, down[k], right[k])]
            starts.append(np.flatnonzero(end >= 0))
            ends.append(end[starts[-1]])
            count -= ends[-1].size
            if count <= 0:
                break
        return np.concatenate(starts), np.concatenate(ends)


class Points(Space):
    """The points of a :class:`DenseCost`.

    One cell holds them all: noise is charged at the highest price. Where moves are forbidden, at the highest of the
    others, since rounding does not keep mass exactly on its side of a border.
    """

    def __init__(self, cost: DenseCost) -> None:
        self.cost = cost
        self.matrix: Floats = cost.matrix.cpu().numpy()
        self.size = len(self.matrix)
        self.farthest = float(self.matrix.max())
        self.dearest = float(self.matrix.max(where=np.isfinite(self.matrix), initial=0.0))
        self.count = self.size

    def target(self, move: Indices, source: Indices) -> Indices:
        return move

    def moves(self, plan: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        return np.moveaxis(plan, -1, 0).reshape(self.size, -1, self.size)

    def price(self, source: Indices, target: Indices) -> Floats:
        return self.matrix[source, target]

    def cells(self, values: Floats) -> Iterator[tuple[Floats, float]]:
        yield values.sum(-1, keepdims=True), self.dearest

    def cheapest(self, sources: Indices, targets: Indices, count: int) -> tuple[Indices, Indices]:
        order = np.argpartition(self.price(sources[:, None], targets), count, axis=None)[:count]
        starts, ends = np.divmod(order, targets.size)
        return starts, ends
