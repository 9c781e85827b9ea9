"""From float64 to the dtype that is returned, without leaving the ball on the way."""

import torch
from torch import Tensor

from wasserball.threat import Cost

OVERFLOW_SLACK = 1e-8
"""Of the capacity: an overflow this small is left in the plan and clipped from its image, as float32 would round it."""
REPAIR_ROUNDS = 60


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """``(B,)`` reshaped to broadcast against ``like``, whose first dimension is the batch."""
    return values.view(-1, *(1,) * (like.ndim - 1))


def within_budget(plan: Tensor, mass: Tensor, budget: Tensor, cost: Cost, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``plan`` in ``dtype`` and what it spends, at most the budget: where rounding spends more, a trace stays home."""
    answer = plan.to(dtype)
    spent = cost.spent(answer, mass)
    over = (spent > budget).nonzero().squeeze(1)
    if len(over):
        keep = budget[over] / spent[over] * (1 - 2 * torch.finfo(dtype).eps)
        home = cost.identity(mass[over].double())
        answer[over] = torch.lerp(home, plan[over].double(), per_sample(keep, plan)).to(dtype)
        spent[over] = cost.spent(answer[over], mass[over])
    return answer, spent


def within_box(
    plan: Tensor, mass: Tensor, budget: Tensor, high: float, cost: Cost, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """``plan`` (float64) in ``dtype`` with its image and what it spends, made strictly feasible: box, budget, mass.

    What a pixel holds above its capacity goes back to where it came from: rows are kept and the spending only falls.
    The senders may overflow in turn, so this is repeated, sending back ever more of what arrives at a pixel that still
    overflows. A pixel that receives nothing holds at most its own clean mass, which fits, so this ends.
    """
    slack = OVERFLOW_SLACK * high
    plan = plan.clone()
    spent = cost.spent(plan, mass)
    too_dear = (spent > budget).nonzero().squeeze(1)
    if len(too_dear):
        keep = per_sample(budget[too_dear] / spent[too_dear], plan)
        plan[too_dear] = torch.lerp(cost.identity(mass[too_dear].double()), plan[too_dear], keep)
    todo = torch.arange(len(plan), device=plan.device)
    for attempt in range(REPAIR_ROUNDS):
        image = cost.scatter(plan[todo])
        over = (image - high > slack).flatten(1).any(1)
        todo, image = todo[over], image[over]
        if len(todo) == 0:
            break
        moving = plan[todo]
        stays = cost.diagonal(moving).clone()
        cost.diagonal(moving).zero_()
        excess = torch.where(image - high > slack, image - high, 0.0)
        share = (excess * 2 ** (attempt // 4) / (image - stays)).nan_to_num(0.0, posinf=0.0).clamp(0, 1)
        back = moving * cost.gather(share)
        moving = moving - back
        cost.diagonal(moving).copy_(stays + cost.row_sums(back))
        plan[todo] = moving
    plan[todo] = cost.identity(mass[todo].double())
    answer, spent = within_budget(plan, mass, budget, cost, dtype)
    return answer, cost.scatter(answer.double()).to(dtype).clamp(max=high), spent


def restore_rows(plan: Tensor, mass: Tensor, cost: Cost) -> Tensor:
    """``plan`` in float64 with rows that sum to the mass: many small steps in float32 let them drift."""
    rows = cost.row_sums(plan.double())
    return torch.where(rows > 0, mass / rows, 0.0).unsqueeze(cost.axis) * plan


def make_feasible(
    plan: Tensor, mass: Tensor, budget: Tensor, cost: Cost, high: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """``plan`` in its own dtype, its image and what it spends: strictly inside ball and, if ``high`` is given, box."""
    whole = restore_rows(plan, mass, cost)
    if high is not None:
        return within_box(whole, mass, budget, high, cost, plan.dtype)
    answer, spent = within_budget(whole, mass, budget, cost, plan.dtype)
    return answer, cost.scatter(answer.double()).to(plan.dtype), spent
