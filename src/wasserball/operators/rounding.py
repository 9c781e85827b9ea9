"""From float64 to the dtype that is returned, without leaving the ball on the way."""

import torch
from torch import Tensor

from wasserball.operators.solution import chunks
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost

OVERFLOW_SLACK = 1e-8
"""Of the capacity: an overflow this small is left in the plan and clipped from its image, as float32 would round it."""
REPAIR_ROUNDS = 60
PARTS = 5
"""In how many parts the destinations are added up."""


def as_pixel(value: float, dtype: torch.dtype) -> float:
    """A number as a pixel can hold it."""
    return torch.tensor(value, dtype=dtype).item()


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """``(B,)`` reshaped to broadcast against ``like``, whose first dimension is the batch."""
    return values.view(-1, *(1,) * (like.ndim - 1))


def within_budget(plan: Tensor, mass: Tensor, budget: Tensor, cost: Cost, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``plan`` in ``dtype`` and what it spends, at most the budget: where rounding spends more, a trace stays home."""
    answer = plan.to(dtype)
    spent = _spent(answer, mass, cost)
    over = (spent > budget).nonzero().squeeze(1)
    if len(over):
        keep = budget[over] / spent[over] * (1 - 2 * torch.finfo(dtype).eps)
        answer[over] = _nearer_home(plan[over].double(), mass[over], keep, cost).to(dtype)
        spent[over] = _spent(answer[over], mass[over], cost)
    return answer, spent


def within_box(
    plan: Tensor, mass: Tensor, budget: Tensor, high: float, cost: Cost, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """``plan`` (float64) in ``dtype`` with its image and what it spends, made strictly feasible: box, budget, mass.

    The plan that is given is overwritten.
    """
    spent = _spent(plan, mass, cost)
    over = (spent > budget).nonzero().squeeze(1)
    if len(over):
        plan[over] = _nearer_home(plan[over], mass[over], budget[over] / spent[over], cost)
    _send_back(plan, mass, high, cost)
    answer, spent = within_budget(plan, mass, budget, cost, dtype)
    return answer, cost.scatter(answer.double()).to(dtype).clamp(max=high), spent


def _nearer_home(plan: Tensor, mass: Tensor, keep: Tensor, cost: Cost) -> Tensor:
    """A share of ``plan``, in place; the rest stays where it is."""
    plan *= per_sample(keep, plan)
    cost.diagonal(plan).add_(per_sample(1 - keep, mass) * mass)
    return plan


def _send_back(plan: Tensor, mass: Tensor, high: float, cost: Cost) -> None:
    """Return what a pixel holds above its capacity to where it came from: rows are kept and the spending only falls.

    The senders may overflow in turn, so this is repeated, sending back ever more of what arrives at a pixel that still
    overflows. A pixel that receives nothing holds at most its own clean mass, which fits, so this ends.
    """
    slack = OVERFLOW_SLACK * high
    todo = torch.arange(len(plan), device=plan.device)
    for attempt in range(REPAIR_ROUNDS):
        moving = plan if len(todo) == len(plan) else plan[todo]
        image = cost.scatter(moving)
        over = (image - high > slack).flatten(1).any(1).nonzero().squeeze(1)
        if len(over) < len(todo):
            todo, image, moving = todo[over], image[over], moving[over]
        if len(todo) == 0:
            return
        stays = cost.diagonal(moving).clone()
        cost.diagonal(moving).zero_()
        excess = torch.where(image - high > slack, image - high, 0.0)
        share = (excess * 2 ** (attempt // 4) / (image - stays)).nan_to_num(0.0, posinf=0.0).clamp(0, 1)
        back = cost.gather(share)
        back = back.mul_(moving) if back.shape == moving.shape else back * moving
        moving -= back
        cost.diagonal(moving).copy_(stays + cost.row_sums(back))
        if moving is not plan:
            plan[todo] = moving
    plan[todo] = cost.identity(mass[todo].double())


def _spent(plan: Tensor, mass: Tensor, cost: Cost) -> Tensor:
    """``cost.spent``, a few destinations at a time: with no second plan in float64 beside the first."""
    price, axis = cost.entries(mass)[0], cost.axis - plan.ndim if cost.axis > 0 else cost.axis
    count = plan.shape[axis]
    size = max(1, -(-count // PARTS))
    total = torch.zeros_like(mass, dtype=torch.float64)
    for first in range(0, count, size):
        some = min(size, count - first)
        total += ordered_sum(plan.narrow(axis, first, some) * price.narrow(axis, first, some), axis)
    return sample_sum(total)


def restore_rows(plan: Tensor, mass: Tensor, cost: Cost) -> Tensor:
    """``plan`` in float64 with rows that sum to the mass: many small steps in float32 let them drift."""
    whole = plan.to(torch.float64, copy=True)
    rows = cost.row_sums(whole)
    return whole.mul_(torch.where(rows > 0, mass / rows, 0.0).unsqueeze(cost.axis))


def make_feasible(
    plan: Tensor, mass: Tensor, budget: Tensor, cost: Cost, high: float | None, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """``plan`` in its own dtype, its image and what it spends: strictly inside ball and, if ``high`` is given, box.

    ``out`` is where to put the plan, the given one itself if you like.
    """
    answer = torch.empty_like(plan) if out is None else out
    image, spent = torch.empty_like(mass), torch.empty_like(budget, dtype=torch.float64)
    # Half as many samples at a time as elsewhere: there are several plans in float64 at once.
    for some in chunks(len(mass), 2 * plan.shape[1:].numel(), plan.device):
        given = mass[some], budget[some]
        whole = restore_rows(plan[some], given[0], cost)
        if high is not None:
            answer[some], image[some], spent[some] = within_box(whole, *given, high, cost, plan.dtype)
        else:
            answer[some], spent[some] = within_budget(whole, *given, cost, plan.dtype)
            image[some] = cost.scatter(answer[some].double())
    return answer, image, spent
