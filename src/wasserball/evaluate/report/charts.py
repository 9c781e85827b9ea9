"""Where things are in the charts of the page; its template draws them as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wasserball.evaluate.report.verdict import Share, percent

SIZES = ((720, 380), (358, 320))
"""Width and height of a chart on a desk and on a phone. Both are in the page, so that letters keep their size."""
LEFT, RIGHT, TOP, BOTTOM = 44.0, 18.0, 22.0, 42.0
BINS = 24
LABEL_WIDTH, LABEL_HEIGHT = 30.0, 13.0


class Point(NamedTuple):
    """An accuracy at a radius, as a share; ``low`` and ``high`` are those of its interval, where it has one."""

    eps: float
    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, eps: float, share: Share) -> "Point":
        """With its interval."""
        return cls(eps, *share)


@dataclass(frozen=True)
class Line:
    """A line of a chart of accuracy against radius."""

    name: str
    style: str
    """CSS classes: its colour and dashes."""
    marker: int
    """Which of the shapes of the template marks its points, so that colour is never alone."""
    points: tuple[Point, ...]
    clean: str = "clean"
    """What its point at radius 0 is called, which all lines of a model share."""


class Mark(NamedTuple):
    """Something to point at, and what is said then."""

    x: float
    y: float
    tip: str


class Label(NamedTuple):
    """A number beside a point, in the colour of its line."""

    x: float
    y: float
    text: str
    style: str


class Tick(NamedTuple):
    """On an axis."""

    at: float
    text: str


class Bar(NamedTuple):
    """Of a histogram."""

    x: float
    y: float
    width: float
    height: float
    tip: str


@dataclass(frozen=True)
class Drawn:
    """A line with its coordinates."""

    line: Line
    path: str
    band: str
    """Empty where there is no interval."""
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Chart:
    """A chart with its coordinates."""

    width: float
    height: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Drawn, ...] = ()
    labels: tuple[Label, ...] = ()
    bars: tuple[Bar, ...] = ()
    left = LEFT
    top = TOP

    @property
    def right(self) -> float:
        """Where the x axis ends."""
        return self.width - RIGHT

    @property
    def bottom(self) -> float:
        """Where the y axis begins."""
        return self.height - BOTTOM


def curve(lines: Sequence[Line], radii: Sequence[float], width: float, height: float) -> Chart:
    """Accuracy against radius, from 0 to the largest of ``radii``."""
    largest = max(radii) or 1.0
    right, bottom = width - RIGHT, height - BOTTOM

    def place(eps: float, share: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * eps / largest, bottom - (bottom - TOP) * share

    drawn = []
    for line in lines:
        spots = [place(point.eps, point.value) for point in line.points]
        upper = [place(point.eps, point.high) for point in line.points if point.high is not None]
        lower = [place(point.eps, point.low) for point in line.points if point.low is not None]
        tips = [_tip(line, point) for point in line.points]
        marks = tuple(Mark(*spot, tip) for spot, tip in zip(spots, tips, strict=True))
        drawn.append(Drawn(line, _path(spots), _path(upper + lower[::-1]), marks))
    return Chart(
        width,
        height,
        x_ticks=_thin([Tick(place(eps, 0)[0], f"{eps:g}") for eps in sorted({0.0, *radii, largest})]),
        y_ticks=tuple(Tick(place(0, share / 100)[1], str(share)) for share in (0, 25, 50, 75, 100)),
        lines=tuple(drawn),
        labels=tuple(_labels(drawn, right, bottom)),
    )


def histogram(distances: npt.NDArray[np.float64], eps: float, width: float, height: float) -> Chart:
    """How many of ``distances`` lie where between 0 and ``eps`` (or beyond it, where an attack goes there)."""
    most = max(eps, float(distances.max(initial=0.0))) or 1.0
    counts, edges = np.histogram(distances, BINS, (0.0, most))
    right, bottom = width - RIGHT, height - BOTTOM
    step = _nice(max(1, int(counts.max())))
    ceiling = step * math.ceil(max(1, int(counts.max())) / step)
    bar = (right - LEFT) / BINS
    bars = []
    for number, count in enumerate(counts.tolist()):
        tall = (bottom - TOP) * count / ceiling
        span = f"{edges[number]:.3g} to {edges[number + 1]:.3g}"
        words = f"{count:,} image{'s' * (count != 1)} at a distance of {span}"
        bars.append(Bar(LEFT + number * bar, bottom - tall, bar - 1.5, tall, words))
    ticks = [Tick(LEFT + (right - LEFT) * share, f"{share * most:.3g}") for share in (0, 0.25, 0.5, 0.75, 1)]
    levels = range(0, ceiling + 1, step)
    return Chart(
        width,
        height,
        x_ticks=tuple(ticks),
        y_ticks=tuple(Tick(bottom - (bottom - TOP) * level / ceiling, f"{level:,}") for level in levels),
        bars=tuple(bars),
    )


def _tip(line: Line, point: Point) -> str:
    interval = "" if point.low is None or point.high is None else f" {Share(*point[1:]).interval}"  # type: ignore[arg-type]
    where = f"{line.name}, eps {point.eps:g}" if point.eps else line.clean
    return f"{where}: {percent(point.value)}{interval}"


def _path(spots: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots) if spots else ""


def _thin(ticks: Sequence[Tick], room: float = 36.0) -> tuple[Tick, ...]:
    """The first, the last, and of those between them what lies on no other."""
    first, *between, last = ticks
    kept = [last]
    for tick in reversed(between):
        if kept[-1].at - tick.at >= room and tick.at - first.at >= room:
            kept.append(tick)
    return (first, *reversed(kept))


def _nice(most: int) -> int:
    """The smallest step of 1, 2 or 5 times a power of ten that leads to ``most`` in at most five."""
    power = 1
    while most > 25 * power:
        power *= 10
    return next(factor * power for factor in (1, 2, 5) if most <= 5 * factor * power)


def _labels(drawn: Sequence[Drawn], right: float, bottom: float) -> list[Label]:
    """Numbers beside the points, where there is room; the last line's first, since it is what matters most."""
    ours = [line for line in drawn if line.band]
    taken = [(mark.x - 4, mark.y - 4, mark.x + 4, mark.y + 4) for line in ours for mark in line.marks]
    labels: list[Label] = []
    seen = set()
    for line in reversed(ours):
        for mark, point in zip(line.marks, line.line.points, strict=True):
            text = f"{100 * point.value:.1f}"
            middle = min(max(mark.x, LEFT + LABEL_WIDTH / 2 + 2), right - LABEL_WIDTH / 2 + RIGHT - 2)
            beside = mark.x + LABEL_WIDTH / 2 + 6
            for x, y in ((middle, mark.y + 18), (middle, mark.y - 9), (beside, mark.y + 4), (beside, mark.y - 5)):
                box = (x - LABEL_WIDTH / 2, y - LABEL_HEIGHT + 3, x + LABEL_WIDTH / 2, y + 2)
                free = all(box[2] <= a or c <= box[0] or box[3] <= b or d <= box[1] for a, b, c, d in taken)
                inside = box[1] >= TOP - 8 and box[2] <= right + RIGHT and box[3] <= bottom + 8
                if free and inside and (point.eps, text) not in seen:
                    seen.add((point.eps, text))
                    taken.append(box)
                    labels.append(Label(x, y, text, line.line.style))
                    break
    return labels
