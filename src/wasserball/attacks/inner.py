"""The inner maximum of adversarial training: the same searches as the attacks, without a judge and without a wait."""

from dataclasses import replace

from torch import Tensor

from wasserball.attacks.attack import Attack
from wasserball.attacks.classifier import Classifier, Model, frozen
from wasserball.attacks.drill import Drill, Lead
from wasserball.attacks.frank_wolfe import FrankWolfe
from wasserball.attacks.losses import resolve_loss
from wasserball.attacks.pgd import PGD
from wasserball.attacks.sinkhorn import ProjectedSinkhorn
from wasserball.attacks.trial import no_report


def inner_maximum(
    attack: Attack, model: Model, images: Tensor, labels: Tensor, eps: Tensor, lead: Lead | None = None
) -> Tensor:
    """Images within ``eps``, ``(B,)``, of ``images`` on which the model is as wrong as the attack can make it.

    For training, and for nothing else: no sample stops when it is fooled, so that this is the largest loss found and
    not the nearest mistake, and no image is certified, which would take as long as to find it. They are in the box,
    and in the ball as far as the projections of the steps are exact: the tests say how far that is. Projected Sinkhorn
    knows no box: what it puts above is cut off, and its mass lost. Nothing is checked, and PGD and Frank-Wolfe never
    wait for a GPU; attacks that search with others are run as they are.

    With a ``lead`` PGD begins in the direction in which it last went with these samples, and leaves there the one of
    this time: few steps a visit, of many visits, then lead as far as many of one.
    """
    if not isinstance(attack, PGD | FrankWolfe | ProjectedSinkhorn):
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
            lead=lead,
        )
        attack._search(drill, int(attack.random_start))
    return drill.adversarial
