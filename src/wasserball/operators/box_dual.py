"""The dual of the projection onto ball ∩ pixel box: where it is, how it bends, and Newton's step on it.

``g(λ, μ)`` is concave and piecewise quadratic. On a piece, a change of the duals by ``(dλ, dμ)`` changes an active
entry of a row by ``q = dλ·C + dμ[dest]`` less its mean over the row, so a product with the Hessian (the Laplacian of
the graph "these pixels share a sender") is two passes over the plan, and conjugate gradients solve for the Newton
step without ever forming it.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from wasserball.kernels.reference import Rows, project_rows
from wasserball.operators.rounding import per_sample
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost

CONJUGATE_STEPS = 100
BUDGET_WEIGHT = 1e-2
"""A pixel that is over must be cut, but what is left of the budget is only unused: it need not be met as sharply."""


class Step(NamedTuple):
    """A vector of the dual space, and the few operations that conjugate gradients need on it."""

    lam: Tensor
    mu: Tensor

    def take(self, samples: Tensor | slice) -> "Step":
        return Step(self.lam[samples], self.mu[samples])

    def dot(self, other: "Step") -> Tensor:
        return self.lam * other.lam + sample_sum(self.mu * other.mu)

    def plus(self, factor: Tensor, other: "Step") -> "Step":
        return Step(self.lam + factor * other.lam, self.mu + per_sample(factor, self.mu) * other.mu)

    def times(self, other: "Step") -> "Step":
        return Step(self.lam * other.lam, self.mu * other.mu)

    def where(self, chosen: "Step") -> "Step":
        return Step(torch.where(chosen.lam, self.lam, 0.0), torch.where(chosen.mu, self.mu, 0.0))


class Point(NamedTuple):
    """A pair of duals with the plan that minimises the Lagrangian there."""

    lam: Tensor
    mu: Tensor
    rows: Rows
    gradient: Step
    """Spending above the budget, and mass above the capacity of each pixel."""
    value: Tensor
    """The dual objective."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.lam, self.mu, *self.rows, *self.gradient, self.value)

    def take(self, samples: Tensor) -> "Point":
        lam, mu, plan, active, size, spent, excess, value = (tensor[samples] for tensor in self.tensors())
        return Point(lam, mu, Rows(plan, active, size), Step(spent, excess), value)

    def put(self, samples: Tensor, other: "Point") -> None:
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine[samples] = theirs


