"""The attacks of the paper, with the settings and the loss of its code."""

from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wasserball as wb
from wasserball.attacks.attack import Ascent, Box
from wasserball.attacks.losses import resolve_loss

GAMMA = 1e-3
"""Of the paper's linear oracle, everywhere."""
LATER = 1e6
"""More than any loss."""


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of the paper's code: in float32, where a sure model's own class has a gradient of exactly 0.

    wasserball's keeps that part and is stronger for it (MNIST, eps 0.1: by 2.3 points); the paper's figures need this.
    """
    return F.cross_entropy(logits.float(), labels, reduction="none").double()


DEFAULTS: dict[str, Any] = dict(loss=loss, steps=300)


def pgd(eps: float, *, step: float, box: Box, **options: Any) -> wb.PGD:
    """Fixed steps; the box repaired at the end (``"final"``) or ignored (``"off"``)."""
    return wb.PGD(eps=eps, step=step, box=box, **DEFAULTS | options)


def frank_wolfe(eps: float, *, box: Box, **options: Any) -> wb.FrankWolfe:
    """The entropic oracle and steps of 2 / (t + 1)."""
    return wb.FrankWolfe(eps=eps, gamma=GAMMA, momentum=0, box=box, **DEFAULTS | options)


def sinkhorn(eps: float, *, gamma: float, **options: Any) -> wb.ProjectedSinkhorn:
    """Signs of gradients in image space, and projected Sinkhorn."""
    return wb.ProjectedSinkhorn(eps=eps, gamma=gamma, **DEFAULTS | options)


class Stubborn(nn.Module):
    """A model with a second class for each of its own that is never the answer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        never = logits.detach().amin(1, keepdim=True) - 1
        return torch.cat([logits, never.expand_as(logits)], 1)


def to_the_end(attack: Ascent, model: nn.Module, images: Tensor, labels: Tensor) -> wb.AttackResult:
    """The last images of an attack that goes on when it has fooled the model, as the paper's do.

    It aims at the second class of each label, which is never reached, with the loss that it has for the label; so it
    never succeeds, and whether its images fool the model is for the caller to see.
    """
    with torch.no_grad():
        classes = model(images[:1]).shape[1]
    inner, judged = resolve_loss(attack.loss, targeted=False), count(1)

    def shifted(logits: Tensor, seconds: Tensor) -> Tensor:
        values = inner(logits[:, :classes], seconds - classes)
        # Where images are judged, and no gradient is wanted, the later ones are to be the better ones.
        return values if torch.is_grad_enabled() else values + LATER * next(judged)

    return replace(attack, loss=shifted, targeted=True)(Stubborn(model), images, labels + classes)
