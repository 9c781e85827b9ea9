"""What a person sees of a training while it lasts: a table of the epochs so far, loss, time left."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wasserball.train.history import COLLAPSED, Epoch, best_of
from wasserball.train.setting import Setting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PAUSE = 30.0
"""Seconds between two lines where there is no terminal to draw in."""
ROWS = 12
"""Epochs in the table of a training that goes on; the best one is always there."""


class Watch:
    """Told of the work as it goes on; says nothing."""

    def step(self, epoch: int, step: int, loss: float) -> None:
        """A step is done, and this is the mean loss of the epoch so far."""

    def finish(self, record: Epoch) -> None:
        """An epoch is done, now or in an earlier run."""


def make_table(history: Sequence[Epoch], most: int | None = None) -> "Table":
    """The epochs, or the best and the last of them, the best in bold."""
    from rich.table import Table

    best = best_of(history) if history else None
    caption = "in bold the epoch whose weights are kept"
    table = Table(title="On the held-out images", caption=caption if history else None)
    for heading in ("epoch", "radius", "loss", "clean accuracy", "robust accuracy", "seconds"):
        table.add_column(heading, justify="right")
    late = history if most is None else history[-most:]
    for record in [record for record in (best,) if record and record not in late] + list(late):
        table.add_row(
            str(record.epoch),
            f"{record.radius:.3g}",
            f"{record.loss:.3f}",
            f"{record.clean_accuracy:.1%}",
            f"{record.robust_accuracy:.1%}",
            f"{record.seconds:.0f}",
            style="bold" if record == best else "yellow" if record.collapsed else None,
        )
    return table


class _Speaker(Watch):
    def __init__(self, setting: Setting, console: "Console") -> None:
        self.setting, self.console = setting, console
        self.done = 0
        self.history: list[Epoch] = []

    def step(self, epoch: int, step: int, loss: float) -> None:
        self.done = (epoch - 1) * self.setting.steps + step

    def finish(self, record: Epoch) -> None:
        self.done = record.epoch * self.setting.steps
        self.history.append(record)
        if record.collapsed:
            self.console.print(f"[yellow]epoch {record.epoch}: {COLLAPSED}")

    @property
    def total(self) -> int:
        return self.setting.epochs * self.setting.steps


class _Live(_Speaker):
    """A table that grows and a bar below it."""

    def __init__(self, setting: Setting, console: "Console") -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(setting, console)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, speed_estimate_period=600)
        self.task = self.bar.add_task("…", total=self.total)
        self.live = Live(self.bar, console=console, refresh_per_second=4, transient=True)

    def step(self, epoch: int, step: int, loss: float) -> None:
        super().step(epoch, step, loss)
        words = f"epoch {epoch}/{self.setting.epochs} · loss {loss:.3f}"
        self.bar.update(self.task, completed=self.done, description=words)

    def finish(self, record: Epoch) -> None:
        from rich.console import Group

        super().finish(record)
        self.bar.update(self.task, completed=self.done)
        self.live.update(Group(make_table(self.history, ROWS), self.bar))


class _Lines(_Speaker):
    def __init__(self, setting: Setting, console: "Console") -> None:
        super().__init__(setting, console)
        self.spoke = time.perf_counter()

    def step(self, epoch: int, step: int, loss: float) -> None:
        super().step(epoch, step, loss)
        if time.perf_counter() - self.spoke > PAUSE:
            self._say(epoch, loss)

    def finish(self, record: Epoch) -> None:
        super().finish(record)
        self._say(record.epoch, record.loss, f" · {record.seconds:.0f} s")

    def _say(self, epoch: int, loss: float, more: str = "") -> None:
        self.spoke = time.perf_counter()
        words = f"step {self.done}/{self.total} · epoch {epoch}/{self.setting.epochs} · loss {loss:.3f}"
        if self.history:
            last = self.history[-1]
            words += f" · held out {last.clean_accuracy:.1%} clean, {last.robust_accuracy:.1%} robust"
        self.console.print(words + more, soft_wrap=True, highlight=False)


@contextmanager
def watching(setting: Setting, shown: bool) -> Iterator[Watch]:
    """A table and a bar on the terminal, lines in a log, or nothing."""
    if not shown:
        yield Watch()
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(setting, console)
        return
    live = _Live(setting, console)
    with live.live:
        yield live
