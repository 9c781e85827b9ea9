"""The samples that are never trained on, and what the model makes of them."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wasserball.attacks import Attack
from wasserball.attacks.classifier import frozen
from wasserball.evaluate.loop import load_batch
from wasserball.zoo import Data


class Score(NamedTuple):
    """Accuracies on the held-out samples."""

    clean: float
    robust: float
    constant: float
    """Of the best answer that is always the same."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOut:
    """The samples from ``first`` to ``last − 1``, and who attacks them."""

    data: Data
    first: int
    last: int
    judge: Attack
    batch_size: int
    device: torch.device

    def measure(self, model: nn.Module) -> Score:
        """Ask the model about the samples as they are, and attack it."""
        right = held = 0
        answers = []
        for first in range(self.first, self.last, self.batch_size):
            images, labels = self._read(first)
            with frozen(model), torch.no_grad():
                right += int((model(images).argmax(1) == labels).sum())
            held += int((~self.judge(model, images, labels).success).sum())
            answers.append(labels)
        count = self.last - self.first
        return Score(right / count, held / count, int(torch.cat(answers).bincount().max()) / count)

    def check(self) -> None:
        """Read them all once, better now than after an epoch; accuracy on a single class would say nothing."""
        labels = torch.cat([self._read(first)[1] for first in range(self.first, self.last, self.batch_size)])
        if (labels == labels[0]).all():
            raise ValueError(
                f"data must be in no order: its last {len(labels)} samples, which are held out, are all of class "
                f"{int(labels[0])} in {self.data.name}"
            )

    def _read(self, first: int) -> tuple[Tensor, Tensor]:
        return load_batch(self.data, first, min(first + self.batch_size, self.last), self.device)