class Problem(NamedTuple):
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

    def evaluate(self, lam: Tensor, mu: Tensor) -> Point:
        price, allowed = self.cost.entries(self.mass)
        scores = self.target - per_sample(lam, self.target) * price - self.cost.gather(mu)
        rows = project_rows(scores, self.mass, allowed, self.cost.axis)
        gradient = Step(
            sample_sum(ordered_sum(rows.plan * price, self.cost.axis)) - self.budget,
            self.cost.scatter(rows.plan) - self.high,
        )
        return Point(lam, mu, rows, gradient, self.distance(rows.plan) + gradient.dot(Step(lam, mu)))

    def with_budget(self, budget: Tensor, point: Point) -> tuple[Self, Point]:
        """The problem with another budget, and the same duals as a point of it."""
        more = self.budget - budget
        gradient = point.gradient._replace(lam=point.gradient.lam + more)
        moved = point._replace(gradient=gradient, value=point.value + point.lam * more)
        return self._replace(budget=budget), moved

    def residual(self, point: Point) -> Tensor:
        """How far each constraint is from being met with complementary slackness, relative to budget and capacity."""
        spent, excess = point.gradient
        pixel = (point.mu - torch.maximum(point.mu + excess, self.floor)).abs().flatten(1).amax(1)
        budget = torch.where(point.lam > 0, spent.abs(), spent.clamp(min=0))
        budget = torch.where(self.budget > 0, BUDGET_WEIGHT * budget / self.budget, 0.0)
        return torch.maximum(pixel / self.high, budget)

    def hessian(self, rows: Rows, step: Step) -> Step:
        axis = self.cost.axis
        price, _ = self.cost.entries(self.mass)
        change = torch.where(rows.active, per_sample(step.lam, rows.plan) * price + self.cost.gather(step.mu), 0.0)
        mean = (ordered_sum(change, axis) / rows.size).unsqueeze(axis)
        change = torch.where(rows.active, change - mean, 0.0)
        return Step(sample_sum(ordered_sum(change * price, axis)), self.cost.scatter(change))

    def curvature(self, rows: Rows) -> Step:
        """The diagonal of the Hessian."""
        axis = self.cost.axis
        price = torch.where(rows.active, self.cost.entries(self.mass)[0], 0.0)
        spread = ordered_sum(price.square(), axis) - ordered_sum(price, axis).square() / rows.size
        shared = torch.where(rows.active, (1 - 1 / rows.size).unsqueeze(axis), 0.0)
        return Step(sample_sum(spread.clamp(min=0)), self.cost.scatter(shared))

    def newton(self, point: Point, residual: Tensor, flat: Step) -> tuple[Step, Step]:
        """The regularised Newton step on the duals that are free to move, the others going to 0.

        A pixel all of whose senders have nowhere else to go has no curvature: its dual must travel to the next piece,
        by steps that double (``flat``) as long as it stays so; likewise λ. Elsewhere a pixel's curvature is at least ½.
        """
        gradient, curvature = point.gradient, self.curvature(point.rows)
        price, _ = self.cost.entries(self.mass)
        free = Step(
            point.lam * curvature.lam.clamp(min=1e-12) + gradient.lam > 0,
            point.mu + gradient.mu > self.floor,
        )
        level = Step(curvature.lam <= 1e-14 * price.max() ** 2, curvature.mu < 0.25)
        leap = (self.still / 16 * flat.lam).clamp(min=torch.finfo(torch.float64).tiny)
        damping = 0.1 * per_sample(residual.clamp(max=1), point.mu)
        extra = Step(
            torch.where(level.lam, (gradient.lam.abs() / leap).clamp(min=1e-30), 1e-12 * curvature.lam),
            torch.where(level.mu, 0.5 / flat.mu, 0.0) + damping * curvature.mu.clamp(min=0.5),
        )
        one = torch.ones_like(self.budget)
        to_zero = Step(-point.lam, -point.mu).where(Step(~free.lam, ~free.mu))
        wanted = gradient.plus(-one, self.hessian(point.rows, to_zero)).where(free)
        inverse = Step(1 / (curvature.lam + extra.lam), 1 / (curvature.mu + extra.mu))

        def system(step: Step) -> Step:
            return self.hessian(point.rows, step).plus(one, extra.times(step)).where(free)

        step = _conjugate_gradients(system, wanted, inverse, 1e-4 * residual.clamp(1e-8, 1)).plus(one, to_zero)
        # A singular Hessian makes for steps that lead far beyond where anything changes, and back in many small ones.
        far = self.still * price.max() + self.mass.flatten(1).amax(1)
        longest = torch.maximum(price.max() * step.lam.abs(), step.mu.abs().flatten(1).amax(1))
        shorter = (far / longest).nan_to_num(1.0).clamp(max=1)
        stretch = Step(
            torch.where(level.lam & free.lam, 2 * flat.lam, 1.0), torch.where(level.mu & free.mu, 2 * flat.mu, 1.0)
        )
        return step.plus(shorter - 1, step), stretch

    def line_search(self, point: Point, step: Step) -> tuple[Point, Tensor]:
        """The first of the steps 1, ⅓, ⅑, … along which the dual rises (Armijo).

        A rise below the rounding of the dual is told from its slopes, as if it were quadratic: else, where pieces are
        tiny, Newton's method may jump to and fro between two of them.
        """
        length = torch.ones_like(self.budget)
        evaluations = torch.zeros_like(self.budget, dtype=torch.int64)
        noise = 1e-14 * point.value.abs()
        best: Point | None = None
        todo = torch.arange(len(length), device=length.device)
        for _ in range(30):
            part, start = self.take(todo), point.take(todo)
            moved = Step(start.lam, start.mu).plus(length[todo], Step(step.lam[todo], step.mu[todo]))
            found = part.evaluate(moved.lam.clamp(min=0), torch.maximum(moved.mu, part.floor))
            evaluations[todo] += 1
            if best is None:
                best = found
            else:
                best.put(todo, found)
            way = Step(found.lam - start.lam, found.mu - start.mu)
            slope, rise = way.dot(start.gradient), found.value - start.value
            rise = torch.where(rise.abs() <= noise[todo], (slope + way.dot(found.gradient)) / 2, rise)
            todo = todo[rise < 1e-4 * slope]
            length[todo] /= 3
            if len(todo) == 0:
                break
        assert best is not None
        return best, evaluations


def _conjugate_gradients(system: Callable[[Step], Step], wanted: Step, inverse: Step, accuracy: Tensor) -> Step:
    """``system⁻¹ wanted``, preconditioned by the inverse of the diagonal; a sample that is accurate enough freezes."""
    step = Step(torch.zeros_like(wanted.lam), torch.zeros_like(wanted.mu))
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
