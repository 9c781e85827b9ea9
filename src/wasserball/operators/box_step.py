"""A step of an attack inside ball ∩ box: the projection of paper App. G by a few cheap updates of warm duals."""

import torch
from torch import Tensor

from wasserball.checks import Ranges, check_bounds, check_count, check_like, check_out, check_per_sample
from wasserball.kernels import Backend, choose
from wasserball.kernels.reference import project_rows
from wasserball.operators.projection import check_step
from wasserball.operators.rounding import as_pixel, per_sample
from wasserball.operators.solution import Solution, solve_in_chunks
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost, LocalCost, check_mass

LEAST_CURVATURE = 0.7
"""Of a pixel's dual. Pixels that share a sender answer together, and a step that ignores this would overshoot."""


@torch.no_grad()
def box_step(
    plan: Tensor,
    gradient: Tensor,
    step: float | Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    bounds: tuple[float, float] = (0, 1),
    *,
    lam: Tensor | None = None,
    mu: Tensor | None = None,
    rounds: int = 3,
    backend: Backend | None = None,
    out: Tensor | None = None,
    validate: bool = True,
) -> Solution:
    """:func:`project_box` of ``plan + step · gradient[destination]``, approximately: one step of a box attack.

    Instead of solving for the duals, ``rounds`` diagonal Newton updates follow them from one step to the next, which
    is what an attack needs and costs ``rounds + 1`` evaluations. Rows keep their mass; the budget and the box are met
    about as well as the duals are warm (``converged``: to 1e-3), and ``gap`` is unknown, infinite.
    ``rounding.make_feasible`` turns such a plan into one that may be returned. ``out=plan`` updates in place;
    ``validate=False`` trusts the values of all arguments and does not wait for a GPU.

    >>> mass, cost = torch.tensor([[[[0.9, 0.5, 0.5]]]]), wb.LocalCost(3)
    >>> gradient = torch.tensor([[[[1.0, 0.0, 0.0]]]])
    >>> wb.operators.box_step(cost.identity(mass), gradient, 0.3, mass, 0.2, cost).image  # the price is not yet settled
    tensor([[[[1.0012, 0.3988, 0.5000]]]])
    """
    ranges = Ranges(validate)
    if validate:
        check_mass(mass, cost, bounds, ranges)
        check_like("plan", plan, cost.plan_shape(mass), mass, ranges)
        check_like("gradient", gradient, mass.shape, mass, ranges)
        check_count("rounds", rounds)
        check_out(out, plan)
        if mu is not None:
            check_like("mu", mu, mass.shape, mass, ranges)
    size = check_per_sample("step", step, mass, ranges)
    allowance = check_per_sample("budget", budget, mass, ranges)
    start_lam = torch.zeros_like(allowance) if lam is None else check_per_sample("lam", lam, mass, ranges)
    check_step(step, gradient, ranges.check())
    start_mu = torch.zeros_like(mass) if mu is None else mu
    high = as_pixel(check_bounds(bounds), mass.dtype)
    fast = choose(backend, cost, plan, gradient, mass, start_mu)
    if fast is not None:
        assert isinstance(cost, LocalCost)
        found = fast.box_step(plan, gradient, size, mass, allowance, cost, high, start_lam, start_mu, rounds, out)
        return Solution(
            **found._asdict(),
            iterations=torch.full_like(allowance, rounds + 1, dtype=torch.int64),
            gap=torch.full_like(allowance, torch.inf),
        )
    return solve_in_chunks(
        lambda some: _step_chunk(
            plan[some],
            per_sample(size[some], mass) * gradient[some].double(),
            mass[some],
            allowance[some],
            cost,
            high,
            start_lam[some],
            start_mu[some],
            rounds,
        ),
        len(mass),
        plan[0].numel(),
        plan.device,
        out,
    )


def _step_chunk(
    plan: Tensor,
    change: Tensor,
    mass: Tensor,
    budget: Tensor,
    cost: Cost,
    high: float,
    lam: Tensor,
    mu: Tensor,
    rounds: int,
) -> Solution:
    axis = cost.axis
    price, allowed = cost.entries(mass)
    target = plan + cost.gather(change)
    mu = mu.double().clamp(min=0)
    # From this λ on next to nothing moves. Where no row is about to change, λ is looked for by leaps of this scale.
    cheapest = torch.where(price > 0, price, torch.inf).amin()
    still = (2 * change.abs() + 2 * mass).flatten(1).amax(1) / cheapest
    for update in range(rounds + 1):
        scores = target - per_sample(lam, target) * price - cost.gather(mu)
        rows = project_rows(scores, mass, allowed, axis)
        image = cost.scatter(rows.plan)
        spent = sample_sum(ordered_sum(rows.plan * price, axis))
        if update == rounds:
            break
        active_price = torch.where(rows.active, price, 0.0)
        spread = ordered_sum(active_price.square(), axis) - ordered_sum(active_price, axis).square() / rows.size
        slope = sample_sum(spread.clamp(min=0))
        newton = lam + ((spent - budget) / slope).nan_to_num(0.0)
        lam = torch.minimum(torch.maximum(newton, lam / 8), 8 * lam + still / 16)
        shared = torch.where(rows.active, (1 - 1 / rows.size).unsqueeze(axis), 0.0)
        mu = (mu + (image - high) / cost.scatter(shared).clamp(min=LEAST_CURVATURE)).clamp(min=0)
    overflow = (image - high).flatten(1).amax(1)
    return Solution(
        plan=rows.plan.to(plan.dtype),
        image=image.to(plan.dtype),
        lam=lam,
        spent=spent,
        iterations=torch.full_like(budget, rounds + 1, dtype=torch.int64),
        converged=(overflow <= 1e-3 * high) & (spent <= (1 + 1e-3) * budget),
        gap=torch.full_like(budget, torch.inf),
        mu=mu.to(plan.dtype),
    )
