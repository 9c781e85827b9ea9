"""The same figures as in ``metrics.jsonl`` for TensorBoard, where that is installed."""

from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wasserball.train.history import Epoch


class Board:
    """Writes to ``tensorboard/`` in the folder of a training, or nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def note(self, record: Epoch) -> None:
        """An epoch is done."""
        if self._writer is not None:
            for name, value in asdict(record).items():
                if name != "epoch":
                    self._writer.add_scalar(name, float(value), record.epoch)
            self._writer.flush()

    def __enter__(self) -> Self:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return self
        self._writer = SummaryWriter(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
