"""The paper's own algorithms, plainly: sorted rows and bisection, in the dtype given. For its tables and benchmarks.

Inside, a plan has its destinations on the last axis, contiguous, so that each row is sorted where it lies.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from wasserball.checks import check_bounds, check_count, check_like, check_per_sample, check_positive, check_range
from wasserball.operators.rounding import per_sample
from wasserball.operators.solution import Solution
from wasserball.sums import sample_sum
from wasserball.threat import Cost, WassersteinBall

TOLERANCE = 1e-4
"""On the bracket of λ and on the unspent budget, both absolute (paper App. F, "Stopping Criteria")."""

BOX_TOLERANCE = 1e-3
"""On the box of the capacity-constrained projection, "up to the third digit" (paper App. G)."""


@torch.no_grad()
def bisection_projection(
    target: Tensor, mass: Tensor, budget: float | Tensor, cost: Cost, *, iterations: int = 15
) -> Solution:
    """``argmin_Π ½‖Π − target‖²  s.t.  Π ≥ 0, Π1 = mass, <C, Π> ≤ budget`` (paper eq. 4), by Alg. 1.

    Bisection on λ from the bound of Prop. 2 downwards; the plan is the one at the upper end of the bracket, which never
    overspends (App. B). The gap is λ times the unspent budget.
    """
    delta = _check(mass, budget, cost)
    check_like("target", target, cost.plan_shape(mass), mass)
    check_count("iterations", iterations)
    layout = _Layout.of(mass, cost, target)
    rows = layout.rows(target)
    root = _bisect_projection(rows, layout, delta, iterations)
    return _solution(_project_rows(rows, root.lam, layout), root, layout, delta)


@torch.no_grad()
def capacity_projection(
    target: Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    bounds: tuple[float, float] = (0, 1),
    *,
    rounds: int = 200,
    nesterov_steps: int = 10,
) -> Solution:
    """``argmin_Π ½‖Π − target‖²  s.t.  Π ≥ 0, Π1 = mass, Πᵀ1 ≤ bounds[1], <C, Π> ≤ budget`` (paper App. G).

    Each round maximises the dual over λ by bisection, then takes Nesterov steps on μ ≥ 0, the price of a full column. A
    last bisection keeps the budget; the box is met only in the limit, and ``converged`` says whether it is to 1e-3.

    The steps are 1/d, d being for each column the number of rows with mass that reach it. Let A spread μ over those
    rows: ``Π = P(target − λC − Aμ)`` with P non-expansive, so the gradient ``AᵀΠ − bounds[1]`` is 1-Lipschitz in the
    metric ``AᵀA``, which is diagonal and equal to d.
    """
    delta = _check(mass, budget, cost)
    check_like("target", target, cost.plan_shape(mass), mass)
    check_count("rounds", rounds)
    check_count("nesterov_steps", nesterov_steps)
    high = check_bounds(bounds)
    check_range("mass", mass, 0, high)
    layout = _Layout.of(mass, cost, target)
    rows = layout.rows(target)
    senders = (layout.allowed & (mass > 0).unsqueeze(-1)).expand_as(rows)
    reached = layout.image(senders.to(rows.dtype)).clamp(min=1)
    mu = torch.zeros_like(reached)
    evaluations = torch.zeros_like(delta, dtype=torch.int64)
    for _ in range(rounds):
        root = _bisect_projection(rows - layout.there(mu), layout, delta, iterations=50)
        evaluations += root.iterations + nesterov_steps
        point = mu
        for step in range(nesterov_steps):
            image = layout.image(_project_rows(rows - layout.there(point), root.lam, layout))
            last, mu = mu, (point + (image - high) / reached).clamp(min=0)
            point = mu + step / (step + 3) * (mu - last)
    rows = rows - layout.there(mu)
    root = _bisect_projection(rows, layout, delta, iterations=50)
    answer = _solution(_project_rows(rows, root.lam, layout), root, layout, delta)
    excess = answer.image.double() - high
    return replace(
        answer,
        iterations=evaluations + root.iterations,
        converged=answer.converged & (excess.flatten(1).amax(1) <= BOX_TOLERANCE * high),
        gap=answer.gap - sample_sum(mu * excess),
    )


@torch.no_grad()
def entropic_bisection_oracle(
    gradient: Tensor,
    mass: Tensor,
    budget: float | Tensor,
    cost: Cost,
    *,
    gamma: float = 1e-3,
    iterations: int = 15,
) -> Solution:
    """``argmin_Π <Π, H> + γΣΠ log Π  s.t.  Π ≥ 0, Π1 = mass, <C, Π> ≤ budget`` (paper eq. 16), by bisection.

    ``gradient`` is shaped like the mass, and ``H`` is the gradient at the destination of each entry. The row of a plan
    is a softmin of ``H + λC`` (Prop. 7), and Prop. 8 bounds λ.
    """
    delta = _check(mass, budget, cost)
    check_like("gradient", gradient, mass.shape, mass)
    check_positive("gamma", gamma)
    check_count("iterations", iterations)
    layout = _Layout.of(mass, cost, gradient)
    rows = layout.rows(cost.gather(gradient / -gamma))

    def recover(lam: Tensor) -> Tensor:
        return layout.mass.unsqueeze(-1) * (rows - per_sample(lam / gamma, rows) * layout.price).softmax(-1)

    # A budget of 0 would put the bound at infinity; for the smallest of numbers hardly anything moves either.
    everything = layout.spent(layout.mass.unsqueeze(-1) * layout.allowed)
    log_ratio = everything.log() - delta.clamp(min=torch.finfo(rows.dtype).tiny).log()
    upper = (2 * gradient.flatten(1).abs().amax(1) + gamma * log_ratio).clamp(min=0) / layout.cheapest
    root = _bisect(lambda lam: layout.spent(recover(lam)), upper.to(rows.dtype), delta, iterations)
    return _solution(recover(root.lam), root, layout, delta)


class _Layout(NamedTuple):
    """Where the entries of a plan lie when its destinations come last."""

    mass: Tensor
    cost: Cost
    axis: int
    """The axis of the destinations in a plan, counted from the end."""
    price: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, mass: Tensor, cost: Cost, like: Tensor) -> Self:
        dimensions = mass.ndim + 1
        axis = cost.axis % dimensions - dimensions
        price, allowed = (entries.movedim(axis, -1) for entries in cost.entries(mass))
        return cls(mass.to(like.dtype), cost, axis, price.to(like.dtype), allowed)

    @property
    def cheapest(self) -> Tensor:
        """The smallest price of a move, infinite where there is none."""
        return torch.where(self.allowed & (self.price > 0), self.price, torch.inf).amin()

    def rows(self, plan: Tensor) -> Tensor:
        """A plan-shaped tensor with the destinations last, −∞ where the move is forbidden."""
        return torch.where(self.allowed, plan.movedim(self.axis, -1), -torch.inf).contiguous()

    def there(self, image: Tensor) -> Tensor:
        return self.cost.gather(image).movedim(self.axis, -1).contiguous()

    def image(self, rows: Tensor) -> Tensor:
        return self.cost.scatter(rows.movedim(-1, self.axis))

    def spent(self, rows: Tensor) -> Tensor:
        # Plainly, as its authors would: not in an order that is the same whatever the batch.
        return (rows * self.price).sum(-1).double().flatten(1).sum(1)


class _Root(NamedTuple):
    lam: Tensor
    """The upper end of the bracket."""
    iterations: Tensor
    converged: Tensor


def _check(mass: Tensor, budget: float | Tensor, cost: Cost) -> Tensor:
    WassersteinBall(mass, 0.0, cost)
    return check_per_sample("budget", budget, mass)


def _bisect(spend: Callable[[Tensor], Tensor], upper: Tensor, budget: Tensor, iterations: int) -> _Root:
    """Bisection on ``g'(λ) = spend(λ) − budget`` (paper Alg. 1), each sample on its own.

    ``g'`` stops the search only from the affordable side: the point returned is the upper end, and no other.
    """
    low, high = torch.zeros_like(upper), upper
    live = torch.ones_like(budget, dtype=torch.bool)
    count = torch.zeros_like(budget, dtype=torch.int64)
    for _ in range(iterations):
        middle = (low + high) / 2
        unspent = budget - spend(middle)
        count += live
        low, high = torch.where(live & (unspent < 0), middle, low), torch.where(live & (unspent >= 0), middle, high)
        live &= (high - low > TOLERANCE) & ((unspent < 0) | (unspent > TOLERANCE))
        if not live.any():
            break
    return _Root(high, count, ~live)


def _bisect_projection(rows: Tensor, layout: _Layout, budget: Tensor, iterations: int) -> _Root:
    size = torch.where(layout.allowed, rows, 0.0).flatten(1).abs().amax(1) * 2 + layout.mass.flatten(1).amax(1)
    # Prop. 2, and a trace above it so that rounding does not leave the rows just short of the diagonal.
    upper = size * (1 + 16 * torch.finfo(rows.dtype).eps) / layout.cheapest
    return _bisect(lambda lam: layout.spent(_project_rows(rows, lam, layout)), upper, budget, iterations)


def _project_rows(rows: Tensor, lam: Tensor, layout: _Layout) -> Tensor:
    """``argmin ‖Π − rows + λC‖²  s.t.  Π ≥ 0, Π1 = mass`` by sorting each row (Duchi et al. 2008)."""
    scores = rows - per_sample(lam, rows) * layout.price
    ordered = scores.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - layout.mass.unsqueeze(-1)
    rank = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
    active = (ordered * rank > excess).sum(-1, keepdim=True).clamp(min=1)  # none in a row without mass
    return (scores - excess.gather(-1, active - 1) / active).clamp(min=0)


def _solution(rows: Tensor, root: _Root, layout: _Layout, budget: Tensor) -> Solution:
    """The plan minimises the Lagrangian at λ, so that its gap is λ times what it leaves of the budget."""
    plan = rows.movedim(-1, layout.axis).contiguous()
    spent = layout.cost.spent(plan, layout.mass)
    lam = root.lam.double()
    return Solution(
        plan=plan,
        image=layout.cost.scatter(plan),
        lam=lam,
        spent=spent,
        iterations=root.iterations,
        converged=root.converged,
        gap=lam * (budget - spent),
    )
