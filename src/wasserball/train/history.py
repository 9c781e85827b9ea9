"""What became of a training: a record of each epoch, and which of them was the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from wasserball.zoo.weights import load_weights, put_weights


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One line of ``metrics.jsonl``."""

    epoch: int
    """From 1."""
    loss: float
    """What was minimised, over the training samples."""
    train_robust_accuracy: float
    """The share of the training samples on which the attack of the training failed, with the radius of the time."""
    clean_accuracy: float
    """On the held-out samples, as the next two are."""
    robust_accuracy: float
    """Under the judge's attack, always with the full radius."""
    collapsed: bool
    """Whether the model is right no more often than if it gave one and the same answer to everything."""
    radius: float
    """With which the epoch ended."""
    rate: float
    seconds: float


@dataclass(frozen=True)
class Training:
    """A finished training."""

    folder: Path
    history: tuple[Epoch, ...]

    @property
    def best(self) -> Epoch:
        """The epoch whose weights were kept."""
        return best_of(self.history)

    @property
    def weights(self) -> Path:
        """The file of the best weights, for :func:`zoo.load_model`."""
        return self.folder / "best.safetensors"

    def load_best(self, model: nn.Module) -> None:
        """Put the best weights into the model, which after training holds the last ones."""
        put_weights(model, load_weights(self.weights), name=type(model).__name__, file=self.weights)


def best_of(history: Sequence[Epoch]) -> Epoch:
    """The most robust one; of several, the one with the highest clean accuracy, and of those the first."""
    return max(history, key=lambda record: (record.robust_accuracy, record.clean_accuracy))
