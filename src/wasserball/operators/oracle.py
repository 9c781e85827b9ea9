"""The linear minimisation oracle over the ball: exact, which the paper gave up on, and entropic (paper §4)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from wasserball.checks import Ranges, check_like, check_per_sample, check_positive, check_tolerance
from wasserball.kernels import Backend, choose
from wasserball.kernels.interface import Mixture
from wasserball.kernels.reference import Moves, best_moves, move, soft_moves, softmax
from wasserball.operators.dual import MAX_EVALUATIONS, spend_budget
from wasserball.operators.rounding import per_sample, within_budget
from wasserball.operators.solution import Solution, chunks
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost, LocalCost, check_mass


class Answer(NamedTuple):
    """A plan that is not stored: ``entries(k)`` makes the slice of its ``k``-th destination when it is needed."""

    entries: Callable[[int], Tensor]
    lam: Tensor
    spent: Tensor
    iterations: Tensor
    converged: Tensor
    gap: Tensor


@torch.no_grad()
def linear_minimizer(
    gradient: Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    *,
    gamma: float = 0.0,
    tol: float = 1e-6,
    return_plan: bool = False,
    backend: Backend | None = None,
) -> Solution:
    """``argmin_Π <Π, H> + γ Σ Π log Π  s.t.  Π ≥ 0, Π1 = mass, <C, Π> ≤ budget`` (paper eq. 12; eq. 16 for γ > 0).

    ``gradient`` is shaped like the mass, and ``H`` is the gradient at the destination of each entry.

    γ = 0 is solved exactly. The dual (Prop. 4) is piecewise linear in λ, and minimising the Lagrangian at its optimum
    does not give the primal back (App. D); but at the two sides of that breakpoint each pixel sends all its mass to one
    destination, and the mixture of the two plans that spends the budget is optimal. ``gap`` is its proof.
    γ > 0 is the paper's smooth dual (Prop. 6–8), solved for λ to ``tol`` of the budget by Newton's method.

    Without ``return_plan`` memory is linear in the number of pixels.

    >>> mass, cost = torch.tensor([[[[0.0, 0.5, 0.5]]]]), wb.LocalCost(3)
    >>> gradient = torch.tensor([[[[-1.0, 0.0, 0.0]]]])
    >>> solution = wb.operators.linear_minimizer(gradient, mass, 0.1, cost)
    >>> solution.image, bool(solution.gap < 1e-12)
    (tensor([[[[0.1000, 0.4000, 0.5000]]]]), True)
    """
    ranges = Ranges()
    check_mass(mass, cost, None, ranges)
    check_like("gradient", gradient, mass.shape, mass, ranges)
    allowance = check_per_sample("budget", budget, mass, ranges)
    ranges.check()
    check_tolerance("tol", tol)
    smoothing = 0.0 if gamma == 0 else check_positive("gamma", gamma)
    found = mixture(gradient, mass, allowance, cost, gamma=smoothing, tol=tol, backend=backend)
    state = {name: value for name, value in found._asdict().items() if name != "blend"}
    if not return_plan:
        return Solution(plan=None, **state)
    plan = gradient.new_zeros(cost.plan_shape(mass))
    once = torch.ones_like(allowance)
    found.blend(plan, once, once)
    for some in chunks(len(mass), plan[0].numel(), plan.device):
        plan[some], state["spent"][some] = within_budget(plan[some], mass[some], allowance[some], cost, plan.dtype)
        state["image"][some] = cost.scatter(plan[some].double()).to(plan.dtype)
    return Solution(plan=plan, **state)


@torch.no_grad()
def mixture(
    gradient: Tensor,
    mass: Tensor,
    budget: Tensor,
    cost: Cost,
    *,
    gamma: float = 0.0,
    tol: float = 1e-6,
    accuracy: float = 0.0,
    backend: Backend | None = None,
) -> Mixture:
    """:func:`linear_minimizer` as Frank-Wolfe needs it: unchecked, without waiting for a GPU, and with a plan that is
    not stored but blended into another one. For γ = 0 a backend may stop where the gap is the share ``accuracy`` of
    what the answer gains over staying put; ``gap`` says where it did."""
    fast = choose(backend, cost, gradient, mass)
    if fast is not None:
        assert isinstance(cost, LocalCost)
        if gamma == 0:
            return fast.exact_oracle(gradient, mass, budget, cost, accuracy)
        return fast.entropic_oracle(gradient, mass, budget, cost, gamma, tol)
    count = cost.plan_shape(mass)[cost.axis]
    parts: list[tuple[slice, Answer, Tensor]] = []
    for some in chunks(len(mass), mass[0].numel() * count, mass.device):
        problem = gradient[some], mass[some], budget[some], cost
        answer = _exact(*problem) if gamma == 0 else _entropic(*problem, gamma, tol)
        parts.append((some, answer, cost.scatter_slices(count, answer.entries).to(gradient.dtype)))

    def blend(plan: Tensor, keep: Tensor, share: Tensor) -> None:
        for some, answer, _ in parts:
            for k in range(count):
                entries = plan[some].select(cost.axis, k)
                kept, added = (per_sample(part[some], entries).to(plan.dtype) for part in (keep, share))
                # Not kept: nothing is left of what was there, not even where that is not finite.
                entries.mul_(kept).masked_fill_(kept == 0, 0.0).addcmul_(answer.entries(k).to(plan.dtype), added)

    lam, spent, iterations, converged, gap = (
        torch.cat(column) for column in zip(*(answer[1:] for _, answer, _ in parts), strict=True)
    )
    return Mixture(torch.cat([image for _, _, image in parts]), lam, spent, iterations, converged, gap, blend)


class Vertex(NamedTuple):
    """Plans that send the mass of each pixel to one destination, and the points of the dual they stand for."""

    destination: Tensor
    value: Tensor
    """``<Π, H>``"""
    spent: Tensor


def _exact(gradient: Tensor, mass: Tensor, budget: Tensor, cost: Cost) -> Answer:
    moves, mass = best_moves(gradient, cost), mass.double()
    samples = torch.arange(len(mass), device=mass.device)
    low_lam = torch.zeros_like(budget)
    high_lam = _still_from(moves, gradient, mass, cost, low_lam)
    low = _vertex(moves, mass, low_lam, samples, cost)
    high = Vertex(cost.home(mass), sample_sum(mass * gradient), torch.zeros_like(budget))
    iterations = torch.ones_like(samples)
    # The budget does not bind where even the unpriced best is affordable.
    free = low.spent <= budget
    lam, dual = torch.zeros_like(budget), low.value.clone()
    # Rounding of a Lagrangian: below it, two vertices are the same point of the dual.
    noise = 1e-14 * sample_sum(mass * gradient.double().abs())
    converged = free.clone()
    todo = (~converged).nonzero().squeeze(1)
    for _ in range(MAX_EVALUATIONS - 1):
        if len(todo) == 0:
            break
        # The Lagrangians of both ends, value + λ·spent, cross where no vertex was seen yet, or at the optimum.
        crossing = (high.value[todo] - low.value[todo]) / (low.spent[todo] - high.spent[todo])
        at = torch.minimum(torch.maximum(crossing, low_lam[todo]), high_lam[todo])
        seen = _vertex(moves, mass, at, todo, cost)
        iterations[todo] += 1
        lam[todo] = at
        dual[todo] = seen.value + at * (seen.spent - budget[todo])
        below = low.value[todo] + at * low.spent[todo] - (seen.value + at * seen.spent)
        converged[todo] = below <= noise[todo] + 1e-14 * at * low.spent[todo]
        for end, lams, better in (
            (low, low_lam, ~converged[todo] & (seen.spent > budget[todo])),
            (high, high_lam, ~converged[todo] & (seen.spent <= budget[todo])),
        ):
            chosen = todo[better]
            lams[chosen] = at[better]
            for old, new in zip(end, seen, strict=True):
                old[chosen] = new[better]
        todo = todo[~converged[todo]]
    rise = low.spent - high.spent
    # A trace below the exact share, so that rounding does not exceed the budget.
    share = torch.where(free, 1.0, (budget - high.spent) / rise * (1 - 1e-15))
    value, spent = (torch.lerp(high_end, low_end, share) for high_end, low_end in zip(high[1:], low[1:], strict=True))
    part = per_sample(share, mass)

    def entries(k: int) -> Tensor:
        return mass * (part * (low.destination == k) + (1 - part) * (high.destination == k))

    return Answer(entries, lam, spent, iterations, converged, (value - dual).clamp(min=0))


def _vertex(moves: Moves, mass: Tensor, lam: Tensor, samples: Tensor, cost: Cost) -> Vertex:
    """The cheapest of the plans that minimise ``<Π, H + λC>`` (Prop. 4)."""
    value, mass = moves.value[samples], mass[samples]
    priced = value + per_sample(lam, value) * moves.price
    best = torch.where(priced <= priced.amin(cost.axis, keepdim=True), moves.price, torch.inf)
    choice = best.argmin(cost.axis, keepdim=True)

    def chosen(table: Tensor) -> Tensor:
        return table.expand_as(value).gather(cost.axis, choice).squeeze(cost.axis)

    destination = choice.squeeze(cost.axis) if moves.destination is None else chosen(moves.destination[samples])
    return Vertex(destination, sample_sum(mass * chosen(value)), sample_sum(mass * chosen(moves.price)))


def _still_from(moves: Moves, gradient: Tensor, mass: Tensor, cost: Cost, extra: Tensor) -> Tensor:
    """The smallest λ with ``value + λ·price ≥ gradient + extra`` wherever mass could move (Prop. 5 and 8, sharper)."""
    stays = (gradient.double() + per_sample(extra, gradient)).unsqueeze(cost.axis)
    able = (moves.price > 0) & torch.isfinite(moves.value) & (mass > 0).unsqueeze(cost.axis)
    return torch.where(able, (stays - moves.value) / moves.price, 0.0).flatten(1).amax(1).clamp(min=0)


def _entropic(gradient: Tensor, mass: Tensor, budget: Tensor, cost: Cost, gamma: float, tol: float) -> Answer:
    moves, mass = soft_moves(gradient, cost, gamma), mass.double()
    prices = torch.where(torch.isfinite(moves.value), moves.price, 0.0)
    everything = sample_sum(ordered_sum(prices, cost.axis) * mass)
    # A budget of 0 needs an infinite λ; one that no plan can exceed needs none.
    extra = (gamma * (everything / budget).log()).nan_to_num(0.0, posinf=0.0, neginf=0.0)
    upper = _still_from(moves, gradient, mass, cost, extra)

    def weigh(lam: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        value = moves.value[samples]
        return softmax((value + per_sample(lam, value) * moves.price) / -gamma, cost.axis)

    def evaluate(lam: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        weight, _ = weigh(lam, samples)
        mean = ordered_sum(weight * moves.price, cost.axis)
        spread = ordered_sum(weight * (moves.price - mean.unsqueeze(cost.axis)).square(), cost.axis)
        return sample_sum(mass[samples] * mean), -sample_sum(mass[samples] * spread) / gamma

    everyone = torch.arange(len(mass), device=mass.device)
    root = spend_budget(evaluate, budget, upper, torch.zeros_like(budget), tol)
    # Where γ is so small that no λ in float64 spends the budget, mix both sides of the jump as in the exact oracle.
    lam = torch.where(root.converged, root.lam, root.high)
    under, over = evaluate(lam, everyone)[0], evaluate(root.low, everyone)[0]
    jump = ~root.converged & (over > under)
    share = torch.where(jump, (budget - under) / (over - under), 0.0).clamp(0, 1)
    totals = weigh(lam, everyone)[1], weigh(root.low, everyone)[1]
    home, stuck = cost.home(mass), per_sample(budget == 0, mass)

    def unscaled(k: int) -> Tensor:
        value, price = move(gradient, cost, k)
        high, low = (
            ((value + per_sample(at, mass) * price) / -gamma - total).exp()
            for at, total in zip((lam, root.low), totals, strict=True)
        )
        return torch.where(stuck, (home == k).double(), torch.lerp(high, low, per_sample(share, mass)))

    # The rows would add up to 1 by themselves, but for what is lost where the gradient is far larger than γ.
    row_sums = torch.zeros_like(mass)
    for k in range(cost.plan_shape(mass)[cost.axis]):
        row_sums += unscaled(k)

    spent = torch.lerp(under, over, share) * (budget > 0)
    gap = lam * (budget - spent) + (lam - root.low) * share * (over - budget).clamp(min=0)
    narrow = lam - root.low <= 1e-12 * lam
    return Answer(
        entries=lambda k: mass * unscaled(k) / row_sums,
        lam=lam,
        spent=spent,
        iterations=root.evaluations,
        converged=root.converged | narrow | (budget == 0),
        gap=gap,
    )
