"""The exact projection onto the Wasserstein ball in coupling space (paper §3, Alg. 1, with Newton for bisection)."""

import torch
from torch import Tensor

from wasserball.checks import Ranges, check_like, check_out, check_per_sample, check_range, check_tolerance
from wasserball.kernels import Backend, choose
from wasserball.kernels.reference import project_rows
from wasserball.operators.dual import Evaluate, Root, spend_budget
from wasserball.operators.rounding import per_sample, within_budget
from wasserball.operators.solution import Solution, solve_in_chunks
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost, LocalCost, check_mass


@torch.no_grad()
def project(
    target: Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    *,
    lam: Tensor | None = None,
    tol: float = 1e-6,
    backend: Backend | None = None,
    out: Tensor | None = None,
    validate: bool = True,
) -> Solution:
    """``argmin_Π ½‖Π − target‖²  s.t.  Π ≥ 0, Π1 = mass, <C, Π> ≤ budget`` (paper eq. 4).

    By Prop. 1 and 3 the answer is ``Π(λ)``, the row-wise simplex projection of ``target − λC``, at the λ ≥ 0 that
    spends the budget, or at λ = 0 where that spends less. The spending ``<C, Π(λ)>`` is piecewise linear with slope
    ``−Σ_rows Σ_active (C − mean_active C)²``: Newton's method finds λ in a handful of evaluations.

    The plan never spends more than the budget, and leaves at most ``tol`` of it where λ > 0. ``lam`` warm-starts the
    search. ``out`` is where to put the plan, the target itself if you like. The fast backends compute in the dtype of
    ``target`` with sums in float64, the reference all in float64. ``validate=False`` trusts the values of all arguments
    and does not wait for a GPU.

    >>> mass, cost = torch.tensor([[[[0.0, 0.5, 0.5]]]]), wb.LocalCost(3)
    >>> solution = wb.operators.project(torch.rand(cost.plan_shape(mass)), mass, 0.1, cost)
    >>> solution.spent, solution.converged
    (tensor([0.1000], dtype=torch.float64), tensor([True]))
    """
    ranges = Ranges(validate)
    if validate:
        check_mass(mass, cost, None, ranges)
        check_like("target", target, cost.plan_shape(mass), mass, ranges)
        check_out(out, target)
        check_tolerance("tol", tol)
    allowance = check_per_sample("budget", budget, mass, ranges)
    start = None if lam is None else check_per_sample("lam", lam, mass, ranges)
    ranges.check()
    return _project(target, None, None, mass, allowance, cost, start, tol, backend, out)


@torch.no_grad()
def project_step(
    plan: Tensor,
    gradient: Tensor,
    step: float | Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    *,
    lam: Tensor | None = None,
    tol: float = 1e-6,
    backend: Backend | None = None,
    out: Tensor | None = None,
    validate: bool = True,
) -> Solution:
    """:func:`project` of ``plan + step · gradient[destination]``: one step of gradient ascent (paper §3).

    ``gradient`` is shaped like the mass: the objective sees the plan through its column sums alone, so all entries that
    arrive at a pixel share its gradient. ``step`` is a number or one for each sample. ``out=plan`` updates in place.

    >>> mass, cost = torch.tensor([[[[0.0, 0.5, 0.5]]]]), wb.LocalCost(3)
    >>> gradient = torch.tensor([[[[1.0, 0.0, 0.0]]]])
    >>> wb.operators.project_step(cost.identity(mass), gradient, 1.0, mass, 0.1, cost).image
    tensor([[[[0.1000, 0.4000, 0.5000]]]])
    """
    ranges = Ranges(validate)
    if validate:
        check_mass(mass, cost, None, ranges)
        check_like("plan", plan, cost.plan_shape(mass), mass, ranges)
        check_like("gradient", gradient, mass.shape, mass, ranges)
        check_out(out, plan)
        check_tolerance("tol", tol)
    size = check_per_sample("step", step, mass, ranges)
    allowance = check_per_sample("budget", budget, mass, ranges)
    start = None if lam is None else check_per_sample("lam", lam, mass, ranges)
    check_step(step, gradient, ranges.check())
    return _project(plan, gradient, size, mass, allowance, cost, start, tol, backend, out)


def check_step(step: float | Tensor, gradient: Tensor, largest: dict[str, float] | None = None) -> None:
    """Raise ``ValueError`` where ``step · gradient`` is more than its dtype can hold.

    Where the ``largest`` of both is known, and small enough, there is no need to look.
    """
    if largest is not None:
        longest = largest.get("step", 0.0 if isinstance(step, Tensor) else step) * largest.get("gradient", 0.0)
        if longest <= torch.finfo(gradient.dtype).max:
            return
    size = check_per_sample("step", step, gradient)
    check_range("step · gradient", (per_sample(size, gradient) * gradient.double()).to(gradient.dtype))


