"""Projected Sinkhorn (Wong, Schmidt & Kolter 2019; paper App. A): entropic projection in image space. A baseline."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from wasserball.checks import check_count, check_like, check_per_sample, check_positive, check_tolerance
from wasserball.kernels import Backend, choose
from wasserball.kernels.interface import SinkhornDual
from wasserball.operators.rounding import per_sample, within_budget
from wasserball.operators.solution import Solution, solve_in_chunks
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost, DenseCost, LocalCost, WassersteinBall


@torch.no_grad()
def sinkhorn(
    target: Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    *,
    gamma: float,
    tol: float = 1e-6,
    max_iterations: int = 1000,
    backend: Backend | None = None,
) -> Solution:
    """``argmin_{z,Π} ½‖z − target‖² + γΣΠ log Π  s.t.  Π ≥ 0, Π1 = mass, Πᵀ1 = z, <C, Π> ≤ budget`` (paper App. A).

    ``target`` is shaped like the mass. As in the paper, γ is meant for a sample whose masses sum to 1: all is divided
    by ``T = Σ mass``, and what is returned is in the caller's units: the plan times T, ψ times T, the gap times T².

    Block coordinate ascent on the dual, in log space. A sample is done when its dual objective (over
    γ, as the authors scale it) moved by at most ``tol + tol·|objective|``; the point where that was seen is returned.
    The authors' 1e-4 was applied to an objective with two arguments swapped, which takes several times the iterations
    to settle. On the real one 1e-4 stops well short, and 1e-6 is about as accurate as their code was.

    The answer is the plan at that point and its column sums. They keep the mass and are closer to the optimum than
    ``z = target − β``, which has no plan before the limit; where the budget is still overspent, a share of every move
    stays at home. So the answer lies in the ball also where ``converged`` is false; where numbers overflowed it is
    ``mass``, with an infinite gap. The gap is the entropic objective of the answer minus the dual one.

    >>> mass, cost = torch.tensor([[[[0.0, 0.5, 0.5]]]]), wb.LocalCost(3)
    >>> target = torch.tensor([[[[1.0, 0.0, 0.0]]]])
    >>> solution = wb.operators.sinkhorn(target, mass, 0.1, cost, gamma=0.1)
    >>> solution.converged, bool(solution.spent <= 0.1)
    (tensor([True]), True)
    """
    WassersteinBall(mass, 0.0, cost)
    check_like("target", target, mass.shape, mass)
    delta = check_per_sample("budget", budget, mass)
    check_positive("gamma", gamma)
    check_tolerance("tol", tol)
    check_count("max_iterations", max_iterations)
    total = sample_sum(mass.double())
    unit = torch.where(total > 0, total, 1.0)
    scale = per_sample(unit, mass)
    # Without mass or budget a single point is feasible, and the dual reaches its supremum only as ψ → ∞.
    fixed = (total == 0) | (delta == 0)
    problem = _Problem(target / scale, mass / scale, torch.where(fixed, 0.0, delta / unit))
    # Kernels take all samples at once, since some need many times the iterations of others; plans take room.
    fast = choose(backend, cost, problem.mass)
    known = None
    if fast is not None:
        assert isinstance(cost, LocalCost)
        known = fast.ascend_sinkhorn(*problem, cost, gamma, tol, max_iterations)

    def solve(some: slice) -> Solution:
        if known is None:
            dual = _ascend(_Problem(*(field[some] for field in problem)), cost, gamma, tol, max_iterations)
        else:
            dual = SinkhornDual(*(field[some] for field in known))
        return _recover(dual, target[some], mass[some], delta[some], unit[some], fixed[some], cost, gamma)

    return solve_in_chunks(solve, len(mass), mass[0].numel() * cost.plan_shape(mass)[cost.axis], mass.device)


def _recover(
    dual: SinkhornDual,
    target: Tensor,
    mass: Tensor,
    delta: Tensor,
    unit: Tensor,
    fixed: Tensor,
    cost: Cost,
    gamma: float,
) -> Solution:
    """The plan that belongs to the dual variables."""
    moved = torch.isfinite(dual.objective) & ~fixed
    # The rows of exp(α + β − ψC − 1), divided by their sums rather than through α so that they keep the mass exactly.
    scores = _scores(dual.beta, dual.psi, cost)
    weight = (scores - scores.amax(cost.axis, keepdim=True)).exp()
    weight *= (mass / ordered_sum(weight, cost.axis)).unsqueeze(cost.axis)
    weight = torch.where(per_sample(moved, weight), weight, cost.identity(mass.double()))
    plan, spent = within_budget(weight, mass, delta, cost, target.dtype)
    image = cost.scatter(plan.double())
    share = plan / per_sample(unit, plan)
    entropy = sample_sum(ordered_sum(torch.xlogy(share, share), cost.axis))
    gap = sample_sum((image - target).square()) / 2 + gamma * unit**2 * (entropy - dual.objective)
    return Solution(
        plan=plan,
        image=image.to(target.dtype),
        lam=torch.where(fixed, torch.where(mass.flatten(1).amax(1) > 0, torch.inf, 0.0), gamma * unit * dual.psi),
        spent=spent,
        iterations=dual.iterations,
        converged=fixed | (moved & dual.converged),
        gap=torch.where(fixed, 0.0, torch.where(moved, gap, torch.inf)),
    )


class _Problem(NamedTuple):
    """Samples whose masses sum to 1, in float64; a budget of 0 says that nothing is to be found."""

    target: Tensor
    mass: Tensor
    budget: Tensor


class _Dual(NamedTuple):
    """The dual variables and objective, all divided by γ: ``log Π_ij = α_i + β_j − ψ C_ij − 1``."""

    alpha: Tensor
    beta: Tensor
    psi: Tensor
    objective: Tensor


def _ascend(problem: _Problem, cost: Cost, gamma: float, tol: float, max_iterations: int) -> SinkhornDual:
    """``argmax <α, mass> + <β, target> − ½γ‖β‖² − ψ·budget − ΣΠ`` over α, β and ψ ≥ 0.

    A sample that is done is not touched again.
    """
    wanted = problem.budget > 0
    result = _maximize_alpha(torch.zeros_like(problem.mass), torch.ones_like(problem.budget), problem, cost, gamma)
    iterations, converged = torch.zeros_like(wanted, dtype=torch.int64), torch.zeros_like(wanted)
    # What arrives at j from all i is what leaves j for all i under the transposed cost; a local cost is its own.
    transposed = DenseCost(cost.matrix.T) if isinstance(cost, DenseCost) else cost
    live = wanted.nonzero().squeeze(1)
    part, dual = _Problem(*(field[live] for field in problem)), _Dual(*(field[live] for field in result))
    for iteration in range(1, max_iterations + 1):
        if len(live) == 0:
            break
        before = dual.objective
        beta = _maximize_beta(dual, part, transposed, gamma)
        psi = _raise_psi(dual._replace(beta=beta), part, cost)
        dual = _maximize_alpha(beta, psi, part, cost, gamma)
        for stored, fresh in zip(result, dual, strict=True):
            stored[live] = fresh
        change, allowed = (dual.objective - before).abs(), tol + tol * before.abs()
        iterations[live], converged[live] = iteration, change <= allowed
        going = change > allowed  # false where it is not a number: such a sample ends, and has not converged
        live = live[going]
        part, dual = _Problem(*(field[going] for field in part)), _Dual(*(field[going] for field in dual))
    return SinkhornDual(result.beta, result.psi, result.objective, iterations, converged)


def _maximize_alpha(beta: Tensor, psi: Tensor, problem: _Problem, cost: Cost, gamma: float) -> _Dual:
    """The best α makes the rows exact, ``Π1 = mass``; then ``ΣΠ = 1``, and the dual objective costs nothing more."""
    alpha = problem.mass.log() + 1 - _log_sum_exp(_scores(beta, psi, cost), cost.axis)
    sent = torch.where(problem.mass > 0, alpha * problem.mass, 0.0)
    objective = sample_sum(sent + beta * problem.target - gamma / 2 * beta.square()) - psi * problem.budget - 1
    return _Dual(alpha, beta, psi, objective)


def _maximize_beta(dual: _Dual, problem: _Problem, transposed: Cost, gamma: float) -> Tensor:
    """The best β has ``target − γβ = Πᵀ1``: with ``y`` the column sums over γ, ``y + log y = u`` for a known u."""
    arriving = _log_sum_exp(_scores(dual.alpha, dual.psi, transposed), transposed.axis) - 1
    return problem.target / gamma - _wright_omega(problem.target / gamma + arriving - math.log(gamma))


def _raise_psi(dual: _Dual, problem: _Problem, cost: Cost) -> Tensor:
    """A Newton step on ``<C, Π(ψ)> = budget`` that stays on its side of the solution, so that the dual cannot fall.

    ``<C, Π(ψ)> = Σ m e^(−ψC)`` is log-convex and decreasing: from the left, Newton's step on its logarithm falls short.
    From the right, the step t to the left falls short if taken on the upper bound ``e^(tC) ≤ 1 + C (e^(tR) − 1) / R``,
    R the largest cost; both agree with plain Newton to first order.
    """
    price, _ = cost.entries(problem.mass)
    farthest = price.amax().clamp(min=torch.finfo(price.dtype).tiny)
    moved = _log_plan(dual, cost).exp() * price
    spent = sample_sum(ordered_sum(moved, cost.axis))
    slope = sample_sum(ordered_sum(moved * price, cost.axis))
    forward = (spent.log() - problem.budget.log()) * spent / slope
    back = torch.log1p(farthest * (problem.budget - spent) / slope) / farthest
    return (dual.psi + torch.where(spent > problem.budget, forward, -back)).clamp(min=0)


def _scores(potential: Tensor, psi: Tensor, cost: Cost) -> Tensor:
    """``potential_j − ψ C_ij`` in the layout of a plan, −∞ where the move is forbidden."""
    price, allowed = cost.entries(potential)
    there = cost.gather(potential)
    return torch.where(allowed, there - per_sample(psi, there) * price, -torch.inf)


def _log_plan(dual: _Dual, cost: Cost) -> Tensor:
    return dual.alpha.unsqueeze(cost.axis) + _scores(dual.beta, dual.psi, cost) - 1


def _log_sum_exp(scores: Tensor, axis: int) -> Tensor:
    """``log Σ exp`` in a fixed order of additions; −∞ where all scores are."""
    top = scores.amax(axis, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0.0)
    return ordered_sum((scores - top).exp(), axis).log() + top.squeeze(axis)


def _wright_omega(u: Tensor) -> Tensor:
    """``y > 0`` such that ``y + log y = u`` (Wright's ω, the Lambert function of ``e^u``), for any u and −∞.

    Newton's method for ``v = log y`` in ``e^v + v = u``. The left side is convex, so from above it comes down without
    overshooting, and v is concave in u, so its tangents at −∞ and 1 lie above it, as does ``log u``. Five steps reach
    the last digit for every u.
    """
    u = u.clamp(min=-800)  # where y is 0 in float64 already
    v = torch.minimum(torch.where(u > 1, u.clamp(min=1).log(), u), (u - 1) / 2)
    for _ in range(5):
        y = v.exp()
        v = v - (y + v - u) / (y + 1)
    return v.exp()
