"""What a person sees of a training while it lasts: epoch, loss, accuracies so far, time left."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wasserball.train.history import Epoch
from wasserball.train.setting import Setting

if TYPE_CHECKING:
    from rich.console import Console

PAUSE = 30.0
"""Seconds between two lines where there is no terminal to draw a bar in."""
COLLAPSED = "the model has collapsed: it is right no more often than one answer to everything would be"


class Watch:
    """Told of the work as it goes on; says nothing."""

    def step(self, epoch: int, step: int, loss: float) -> None:
        """A step is done, and this is the mean loss of the epoch so far."""

    def finish(self, record: Epoch) -> None:
        """An epoch is done, now or in an earlier run."""


class _Speaker(Watch):
    def __init__(self, setting: Setting, console: "Console") -> None:
        self.setting, self.console = setting, console
        self.done = 0
        self.last: Epoch | None = None

    def step(self, epoch: int, step: int, loss: float) -> None:
        self.done = (epoch - 1) * self.setting.steps + step

    def finish(self, record: Epoch) -> None:
        self.done = record.epoch * self.setting.steps
        self.last = record
        if record.collapsed:
            self.console.print(f"[yellow]epoch {record.epoch}: {COLLAPSED}")

    @property
    def total(self) -> int:
        return self.setting.epochs * self.setting.steps

    def line(self, epoch: int, loss: float) -> str:
        words = f"epoch {epoch}/{self.setting.epochs} · loss {loss:.3f}"
        if self.last is None:
            return words
        return f"{words} · held out {self.last.clean_accuracy:.1%} clean, {self.last.robust_accuracy:.1%} robust"


class _Bar(_Speaker):
    def __init__(self, setting: Setting, console: "Console") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(setting, console)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, speed_estimate_period=600)
        self.task = self.bar.add_task("…", total=self.total)

    def step(self, epoch: int, step: int, loss: float) -> None:
        super().step(epoch, step, loss)
        self.bar.update(self.task, completed=self.done, description=self.line(epoch, loss))

    def finish(self, record: Epoch) -> None:
        super().finish(record)
        self.bar.update(self.task, completed=self.done, description=self.line(record.epoch, record.loss))


class _Lines(_Speaker):
    def __init__(self, setting: Setting, console: "Console") -> None:
        super().__init__(setting, console)
        self.spoke = time.perf_counter()

    def step(self, epoch: int, step: int, loss: float) -> None:
        super().step(epoch, step, loss)
        if time.perf_counter() - self.spoke > PAUSE:
            self._say(self.line(epoch, loss))

    def finish(self, record: Epoch) -> None:
        super().finish(record)
        self._say(f"{self.line(record.epoch, record.loss)} · {record.seconds:.0f} s")

    def _say(self, words: str) -> None:
        self.spoke = time.perf_counter()
        self.console.print(f"step {self.done}/{self.total} · {words}", soft_wrap=True, highlight=False)


@contextmanager
def watching(setting: Setting, shown: bool) -> Iterator[Watch]:
    """A bar on the terminal, lines in a log, or nothing."""
    if not shown:
        yield Watch()
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(setting, console)
        return
    bar = _Bar(setting, console)
    with bar.bar:
        yield bar
