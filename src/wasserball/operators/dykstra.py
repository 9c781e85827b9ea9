"""Dykstra's alternating projections (paper §3.1 and App. C): what the dual projection is compared with."""

from collections.abc import Callable

import torch
from torch import Tensor

from wasserball.checks import check_count, check_like, check_per_sample, check_tolerance
from wasserball.kernels.reference import project_rows
from wasserball.operators.rounding import per_sample
from wasserball.operators.solution import Solution
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost, WassersteinBall

Callback = Callable[[int, Tensor, Tensor], None]


@torch.no_grad()
def dykstra(
    target: Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    *,
    tol: float = 1e-6,
    max_iterations: int = 10_000,
    callback: Callback | None = None,
) -> Solution:
    """``argmin_Π ½‖Π − target‖²  s.t.  Π ∈ C_s = {Π ≥ 0, Π1 = mass} and Π ∈ C_h = {<C, Π> ≤ budget}`` (paper App. C).

    The projection onto C_h moves along C alone, so its increment is ``I_h = −λC`` with one number λ ≥ 0 a sample, and
    the increment of C_s cancels: each round of the paper's algorithm comes down to

        Π_s = P_s(target − λC),  λ⁺ = max(0, λ + (<C, Π_s> − budget) / ‖C‖²),  Π_h = Π_s + (λ − λ⁺) C.

    That is gradient ascent on the dual of Prop. 1 with the step ``1/‖C‖²``, which is why it is slow. Rows without mass
    are 0 in every feasible plan and are left out of C_h: the answer is the same and ``‖C‖²`` smaller, the steps longer.

    Returns Π_s. A sample is done when ``‖Π_h − Π_s‖·‖C‖ ≤ tol·budget``: its Π_s spends the budget up to that, or less
    than the budget where λ = 0. It may overspend by as much; the gap ``λ (budget − <C, Π_s>)`` is negative then.
    ``callback(iteration, Π_s, Π_h)`` sees every iterate, in float64; samples that are done stay as they are.

    >>> mass, cost = torch.tensor([[[[0.0, 0.5, 0.5]]]]), wb.LocalCost(3)
    >>> target = cost.identity(mass) + cost.gather(torch.tensor([[[[1.0, 0.0, 0.0]]]]))
    >>> wb.operators.dykstra(target, mass, 0.1, cost).image
    tensor([[[[0.1000, 0.4000, 0.5000]]]])
    """
    WassersteinBall(mass, 0.0, cost)
    check_like("target", target, cost.plan_shape(mass), mass)
    delta = check_per_sample("budget", budget, mass)
    check_tolerance("tol", tol)
    check_count("max_iterations", max_iterations)

    price, allowed = cost.entries(mass)
    normal = torch.where(allowed & (mass > 0).unsqueeze(cost.axis), price, 0.0)
    # 0 where no move is to be paid for; such a sample spends nothing, and any positive number will do.
    norm = sample_sum(ordered_sum(normal.square(), cost.axis)).clamp(min=torch.finfo(torch.float64).tiny)
    lam = raised = torch.zeros_like(delta)
    iterations = torch.zeros_like(delta, dtype=torch.int64)
    done = torch.zeros_like(delta, dtype=torch.bool)
    for iteration in range(1, max_iterations + 1):
        lam = torch.where(done, lam, raised)
        plan = project_rows(target - per_sample(lam, target) * price, mass, allowed, cost.axis).plan
        spent = sample_sum(ordered_sum(plan * price, cost.axis))
        raised = (lam + (spent - delta) / norm).clamp(min=0)
        if callback is not None:
            callback(iteration, plan, plan + per_sample(lam - raised, plan) * normal)
        iterations += ~done
        done = done | ((raised - lam).abs() * norm <= tol * delta)
        if done.all():
            break
    answer = plan.to(target.dtype)
    spent = cost.spent(answer, mass)
    return Solution(
        plan=answer,
        image=cost.scatter(answer.double()).to(answer.dtype),
        lam=lam,
        spent=spent,
        iterations=iterations,
        converged=done,
        gap=lam * (delta - spent),
    )
