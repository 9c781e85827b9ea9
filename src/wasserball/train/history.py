"""What became of a training: a record of each epoch, which of them was the best, and why there are no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from wasserball.zoo.weights import load_weights, put_weights

COLLAPSED = "the model has collapsed: it is right no more often than one answer to everything would be"
COLLAPSE = 5
"""Epochs with the full radius in a row, after which there is no hope."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One line of ``metrics.jsonl``."""

    epoch: int
    """From 1."""
    loss: float
    """What was minimised, over the training samples."""
    train_robust_accuracy: float
    """The share of the training samples on which the model was right when it was trained on what the attack had made
    of them."""
    clean_accuracy: float
    """On the held-out samples, as the next two are."""
    robust_accuracy: float
    """Under the judge's attack, with the same radius after each epoch."""
    collapsed: bool
    """Whether the model is right no more often than if it gave one and the same answer to everything."""
    radius: float
    """The largest with which the epoch ended."""
    rate: float
    """The learning rate with which it ended."""
    seconds: float
    """Of wall time."""


@dataclass(frozen=True)
class Training:
    """A finished training.

    >>> data = wb.zoo.load_data("mnist-sample")
    >>> model, attack = wb.zoo.mnist_network(), wb.PGD(eps=0.1, steps=2)
    >>> training = wb.train(model, data, out="run", attack=attack, epochs=1, held_out=20, limit=60)
    >>> robust = wb.zoo.load_model("mnist", weights=training.weights)
    >>> 0 <= training.best.robust_accuracy <= training.best.clean_accuracy <= 1
    True
    """

    folder: Path
    """Where all of it is."""
    history: tuple[Epoch, ...]
    """What each epoch came to."""
    stopped: str | None = None
    """Why it ended before its last epoch, where it did."""

    @property
    def best(self) -> Epoch:
        """The epoch whose weights were kept."""
        return best_of(self.history)

    @property
    def weights(self) -> Path:
        """The file of the best weights, for :func:`zoo.load_model`."""
        return self.folder / "best.safetensors"

    def load_best(self, model: nn.Module) -> None:
        """Put the best weights into a model."""
        put_weights(model, load_weights(self.weights), name=type(model).__name__, file=self.weights)


def best_of(history: Sequence[Epoch]) -> Epoch:
    """The most robust one; of several, the one with the highest clean accuracy, and of those the first."""
    return max(history, key=lambda record: (record.robust_accuracy, record.clean_accuracy))


def reason_to_stop(history: Sequence[Epoch], patience: int, full: float) -> str | None:
    """Why more epochs would be in vain, in words; None while there is hope. ``full`` is the radius that the epochs that
    count have reached."""
    late = history[-COLLAPSE:]
    if len(late) == COLLAPSE and all(record.collapsed and record.radius >= full for record in late):
        return (
            f"{COLLAPSED}, and has been so for {COLLAPSE} epochs. A longer warm_up, a smaller rate or a random radius "
            "may help"
        )
    since = len(history) - best_of(history).epoch if history else 0
    if not patience or since < patience:
        return None
    best, last = best_of(history), history[-1]
    overfits = last.train_robust_accuracy > best.train_robust_accuracy
    words = "robust overfitting: still better on the training samples, not" if overfits else "no"
    return f"{words} better on the held-out ones for {since} epochs; the best was epoch {best.epoch}"
