"""What a person sees of a run while it lasts: images a second, accuracy so far, time left."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wasserball.evaluate.setting import Unit

if TYPE_CHECKING:
    from rich.console import Console

PAUSE = 30.0
"""Seconds between two lines where there is no terminal to draw a bar in."""


class Watch:
    """Told of the work as it goes on; says nothing."""

    def __init__(self) -> None:
        self.held: Counter[tuple[str, float]] = Counter()
        self.tried: Counter[tuple[str, float]] = Counter()
        self.finished = 0

    def count(self, unit: Unit, held: int) -> None:
        """A unit that is done, now or in an earlier run, and how many of its samples hold."""
        self.held[unit.attack, unit.eps] += held
        self.tried[unit.attack, unit.eps] += unit.last - unit.first

    def advance(self, unit: Unit, share: float, holding: int) -> None:
        """How far the unit at hand is, and how many of its samples hold so far."""

    def finish(self, unit: Unit, held: int) -> None:
        """The unit at hand is done."""
        self.count(unit, held)
        self.finished += unit.last - unit.first

    def line(self, unit: Unit) -> str:
        """The accuracy so far."""
        key = unit.attack, unit.eps
        known = f"{self.held[key] / self.tried[key]:.1%} of {self.tried[key]} hold" if self.tried[key] else "…"
        return f"{unit.attack}, eps {unit.eps:g}: {known}"


class _Bar(Watch):
    def __init__(self, total: int, console: "Console") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__()
        self.started = time.perf_counter()
        rate = TextColumn("{task.fields[rate]:.1f} images/s")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, speed_estimate_period=600)
        self.task = self.bar.add_task("…", total=total, rate=0.0)

    def advance(self, unit: Unit, share: float, holding: int) -> None:
        size = unit.last - unit.first
        done = self.finished + share * size
        rate = done / (time.perf_counter() - self.started)
        words = f"{self.line(unit)} · {holding} of this batch"
        self.bar.update(self.task, completed=round(done), rate=rate, description=words)

    def finish(self, unit: Unit, held: int) -> None:
        super().finish(unit, held)
        rate = self.finished / (time.perf_counter() - self.started)
        self.bar.update(self.task, completed=self.finished, rate=rate, description=self.line(unit))


class _Lines(Watch):
    def __init__(self, total: int, console: "Console") -> None:
        super().__init__()
        self.total, self.console = total, console
        self.started = self.spoke = time.perf_counter()

    def finish(self, unit: Unit, held: int) -> None:
        super().finish(unit, held)
        now = time.perf_counter()
        if now - self.spoke > PAUSE or self.finished == self.total:
            self.spoke, rate = now, self.finished / (now - self.started)
            left = (self.total - self.finished) / rate
            self.console.print(
                f"{self.finished}/{self.total} images · {rate:.1f} images/s · {left:.0f} s left · {self.line(unit)}",
                soft_wrap=True,
            )


@contextmanager
def watching(mine: list[Unit], shown: bool) -> Iterator[Watch]:
    """A bar on the terminal, lines in a log, or nothing, for the units that this process is to do."""
    if not shown:
        yield Watch()
        return
    from rich.console import Console

    console = Console(stderr=True)
    total = sum(unit.last - unit.first for unit in mine)
    if not console.is_terminal:
        yield _Lines(total, console)
        return
    bar = _Bar(total, console)
    with bar.bar:
        yield bar


@contextmanager
def checking(shown: bool) -> Iterator[None]:
    """A word on the terminal that the work is done and is being looked at."""
    if not shown:
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("Health checks: a few more attacks, and the report"):
        yield
