"""A batch in training: what may be tried is as under attack, but nobody judges."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wasserball.attacks.classifier import Slope, normalised
from wasserball.attacks.trial import Lookout, Trial
from wasserball.operators.rounding import per_sample
from wasserball.sums import sample_sum


@dataclass(eq=False)
class Lead:
    """Where attacks on some samples went the last time, if there was one; the next leaves here where it went."""

    direction: Tensor
    """Like the images, the largest entry of each 1."""
    known: bool


@dataclass(eq=False)
class Drill(Trial):
    """A trial without a judge: whoever is fooled goes on, and where the search ends is where it ends."""

    lead: Lead | None = None
    """Where to go first, instead of asking the model."""

    def __post_init__(self) -> None:
        self.total = sample_sum(self.images.double())
        self.budget = self.eps * self.total
        self.gap = None
        self.adversarial = self.images
        self.aims = self.labels
        self._nobody = torch.zeros_like(self.labels, dtype=torch.bool)

    def survivors(self) -> Tensor:
        return torch.arange(len(self.images), device=self.images.device)

    def slope(self, images: Tensor, samples: Tensor, *, behind_clamp: bool = False) -> tuple[Slope, Tensor]:
        return self.peek(images, samples, behind_clamp=behind_clamp)[0], samples[:0]

    def peek(self, images: Tensor, samples: Tensor, *, behind_clamp: bool = False) -> tuple[Slope, Tensor]:
        if self.lead is not None and self.lead.known and images is self.images:
            return self._remembered(self.lead.direction), self._nobody
        slope = self.classifier.slope(images, self.labels, self.loss, high=self.bounds[1])
        return slope.only(images <= self.bounds[1]) if behind_clamp else slope, self._nobody

    def pass_by(self, samples: Tensor, fooled: Tensor) -> None:
        """Nobody asks who was fooled on the way."""

    def lookout(self) -> Lookout:
        return Blind(self)

    def take(self, image: Tensor, spent: Tensor) -> None:
        """End at ``image``, for which ``spent`` was paid: if that was too much, on the way there. What little a pixel
        still holds above its capacity is cut off."""
        share = (self.budget / spent).nan_to_num(1.0).clamp(max=1)
        way = torch.lerp(self.images, image, per_sample(share, image).to(image.dtype))
        self.adversarial = way.clamp_(0, self.bounds[1])

    def leave(self, direction: Tensor) -> None:
        """Remember where the search was going."""
        if self.lead is not None:
            self.lead.direction.copy_(normalised(direction)[1])

    def _remembered(self, direction: Tensor) -> Slope:
        """All that a search which never looks back asks of a slope."""
        unknown = torch.full_like(self.budget, torch.nan)
        return Slope(unknown.unsqueeze(1), unknown, direction.clone(), unknown, unknown)

    def _ask(self, samples: Tensor, *, forward: int, backward: int) -> None:
        """Queries are not counted."""


class Blind(Lookout):
    """Sees nothing: where something is not finite the loss will not be either, and the training looks at that."""

    def places(self, slope: Slope, fooled: Tensor) -> Tensor:
        return torch.zeros(0, dtype=torch.int64, device=fooled.device)

    def send(self, slope: Slope, fooled: Tensor) -> None:
        pass