def _project(
    plan: Tensor,
    gradient: Tensor | None,
    step: Tensor | None,
    mass: Tensor,
    budget: Tensor,
    cost: Cost,
    start: Tensor | None,
    tol: float,
    backend: Backend | None,
    out: Tensor | None,
) -> Solution:
    fast = choose(backend, cost, plan, mass, *(() if gradient is None else (gradient,)))
    if fast is not None:
        assert isinstance(cost, LocalCost)
        return Solution(**fast.project(plan, gradient, step, mass, budget, cost, start, tol, out)._asdict())
    lam = torch.zeros_like(budget) if start is None else start

    def solve(some: slice) -> Solution:
        target = plan[some]
        if gradient is not None and step is not None:
            change = per_sample(step[some], gradient) * gradient[some].double()
            target = target + cost.gather(change.to(gradient.dtype))
        return _project_chunk(target, mass[some], budget[some], cost, lam[some], tol)

    return solve_in_chunks(solve, len(mass), plan[0].numel(), plan.device, out)


def _project_chunk(target: Tensor, mass: Tensor, budget: Tensor, cost: Cost, start: Tensor, tol: float) -> Solution:
    price, allowed = cost.entries(mass)
    upper = upper_bound(target, mass, cost)
    plan = torch.empty(target.shape, dtype=torch.float64, device=target.device)

    def evaluate(lam: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        chosen = slice(None) if len(samples) == len(mass) else samples
        rows = project_rows(target[chosen] - per_sample(lam, target) * price, mass[chosen], allowed, cost.axis)
        plan[chosen] = rows.plan  # the last evaluation of a sample is its answer
        prices = torch.where(rows.active, price, 0.0)
        spread = ordered_sum(prices.square(), cost.axis) - ordered_sum(prices, cost.axis).square() / rows.size
        return sample_sum(ordered_sum(rows.plan * price, cost.axis)), -sample_sum(spread.clamp(min=0))

    root = spend_budget(evaluate, budget, upper, torch.where(budget > 0, start, upper), tol)
    mixing = torch.zeros_like(budget)
    stuck = (~root.converged).nonzero().squeeze(1)
    if len(stuck):
        mixing[stuck] = _mix_bracket(root, stuck, upper, evaluate, plan, mass, budget, cost)
    answer, spent = within_budget(plan, mass, budget, cost, target.dtype)
    return Solution(
        plan=answer,
        image=cost.scatter(answer.double()).to(answer.dtype),
        lam=root.lam,
        spent=spent,
        iterations=root.evaluations,
        converged=root.converged | (root.high - root.low <= 1e-12 * root.high),
        gap=root.lam * (budget - spent) + mixing,
    )


def upper_bound(target: Tensor, mass: Tensor, cost: Cost) -> Tensor:
    """A λ from which on nothing moves: ``max (G_ij − G_ii + x_i) / C_ij`` over rows with mass (Prop. 2, sharper)."""
    price, allowed = cost.entries(mass)
    stays = (cost.diagonal(target).double() - mass).unsqueeze(cost.axis)
    moves = allowed & (price > 0) & (mass > 0).unsqueeze(cost.axis)
    return torch.where(moves, (target - stays) / price, 0.0).flatten(1).amax(1).clamp(min=0)


def _mix_bracket(
    root: Root,
    stuck: Tensor,
    upper: Tensor,
    evaluate: Evaluate,
    plan: Tensor,
    mass: Tensor,
    budget: Tensor,
    cost: Cost,
) -> Tensor:
    """Where no λ in float64 spends the budget, mix the plans at both ends of the bracket so that it is spent.

    Returns what the mixing adds to the duality gap: at most ``(high − low)`` times the excess of the low end.
    """
    low, high = root.low[stuck], root.high[stuck]
    over, _ = evaluate(low, stuck)
    above = plan[stuck]
    under, _ = evaluate(high, stuck)
    nothing_moves = per_sample(high == upper[stuck], plan)  # by Prop. 2, whatever rounding says
    below = torch.where(nothing_moves, cost.identity(mass[stuck].double()), plan[stuck])
    under = torch.where(high == upper[stuck], 0.0, under)
    share = ((budget[stuck] - under) / (over - under)).nan_to_num(0.0).clamp(0, 1)
    plan[stuck] = torch.lerp(below, above, per_sample(share, plan))
    root.lam[stuck] = high
    return (high - low) * share * (over - budget[stuck]).clamp(min=0)
