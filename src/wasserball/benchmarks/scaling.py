"""How the time of the operators grows with the pixels of an image, with the window and with the batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import wasserball.operators as ops
from wasserball.benchmarks.meter import Meter
from wasserball.benchmarks.problem import STEP, Problem, make_problem

EPS = 0.005
WINDOWS = (3, 5, 7, 9)


@dataclass(frozen=True)
class Ladder:
    """The sizes to climb, for one kind of device."""

    sides: tuple[int, ...]
    batch: int
    window_side: int
    batches: tuple[int, ...]
    batch_side: int


LADDERS = {
    "cpu": Ladder((28, 64, 128, 256, 512), 2, 128, (1, 2, 4, 8, 16, 32), 64),
    "cuda": Ladder((28, 64, 128, 256, 512), 8, 256, (1, 4, 16, 64, 256), 64),
}
QUICK = Ladder((6, 8, 10), 1, 8, (1, 2, 4), 8)


@dataclass(frozen=True)
class ScalingRow:
    """The times of one operator along one axis."""

    axis: str
    """``"pixels"``, ``"window"`` (its side) or ``"batch"``."""
    operator: str
    where: str
    """What was held fixed."""
    sizes: tuple[int, ...]
    milliseconds: tuple[float, ...]
    slope: float
    """Of the logarithms, by least squares: 1 is linear."""

    def ratio(self, larger: int, smaller: int) -> float:
        """The time at one size over that at another."""
        times = dict(zip(self.sizes, self.milliseconds, strict=True))
        return times[larger] / times[smaller]


def measure_scaling(meter: Meter, say: Callable[[str], None], *, quick: bool = False) -> Iterator[ScalingRow]:
    """All operators along all three axes, row by row."""
    ladder = QUICK if quick else LADDERS[meter.device.type]
    side, pixels = ladder.window_side, tuple(side**2 for side in ladder.sides)
    shapes = [(ladder.batch, side) for side in ladder.sides]
    yield from _climb(meter, say, "pixels", pixels, shapes, f"window 5, batch {ladder.batch}")
    where = f"{side}×{side}, batch {ladder.batch}"
    yield from _climb(meter, say, "window", WINDOWS, [(ladder.batch, side)] * len(WINDOWS), where, windows=WINDOWS)
    shapes = [(batch, ladder.batch_side) for batch in ladder.batches]
    where = f"{ladder.batch_side}×{ladder.batch_side}, window 5"
    yield from _climb(meter, say, "batch", ladder.batches, shapes, where)


def _climb(
    meter: Meter,
    say: Callable[[str], None],
    axis: str,
    sizes: tuple[int, ...],
    shapes: Sequence[tuple[int, int]],
    where: str,
    windows: Sequence[int] | None = None,
) -> Iterator[ScalingRow]:
    times: dict[str, list[float]] = {}
    for size, (batch, side), window in zip(sizes, shapes, windows or [5] * len(sizes), strict=True):
        say(f"scaling, {axis} {size}")
        operators = _operators(make_problem((batch, 1, side, side), EPS, meter.device, window))
        for name, (took, _) in zip(operators, meter.race(*operators.values()), strict=True):
            times.setdefault(name, []).append(took)
    for name, seen in times.items():
        yield ScalingRow(axis, name, where, sizes, tuple(seen), slope(sizes, seen))


def _operators(p: Problem) -> dict[str, Callable[[], ops.Solution]]:
    step, room = (p.plan, p.gradient, STEP, p.mass, p.budget, p.cost), torch.empty_like(p.plan)
    return {
        "project_step, cold": lambda: ops.project_step(*step, out=room, validate=False),
        "box_step, warm": lambda: ops.box_step(*step, lam=p.lam, mu=p.mu, out=room, validate=False),
        "linear_minimizer, exact": lambda: ops.linear_minimizer(p.gradient, p.mass, p.budget, p.cost),
    }


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The exponent of the power law that fits best, in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
