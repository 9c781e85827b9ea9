"""The projection onto ball ∩ pixel box: a semismooth Newton method on the duals (paper App. G, solved to the end).

The dual ``g(λ, μ)`` of the capacity constrained projection is concave and piecewise quadratic. On a piece, a change of
the duals by ``(dλ, dμ)`` changes an active entry of a row by ``q = dλ·C + dμ[dest]`` less its mean over the row, so a
product with the Hessian (the Laplacian of the graph "these pixels share a sender") is two passes over the plan, and
conjugate gradients solve for the Newton step without ever forming it. Where that takes long, the answer is followed
from a loose budget to the one that is asked for.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from wasserball.checks import check_bounds, check_count, check_like, check_per_sample, check_tolerance
from wasserball.kernels.reference import Rows, project_rows
from wasserball.operators.box_step import box_step
from wasserball.operators.projection import upper_bound
from wasserball.operators.rounding import as_pixel, per_sample, within_box
from wasserball.operators.solution import Solution, solve_in_chunks
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost, WassersteinBall

FIRST_ROUNDS = 10
"""Of cheap updates of the duals, to begin with what they lead to: on photographs that takes a third of the time."""
CONJUGATE_STEPS = 100
BUDGET_WEIGHT = 1e-2
"""A pixel that is over must be cut, but what is left of the budget is only unused: it need not be met as sharply."""
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
    start = _Step(start_lam, start_mu.double().clamp(min=0))
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
    start: "_Step",
    cold: bool,
    tol: float,
    max_iterations: int,
) -> Solution:
    # Nothing can move without a budget: at this λ the identity is optimal, and proves itself so.
    still = upper_bound(target, mass, cost)
    white = (mass >= high).all(dim=cost.space, keepdim=True).expand_as(mass)
    floor = torch.where(white, -torch.inf, 0.0).double()
    problem = _Problem(target.double(), mass.double(), budget, still, floor, high, cost)
    point = problem.evaluate(torch.where(budget > 0, start.lam, still), start.mu)
    iterations = torch.ones_like(budget, dtype=torch.int64)
    residual = problem.residual(point)
    todo = ((residual > tol) & (budget > 0)).nonzero().squeeze(1)
    if cold and len(todo):
        nowhere = torch.zeros_like(mass[todo]), 0.0
        cheap = box_step(target[todo], *nowhere, mass[todo], budget[todo], cost, (0, high), rounds=FIRST_ROUNDS)
        assert cheap.mu is not None
        part = problem.take(todo)
        found = part.evaluate(cheap.lam, cheap.mu.double())
        iterations[todo] += FIRST_ROUNDS + 2
        nearer = part.residual(found) < residual[todo]
        point.put(todo[nearer], found.take(nearer))
        residual = problem.residual(point)
    flat = _Step(torch.ones_like(point.lam), torch.ones_like(point.mu))
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
        step, stretch = part.newton(point.take(todo), residual[todo], _Step(flat.lam[todo], flat.mu[todo]))
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


class _Step(NamedTuple):
    """A vector of the dual space, and the few operations that conjugate gradients need on it."""

    lam: Tensor
    mu: Tensor

    def take(self, samples: Tensor | slice) -> "_Step":
        return _Step(self.lam[samples], self.mu[samples])

    def dot(self, other: "_Step") -> Tensor:
        return self.lam * other.lam + sample_sum(self.mu * other.mu)

    def plus(self, factor: Tensor, other: "_Step") -> "_Step":
        return _Step(self.lam + factor * other.lam, self.mu + per_sample(factor, self.mu) * other.mu)

    def times(self, other: "_Step") -> "_Step":
        return _Step(self.lam * other.lam, self.mu * other.mu)

    def where(self, chosen: "_Step") -> "_Step":
        return _Step(torch.where(chosen.lam, self.lam, 0.0), torch.where(chosen.mu, self.mu, 0.0))


class _Point(NamedTuple):
    """A pair of duals with the plan that minimises the Lagrangian there."""

    lam: Tensor
    mu: Tensor
    rows: Rows
    gradient: _Step
    """Spending above the budget, and mass above the capacity of each pixel."""
    value: Tensor
    """The dual objective."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.lam, self.mu, *self.rows, *self.gradient, self.value)

    def take(self, samples: Tensor) -> "_Point":
        lam, mu, plan, active, size, spent, excess, value = (tensor[samples] for tensor in self.tensors())
        return _Point(lam, mu, Rows(plan, active, size), _Step(spent, excess), value)

    def put(self, samples: Tensor, other: "_Point") -> None:
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine[samples] = theirs


