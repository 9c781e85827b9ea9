"""What an attack makes large: functions of logits and labels, one value for each sample."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

LossName = Literal["ce", "margin", "dlr"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""``(logits (B, K), labels (B,)) -> (B,)``: the larger, the nearer to success."""


def resolve_loss(loss: LossName | Loss, targeted: bool) -> Loss:
    """The function behind a name; a callable is its own, and has to rise towards success by itself."""
    if callable(loss):
        return loss
    if loss not in get_args(LossName):
        raise ValueError(f"loss must be one of {', '.join(get_args(LossName))} or a callable, got {loss!r}")
    return partial({"ce": cross_entropy, "margin": margin, "dlr": dlr}[loss], targeted=targeted)


def evaluate(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each sample, where that is what ``loss`` returns."""
    values = loss(logits, labels)
    if not isinstance(values, Tensor) or tuple(values.shape) != (len(logits),):
        seen = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"loss must return one value for each sample, shape ({len(logits)},), got {seen}")
    return values


def cross_entropy(logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
    """``−log softmax(logits)[label]``; with ``targeted`` its negative, the label being the one to reach.

    Written as a function of how far all others together are ahead, so that the gradient of a model that is very sure
    keeps the part of the label, which ``softmax − 1`` would round to 0.
    """
    chosen = labels.unsqueeze(1)
    others = logits.scatter(1, chosen, -torch.inf).logsumexp(1)
    ahead = others - logits.gather(1, chosen).squeeze(1)
    values = torch.logaddexp(ahead, torch.zeros_like(ahead))
    return -values if targeted else values


class Steepness(NamedTuple):
    """A loss and its gradient with respect to the logits, ``size · along``; the largest entry of ``along`` is 1."""

    loss: Tensor
    size: Tensor
    along: Tensor


def steepness(loss: Loss, logits: Tensor, labels: Tensor) -> Steepness:
    """The loss of each sample and how it rises with the logits, in float64; 0 where it does not."""
    if isinstance(loss, partial) and loss.func is cross_entropy:  # what everybody uses need not go through autograd
        return _steepness_of_cross_entropy(logits.double(), labels, **loss.keywords)
    leaf = logits.double().requires_grad_()
    values = evaluate(loss, leaf, labels)
    if not values.requires_grad:
        raise ValueError("loss must be differentiable: its values do not depend on the logits")
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    size = torch.linalg.vector_norm(gradient, torch.inf, dim=1)
    smallest = torch.finfo(size.dtype).tiny
    return Steepness(values.detach().double(), size, gradient / size.clamp(min=smallest).unsqueeze(1))


def _steepness_of_cross_entropy(logits: Tensor, labels: Tensor, *, targeted: bool) -> Steepness:
    """The derivatives of :func:`cross_entropy`: how sure it is of the others, times their softmax less the label."""
    chosen = labels.unsqueeze(1)
    others = logits.scatter(1, chosen, -torch.inf)
    shares = others.log_softmax(1)
    ahead = (
        others.amax(1) - shares.amax(1) - logits.gather(1, chosen).squeeze(1)
    )  # log Σ exp of the others, less its own
    values, along = F.softplus(ahead, threshold=40), shares.exp_().scatter_(1, chosen, -1.0)
    return Steepness(-values, ahead.sigmoid(), -along) if targeted else Steepness(values, ahead.sigmoid(), along)


def margin(logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
    """By how much the best other logit beats that of the label, or the reverse where ``targeted``: success is > 0."""
    chosen = labels.unsqueeze(1)
    other = logits.scatter(1, chosen, -torch.inf).amax(1)
    ahead = other - logits.gather(1, chosen).squeeze(1)
    return -ahead if targeted else ahead


def dlr(logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
    """The margin over the spread of the top logits (Croce & Hein 2020): indifferent to the scale of the logits."""
    if logits.shape[1] < 3:
        raise ValueError(f'loss="dlr" needs at least 3 classes, the model has {logits.shape[1]}')
    top = logits.topk(min(4, logits.shape[1]), dim=1).values
    floor = (top[:, 2] + top[:, -1]) / 2 if targeted else top[:, 2]
    return margin(logits, labels, targeted=targeted) / (top[:, 0] - floor + 1e-12)
