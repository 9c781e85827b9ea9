"""A radius of its own for each training sample: as far as the model holds there."""

import torch
from torch import Tensor

from wasserball.evaluate.workers import Workers

PACE = 10
"""Visits that it takes a radius to grow from the smallest to the largest."""
NEAR = 0.155
"""Of the largest radius: how near the focus a sample's own must be for this sample to count for more …"""
EMPHASIS = 3.0
"""… and by how much more than another it does, at the most."""


class OwnRadii:
    """Each grows by a tenth of the way when the model holds at it, and shrinks when it does not (Balaji et al. 2019).

    So no sample is given up for the sake of one that cannot be held, and none is left at a radius that is easy.
    """

    def __init__(self, count: int, low: float, high: float, device: torch.device) -> None:
        self.low, self.high = low, high
        self.values = torch.full((count,), low, dtype=torch.float64, device=device)
        self._before = self.values.clone()

    def of(self, places: Tensor) -> Tensor:
        """Those of some samples."""
        return self.values[places]

    def weights(self, places: Tensor, focus: float, share: float) -> Tensor:
        """Of some samples, the largest for those whose radius is ``focus``; alike for a ``share`` of 0."""
        away = (self.values[places] - focus) / (NEAR * self.high)
        return (1 + EMPHASIS * share * (-away.square() / 2).exp()) / (1 + EMPHASIS * share)

    def learn(self, places: Tensor, held: Tensor) -> None:
        """Whether the model held on some samples."""
        change = (self.high - self.low) / PACE
        moved = self.values[places] + torch.where(held, change, -change)
        self.values[places] = moved.clamp(self.low, self.high)

    def share(self, workers: Workers) -> None:
        """What the others have learned on theirs, since the last time."""
        self.values = self._before + workers.sum(self.values - self._before)
        self._before = self.values.clone()

    def restore(self, values: Tensor) -> None:
        """Go on from there."""
        self.values = values.to(self.values.device, copy=True)
        self._before = self.values.clone()
