"""Row kernels in plain torch and float64: the truth that faster kernels are compared with.

All arithmetic is element-wise or an ordered sum, so a sample's bits do not depend on its batch mates.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wasserball.sums import ordered_sum
from wasserball.threat import Cost, LocalCost


class Rows(NamedTuple):
    """Rows projected onto their simplices."""

    plan: Tensor
    active: Tensor
    """Where the plan is positive."""
    size: Tensor
    """How many entries of each row are active, at least 1 so that one may divide by it."""


def project_rows(scores: Tensor, mass: Tensor, allowed: Tensor, axis: int) -> Rows:
    """``argmin ‖Π − scores‖²  s.t.  Π ≥ 0, Π1 = mass``, every row on its own (Michelot 1986).

    The threshold τ of a row solves ``Σ max(0, scores − τ) = mass``. The active set only ever shrinks: were it allowed
    to grow again, rounding could make it cycle for ever. It starts from ``scores > max − mass``, which holds for every
    entry of the answer, because the largest entry is at most ``mass``. A row without mass has no active entry.
    """
    scores, mass = torch.where(allowed, scores.double(), -torch.inf), mass.double()
    busy = mass > 0
    if 2 * int(busy.sum()) > busy.numel():
        return _michelot(scores, mass, axis)
    # Most of a digit is black: rows without mass are left out, which changes no bit of the others.
    found = _michelot(scores.movedim(axis, 0)[:, busy], mass[busy], 0)
    plan, active = torch.zeros_like(scores), torch.zeros_like(scores, dtype=torch.bool)
    plan.movedim(axis, 0)[:, busy] = found.plan
    active.movedim(axis, 0)[:, busy] = found.active
    size = torch.ones_like(mass)
    size[busy] = found.size
    return Rows(plan, active, size)


def _michelot(scores: Tensor, mass: Tensor, axis: int) -> Rows:
    mass = mass.unsqueeze(axis)
    # Relative to the row's maximum, the entries that matter are as small as the mass, and so are their rounding errors.
    scores = scores - scores.amax(axis, keepdim=True)
    active = scores > -mass
    while True:
        size = ordered_sum(active.double(), axis).clamp(min=1).unsqueeze(axis)
        threshold = (ordered_sum(torch.where(active, scores, 0.0), axis).unsqueeze(axis) - mass) / size
        shrunk = active & (scores > threshold)
        if torch.equal(shrunk, active):
            break
        active = shrunk
    return Rows(torch.where(active, scores - threshold, 0.0), active, size.squeeze(axis))


class Moves(NamedTuple):
    """What each source can do: the value of the destinations at each price, with the price along ``axis``."""

    value: Tensor
    price: Tensor
    destination: Tensor | None
    """Which destination has the value; None where the axis lists the destinations themselves."""


def best_moves(gradient: Tensor, cost: Cost) -> Moves:
    """The smallest gradient that a source can reach at each price, in float64, ``inf`` where there is none.

    In a local window many destinations share a price and only the best of each shell can win: 6 candidates for the 25
    moves of a 5×5 window.
    """
    gradient = gradient.double()
    if not isinstance(cost, LocalCost):
        price, allowed = cost.entries(gradient)
        return Moves(torch.where(allowed, cost.gather(gradient), torch.inf), price, None)
    values, destinations = [], []
    for _, members in cost.shells:
        value = _shifted(gradient, cost, members[0])
        destination = torch.full_like(value, members[0], dtype=torch.int64)
        for k in members[1:]:
            other = _shifted(gradient, cost, k)
            destination = torch.where(other < value, k, destination)
            value = torch.minimum(other, value)
        values.append(value)
        destinations.append(destination)
    return Moves(torch.stack(values, cost.axis), _shell_prices(cost, gradient), torch.stack(destinations, cost.axis))


def soft_moves(gradient: Tensor, cost: Cost, gamma: float) -> Moves:
    """The soft minimum ``−γ log Σ exp(−gradient/γ)`` of what a source can reach at each price."""
    gradient = gradient.double()
    if not isinstance(cost, LocalCost):
        return best_moves(gradient, cost)
    values = []
    for _, members in cost.shells:
        value = _shifted(gradient, cost, members[0]) / -gamma
        for k in members[1:]:
            value = torch.logaddexp(value, _shifted(gradient, cost, k) / -gamma)
        values.append(-gamma * value)
    return Moves(torch.stack(values, cost.axis), _shell_prices(cost, gradient), None)


def move(gradient: Tensor, cost: Cost, k: int) -> tuple[Tensor, Tensor]:
    """The gradient at the ``k``-th destination of each source, ``inf`` where forbidden, and the price of going."""
    if isinstance(cost, LocalCost):
        return _shifted(gradient.double(), cost, k), gradient.new_tensor(cost.prices[k], dtype=torch.float64)
    price, allowed = cost.entries(gradient)
    return torch.where(allowed[..., k], gradient[..., k : k + 1].double(), torch.inf), price[..., k]


def softmax(scores: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The weights ``exp(scores) / Σ exp(scores)`` and ``log Σ exp(scores)`` along ``axis``."""
    top = scores.amax(axis, keepdim=True)
    weight = (scores - top).exp()
    total = ordered_sum(weight, axis).unsqueeze(axis)
    return weight / total, (top + total.log()).squeeze(axis)


def _shifted(image: Tensor, cost: LocalCost, k: int) -> Tensor:
    """``image`` at the ``k``-th destination, ``inf`` outside."""
    reach, (down, right) = cost.window // 2, cost.offsets[k]
    height, width = image.shape[-2:]
    padded = F.pad(image, (reach, reach, reach, reach), value=torch.inf)
    return padded[..., reach + down : reach + down + height, reach + right : reach + right + width]


def _shell_prices(cost: LocalCost, like: Tensor) -> Tensor:
    return like.new_tensor([price for price, _ in cost.shells]).view(-1, 1, 1, 1)
