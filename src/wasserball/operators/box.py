"""The projection onto ball ∩ pixel box: a semismooth Newton method on the duals (paper App. G, solved to the end).

It begins where a few cheap updates of the duals lead. Where it takes long all the same, the answer is followed from a
loose budget to the one that is asked for.
"""

import torch
from torch import Tensor

from wasserball.checks import check_bounds, check_count, check_like, check_per_sample, check_tolerance
from wasserball.operators.box_dual import Problem, Step
from wasserball.operators.box_step import box_step
from wasserball.operators.projection import upper_bound
from wasserball.operators.rounding import as_pixel, within_box
from wasserball.operators.solution import Solution, solve_in_chunks
from wasserball.threat import Cost, WassersteinBall

FIRST_ROUNDS = 10
"""Of cheap updates of the duals, to begin with what they lead to: on photographs that takes a third of the time."""
PATIENCE = 20
"""Rounds within which ordinary problems are solved. The others start again with a loose budget, and tighten it."""
ROUGH = 1e-2
"""The residual at which a loose budget is tightened, by this factor:"""
TIGHTEN = 10


@torch.no_grad()
def project_box(
    target: Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    bounds: tuple[float, float] = (0, 1),
    *,
    lam: Tensor | None = None,
    mu: Tensor | None = None,
    tol: float = 1e-8,
    max_iterations: int = 200,
) -> Solution:
    """``argmin_Π ½‖Π − target‖²  s.t.  Π ≥ 0, Π1 = mass, <C, Π> ≤ budget, Πᵀ1 ≤ high`` (paper App. G).

    Solved until no pixel exceeds ``high`` by more than ``tol·high`` and the budget is met to ``100·tol``, both with
    complementary slackness; ``lam`` and ``mu`` of an earlier solution warm-start it. What is returned is strictly
    feasible all the same, in the dtype of ``target``, converged or not: no pixel of ``image`` lies outside
    ``[0, high]``, the plan spends at most the budget, and rows keep their mass. ``gap`` proves how good it is:
    ``½‖Π − Π*‖² ≤ gap``.

    >>> mass, cost = torch.tensor([[[[0.9, 0.5, 0.5]]]]), wb.LocalCost(3)
    >>> target = cost.identity(mass) + 10 * cost.gather(torch.tensor([[[[1.0, 0.0, 0.0]]]]))
    >>> wb.operators.project_box(target, mass, 0.2, cost).image
    tensor([[[[1.0000, 0.4000, 0.5000]]]])
    """
    WassersteinBall(mass, 0.0, cost, bounds)
    high = as_pixel(check_bounds(bounds), mass.dtype)
    check_like("target", target, cost.plan_shape(mass), mass)
    check_tolerance("tol", tol)
    check_count("max_iterations", max_iterations)
    allowance = check_per_sample("budget", budget, mass)
    start_lam = torch.zeros_like(allowance) if lam is None else check_per_sample("lam", lam, mass)
    start_mu = torch.zeros_like(mass) if mu is None else check_like("mu", mu, mass.shape, mass)
    start = Step(start_lam, start_mu.double().clamp(min=0))
    cold = lam is None and mu is None

    return solve_in_chunks(
        lambda some: _project_chunk(
            target[some], mass[some], allowance[some], high, cost, start.take(some), cold, tol, max_iterations
        ),
        len(mass),
        target[0].numel(),
        target.device,
    )


def _project_chunk(
    target: Tensor,
    mass: Tensor,
    budget: Tensor,
    high: float,
    cost: Cost,
    start: Step,
    cold: bool,
    tol: float,
    max_iterations: int,
) -> Solution:
    # Nothing can move without a budget: at this λ the identity is optimal, and proves itself so.
    still = upper_bound(target, mass, cost)
    white = (mass >= high).all(dim=cost.space, keepdim=True).expand_as(mass)
    floor = torch.where(white, -torch.inf, 0.0).double()
    problem = Problem(target.double(), mass.double(), budget, still, floor, high, cost)
    point = problem.evaluate(torch.where(budget > 0, start.lam, still), start.mu)
    iterations = torch.ones_like(budget, dtype=torch.int64)
    residual = problem.residual(point)
    todo = ((residual > tol) & (budget > 0)).nonzero().squeeze(1)
    if cold and len(todo):
        part = problem.take(todo)
        found = part.evaluate(*_cheap_duals(target[todo], mass[todo], budget[todo], high, cost))
        nearer = part.residual(found) < residual[todo]
        point.put(todo[nearer], found.take(nearer))
        residual = problem.residual(point)
        iterations[todo] += FIRST_ROUNDS + 2
    flat = Step(torch.ones_like(point.lam), torch.ones_like(point.mu))
    for count in range(max_iterations):
        near = (residual <= max(ROUGH, tol)) & (problem.budget > budget)
        if near.any():
            spent = problem.budget + point.gradient.lam.clamp(max=0)
            tighter = torch.where(near, torch.maximum(spent / TIGHTEN, budget), problem.budget)
            problem, point = problem.with_budget(tighter, point)
            residual = problem.residual(point)
        todo = ((residual > tol) & (budget > 0)).nonzero().squeeze(1)
        if len(todo) == 0:
            break
        if count == PATIENCE:
            # With a tiny budget next to nothing moves: the dual is almost piecewise linear, and Newton's method creeps
            # from kink to kink. Where much moves there is curvature to go by, so the budget is approached from above.
            point.put(todo, problem.take(todo).evaluate(torch.zeros_like(budget[todo]), point.mu[todo]))
            loose = budget.index_add(0, todo, point.gradient.lam[todo].clamp(min=0))
            problem, point = problem.with_budget(loose, point)
            residual = problem.residual(point)
            iterations[todo] += 1
            flat.lam[todo], flat.mu[todo] = 1.0, 1.0
        part = problem.take(todo)
        step, stretch = part.newton(point.take(todo), residual[todo], flat.take(todo))
        found, evaluations = part.line_search(point.take(todo), step)
        point.put(todo, found)
        flat.lam[todo], flat.mu[todo] = stretch
        iterations[todo] += evaluations
        residual[todo] = part.residual(found)
    problem, point = problem.with_budget(budget, point)
    residual = problem.residual(point)
    answer, image, spent = within_box(point.rows.plan, mass, budget, high, cost, target.dtype)
    gap = problem.distance(answer) - point.value
    return Solution(
        plan=answer,
        image=image,
        lam=point.lam,
        spent=spent,
        iterations=iterations,
        converged=(residual <= tol) | (budget == 0),
        gap=gap.clamp(min=0),
        mu=torch.where(white, point.mu - point.mu.amin(cost.space, keepdim=True), point.mu),
    )


def _cheap_duals(target: Tensor, mass: Tensor, budget: Tensor, high: float, cost: Cost) -> Step:
    """Where the duals of a step that goes nowhere lead, in the precision of ``target``."""
    still = target, torch.zeros_like(mass), 0.0, mass, budget, cost, (0, high)
    found = box_step(*still, rounds=FIRST_ROUNDS, validate=False)
    assert found.mu is not None
    return Step(found.lam, found.mu.double())
