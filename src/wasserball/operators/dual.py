"""The one dual variable of the budget: a safeguarded Newton search for λ, each sample on its own."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MAX_EVALUATIONS = 60

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Root(NamedTuple):
    """Where the spending crosses the budget: the bracket ``low ≤ λ ≤ high``, the last λ tried in it, and the count."""

    lam: Tensor
    low: Tensor
    high: Tensor
    evaluations: Tensor
    converged: Tensor


def spend_budget(evaluate: Evaluate, budget: Tensor, upper: Tensor, start: Tensor, tol: float) -> Root:
    """The smallest ``λ ≥ 0`` at which ``spent(λ) ≤ budget``, for a spending that never increases with λ.

    ``evaluate(lam, samples)`` returns spending and slope at λ of the listed samples; that ``spent(upper) ≤ budget`` is
    known. The search begins at ``start``. A sample is done when it leaves at most ``tol·budget`` unspent, or spends
    less at λ = 0 (its budget does not bind); done samples are not evaluated again.

    The spending is decreasing and (piecewise) smooth but neither convex nor concave, so a Newton step is taken only
    where it stays inside the bracket and the last one at least halved the distance to the budget; else the secant of
    the bracket, else its middle on a logarithmic scale (λ may span many orders of magnitude).
    """
    # The tolerated band stays clear of the budget itself, so that rounding the plan to float32 does not exceed it.
    aim, most, least = budget * (1 - tol / 2), budget * (1 - tol / 8), budget * (1 - tol)
    lam = torch.minimum(start, upper)
    low, high = torch.zeros_like(upper), upper.clone()
    spent_low, spent_high = torch.full_like(upper, torch.inf), torch.zeros_like(upper)
    last_miss = torch.full_like(upper, torch.inf)
    evaluations = torch.zeros_like(upper, dtype=torch.int64)
    converged = torch.zeros_like(upper, dtype=torch.bool)
    todo = torch.arange(len(budget), device=budget.device)
    for _ in range(MAX_EVALUATIONS):
        at = lam[todo]
        spent, slope = evaluate(at, todo)
        evaluations[todo] += 1
        over = spent > most[todo]
        low[todo], spent_low[todo] = torch.where(over, at, low[todo]), torch.where(over, spent, spent_low[todo])
        high[todo], spent_high[todo] = torch.where(over, high[todo], at), torch.where(over, spent_high[todo], spent)
        converged[todo] = ~over & ((spent >= least[todo]) | (at == 0))
        lowest, highest, miss = low[todo], high[todo], (spent - aim[todo]).abs()
        newton = at - _newton_miss(spent, aim[todo]) / slope
        at_zero = torch.isinf(spent_low[todo]) & ~(newton > 0)  # λ = 0 was not tried yet, and Newton points there
        rise = spent_low[todo] - spent_high[todo]
        secant = lowest + (highest - lowest) * ((spent_low[todo] - aim[todo]) / rise)
        step = torch.where((newton > lowest) & (newton < highest), newton, secant)
        step = torch.where(miss <= last_miss[todo] / 2, step, _middle(lowest, highest))
        step = torch.where((step > lowest) & (step < highest), step, _middle(lowest, highest))
        lam[todo] = torch.where(converged[todo], at, torch.where(at_zero, 0.0, step))
        last_miss[todo] = miss
        resolvable = (lam[todo] > lowest) & (lam[todo] < highest) | at_zero
        todo = todo[~converged[todo] & resolvable]
        if len(todo) == 0:
            break
    return Root(lam, low, high, evaluations, converged)


def _middle(low: Tensor, high: Tensor) -> Tensor:
    wide = high > 16 * low
    return torch.where(wide, torch.where(low > 0, (low * high).sqrt(), high / 16), (low + high) / 2)


def _newton_miss(spent: Tensor, aim: Tensor) -> Tensor:
    # Far above the budget the spending falls like a square in λ (ever fewer entries, each ever smaller), and Newton's
    # method on its square root goes almost straight there; near the budget the spending itself is linear.
    return torch.where(spent > 2 * aim, 2 * (spent - (spent * aim).sqrt()), spent - aim)
