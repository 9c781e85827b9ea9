"""The inner maximum of adversarial training: the same searches as the attacks, without a judge and without a wait."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wasserball.attacks.attack import Ascent, Attack
from wasserball.attacks.classifier import Classifier, Model, Slope, frozen
from wasserball.attacks.frank_wolfe import FrankWolfe
from wasserball.attacks.losses import resolve_loss
from wasserball.attacks.pgd import PGD
from wasserball.attacks.trial import Lookout, Trial, no_report
from wasserball.operators.rounding import per_sample
from wasserball.sums import sample_sum


def inner_maximum(attack: Attack, model: Model, images: Tensor, labels: Tensor, eps: Tensor) -> Tensor:
    """Images within ``eps``, ``(B,)``, of ``images`` on which the model is as wrong as the attack can make it.

    For training, and for nothing else: no sample stops when it is fooled, so that this is the largest loss found and
    not the nearest mistake, and no image is certified, which would take as long as to find it. They are in the box,
    and in the ball as far as the projections of the steps are exact: the tests say how far that is. Nothing is
    checked, and a GPU is never waited for; other attacks than PGD and Frank-Wolfe are run as they are.
    """
    if not isinstance(attack, PGD | FrankWolfe):
        return replace(attack, eps=eps)(model, images, labels).adversarial
    with frozen(model):
        drill = Drill(
            classifier=Classifier(model, images, attack.eot, suspicious=False),
            images=images.detach().contiguous(),
            labels=labels,
            eps=eps,
            cost=attack.cost,
            bounds=attack.bounds,
            loss=resolve_loss(attack.loss, targeted=False),
            targeted=False,
            keep_plans=False,
            report=no_report,
        )
        start(attack, drill)
    return drill.adversarial


def start(attack: Ascent, drill: "Drill") -> None:
    """Search once, from the clean images or, where the attack wants that, from random ones."""
    attack._search(drill, int(attack.random_start))


@dataclass(eq=False)
class Drill(Trial):
    """A trial without a judge: whoever is fooled goes on, and where the search ends is where it ends."""

    judges = False

    def __post_init__(self) -> None:
        self.total = sample_sum(self.images.double())
        self.budget = self.eps * self.total
        self.gap = None
        self.adversarial = self.images
        self.aims = self.labels
        self._nobody = torch.zeros_like(self.labels, dtype=torch.bool)

    def survivors(self) -> Tensor:
        return torch.arange(len(self.images), device=self.images.device)

    def peek(self, images: Tensor, samples: Tensor, *, behind_clamp: bool = False) -> tuple[Slope, Tensor]:
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

    def _ask(self, samples: Tensor, *, forward: int, backward: int) -> None:
        """Queries are not counted."""


class Blind(Lookout):
    """Sees nothing: where something is not finite the loss will not be either, and the training looks at that."""

    def places(self, slope: Slope, fooled: Tensor) -> Tensor:
        return torch.zeros(0, dtype=torch.int64, device=fooled.device)

    def send(self, slope: Slope, fooled: Tensor) -> None:
        pass