class _Problem(NamedTuple):
    """The data of a batch of projections, in float64."""

    target: Tensor
    mass: Tensor
    budget: Tensor
    still: Tensor
    """A λ at which nothing moves, in the absence of the box: the scale of λ."""
    floor: Tensor
    """The least μ: 0, but −inf in an all-white channel, which has to stay full and so pins μ only up to a constant."""
    high: float
    cost: Cost

    def take(self, samples: Tensor) -> Self:
        return self._replace(
            target=self.target[samples],
            mass=self.mass[samples],
            budget=self.budget[samples],
            still=self.still[samples],
            floor=self.floor[samples],
        )

    def distance(self, plan: Tensor) -> Tensor:
        """The primal objective ``½‖Π − target‖²`` over the allowed entries."""
        _, allowed = self.cost.entries(self.mass)
        return sample_sum(ordered_sum(torch.where(allowed, plan - self.target, 0.0).square(), self.cost.axis)) / 2

    def evaluate(self, lam: Tensor, mu: Tensor) -> _Point:
        price, allowed = self.cost.entries(self.mass)
        scores = self.target - per_sample(lam, self.target) * price - self.cost.gather(mu)
        rows = project_rows(scores, self.mass, allowed, self.cost.axis)
        gradient = _Step(
            sample_sum(ordered_sum(rows.plan * price, self.cost.axis)) - self.budget,
            self.cost.scatter(rows.plan) - self.high,
        )
        return _Point(lam, mu, rows, gradient, self.distance(rows.plan) + gradient.dot(_Step(lam, mu)))

    def with_budget(self, budget: Tensor, point: _Point) -> tuple[Self, _Point]:
        """The problem with another budget, and the same duals as a point of it."""
        more = self.budget - budget
        gradient = point.gradient._replace(lam=point.gradient.lam + more)
        moved = point._replace(gradient=gradient, value=point.value + point.lam * more)
        return self._replace(budget=budget), moved

    def residual(self, point: _Point) -> Tensor:
        """How far each constraint is from being met with complementary slackness, relative to budget and capacity."""
        spent, excess = point.gradient
        pixel = (point.mu - torch.maximum(point.mu + excess, self.floor)).abs().flatten(1).amax(1)
        budget = torch.where(point.lam > 0, spent.abs(), spent.clamp(min=0))
        budget = torch.where(self.budget > 0, BUDGET_WEIGHT * budget / self.budget, 0.0)
        return torch.maximum(pixel / self.high, budget)

    def hessian(self, rows: Rows, step: _Step) -> _Step:
        axis = self.cost.axis
        price, _ = self.cost.entries(self.mass)
        change = torch.where(rows.active, per_sample(step.lam, rows.plan) * price + self.cost.gather(step.mu), 0.0)
        mean = (ordered_sum(change, axis) / rows.size).unsqueeze(axis)
        change = torch.where(rows.active, change - mean, 0.0)
        return _Step(sample_sum(ordered_sum(change * price, axis)), self.cost.scatter(change))

    def curvature(self, rows: Rows) -> _Step:
        """The diagonal of the Hessian."""
        axis = self.cost.axis
        price = torch.where(rows.active, self.cost.entries(self.mass)[0], 0.0)
        spread = ordered_sum(price.square(), axis) - ordered_sum(price, axis).square() / rows.size
        shared = torch.where(rows.active, (1 - 1 / rows.size).unsqueeze(axis), 0.0)
        return _Step(sample_sum(spread.clamp(min=0)), self.cost.scatter(shared))

    def newton(self, point: _Point, residual: Tensor, flat: _Step) -> tuple[_Step, _Step]:
        """The regularised Newton step on the duals that are free to move, the others going to 0.

        A pixel all of whose senders have nowhere else to go has no curvature: its dual must travel to the next piece,
        by steps that double (``flat``) as long as it stays so; likewise λ. Elsewhere a pixel's curvature is at least ½.
        """
        gradient, curvature = point.gradient, self.curvature(point.rows)
        price, _ = self.cost.entries(self.mass)
        free = _Step(
            point.lam * curvature.lam.clamp(min=1e-12) + gradient.lam > 0,
            point.mu + gradient.mu > self.floor,
        )
        level = _Step(curvature.lam <= 1e-14 * price.max() ** 2, curvature.mu < 0.25)
        leap = (self.still / 16 * flat.lam).clamp(min=torch.finfo(torch.float64).tiny)
        damping = 0.1 * per_sample(residual.clamp(max=1), point.mu)
        extra = _Step(
            torch.where(level.lam, (gradient.lam.abs() / leap).clamp(min=1e-30), 1e-12 * curvature.lam),
            torch.where(level.mu, 0.5 / flat.mu, 0.0) + damping * curvature.mu.clamp(min=0.5),
        )
        one = torch.ones_like(self.budget)
        to_zero = _Step(-point.lam, -point.mu).where(_Step(~free.lam, ~free.mu))
        wanted = gradient.plus(-one, self.hessian(point.rows, to_zero)).where(free)
        inverse = _Step(1 / (curvature.lam + extra.lam), 1 / (curvature.mu + extra.mu))

        def system(step: _Step) -> _Step:
            return self.hessian(point.rows, step).plus(one, extra.times(step)).where(free)

        step = _conjugate_gradients(system, wanted, inverse, 1e-4 * residual.clamp(1e-8, 1)).plus(one, to_zero)
        # A singular Hessian makes for steps that lead far beyond where anything changes, and back in many small ones.
        far = self.still * price.max() + self.mass.flatten(1).amax(1)
        longest = torch.maximum(price.max() * step.lam.abs(), step.mu.abs().flatten(1).amax(1))
        shorter = (far / longest).nan_to_num(1.0).clamp(max=1)
        stretch = _Step(
            torch.where(level.lam & free.lam, 2 * flat.lam, 1.0), torch.where(level.mu & free.mu, 2 * flat.mu, 1.0)
        )
        return step.plus(shorter - 1, step), stretch

    def line_search(self, point: _Point, step: _Step) -> tuple[_Point, Tensor]:
        """The first of the steps 1, ⅓, ⅑, … along which the dual rises (Armijo).

        A rise below the rounding of the dual is told from its slopes, as if it were quadratic: else, where pieces are
        tiny, Newton's method may jump to and fro between two of them.
        """
        length = torch.ones_like(self.budget)
        evaluations = torch.zeros_like(self.budget, dtype=torch.int64)
        noise = 1e-14 * point.value.abs()
        best: _Point | None = None
        todo = torch.arange(len(length), device=length.device)
        for _ in range(30):
            part, start = self.take(todo), point.take(todo)
            moved = _Step(start.lam, start.mu).plus(length[todo], _Step(step.lam[todo], step.mu[todo]))
            found = part.evaluate(moved.lam.clamp(min=0), torch.maximum(moved.mu, part.floor))
            evaluations[todo] += 1
            if best is None:
                best = found
            else:
                best.put(todo, found)
            way = _Step(found.lam - start.lam, found.mu - start.mu)
            slope, rise = way.dot(start.gradient), found.value - start.value
            rise = torch.where(rise.abs() <= noise[todo], (slope + way.dot(found.gradient)) / 2, rise)
            todo = todo[rise < 1e-4 * slope]
            length[todo] /= 3
            if len(todo) == 0:
                break
        assert best is not None
        return best, evaluations


def _conjugate_gradients(system: Callable[[_Step], _Step], wanted: _Step, inverse: _Step, accuracy: Tensor) -> _Step:
    """``system⁻¹ wanted``, preconditioned by the inverse of the diagonal; a sample that is accurate enough freezes."""
    step = _Step(torch.zeros_like(wanted.lam), torch.zeros_like(wanted.mu))
    rest, ahead = wanted, inverse.times(wanted)
    size = rest.dot(ahead)
    enough = accuracy * size
    for _ in range(CONJUGATE_STEPS):
        running = size > enough
        if not running.any():
            break
        image = system(ahead)
        along = ahead.dot(image)
        length = torch.where(running & (along > 0), size / along, 0.0)
        step, rest = step.plus(length, ahead), rest.plus(-length, image)
        scaled = inverse.times(rest)
        shrunk = rest.dot(scaled)
        ahead = scaled.plus(torch.where(running, shrunk / size, 0.0), ahead)
        size = torch.where(running, shrunk, size)
    return step
