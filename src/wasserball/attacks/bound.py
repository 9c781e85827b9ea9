"""An attack and its model in one, for code that wants to hand over images and nothing else."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from wasserball.attacks.classifier import Classifier, Model, frozen
from wasserball.attacks.result import AttackResult

if TYPE_CHECKING:
    from wasserball.attacks.attack import Attack


@dataclass(frozen=True, eq=False)
class BoundAttack:
    """An attack that knows its model: ``bound(images, labels)`` or ``bound.perturb(images)`` gives images."""

    attack: "Attack"
    model: Model

    def run(self, images: Tensor, labels: Tensor | None = None) -> AttackResult:
        """Attack; without labels, what the model answers now is what to avoid."""
        if labels is not None:
            return self.attack(self.model, images, labels)
        if self.attack.targeted:
            raise ValueError("labels must be given where targeted is True: they are the targets")
        with frozen(self.model):
            answers = Classifier(self.model, images, self.attack.eot).logits(images).argmax(1)
        return self.attack(self.model, images, answers)

    def perturb(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The adversarial images of :meth:`run`, under the name that AutoAttack and others have for it."""
        return self.run(images, labels).adversarial

    __call__ = perturb
