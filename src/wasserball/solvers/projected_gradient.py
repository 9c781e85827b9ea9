"""Accelerated projected gradient descent in coupling space (paper §3), with every iterate inside the ball."""

import torch
from torch import Tensor

from wasserball.operators.projection import project_step
from wasserball.operators.rounding import per_sample
from wasserball.solvers.objective import Minimum, Objective, blend, duality_gap, evaluate, settle, value_and_gradient
from wasserball.sums import sample_sum
from wasserball.threat import WassersteinBall

GAP_EVERY = 10
"""Steps between two looks at the duality gap, which costs a gradient and an oracle call."""


def projected_gradient(objective: Objective, ball: WassersteinBall, steps: int, tol: float) -> Minimum:
    """``min f(Πᵀ1)`` over the plans of the ball, by Nesterov's method with a step size found on the way.

    Three sequences share the work (Tseng 2008): ``plan``, the answer; ``lead``, which takes the projected gradient
    steps; and the point between them where the gradient is taken. All are convex combinations of plans of the ball, so
    the objective is never asked for its value outside. Where a step turns against the last movement the acceleration
    starts anew (O'Donoghue & Candès 2015), which makes the convergence linear near the optimum.
    """
    mass, cost = ball.mass, ball.cost
    # What the projection leaves of the budget stays in the gap.
    precision = min(1e-6, max(1e-12, tol / 10))
    noise = 4 * torch.finfo(mass.dtype).eps
    plan = cost.identity(mass)
    lead = plan.clone()
    image, lead_image = mass.clone(), mass.clone()
    value, gradient = value_and_gradient(objective, image)
    gap = duality_gap(gradient, image, ball)
    goal = tol * gap
    age = torch.zeros_like(gap)
    # A first guess with which the steepest pixel would take the mass of the brightest; it is corrected on the way.
    smoothness = (_largest(gradient) / _largest(mass).clamp(min=torch.finfo(mass.dtype).tiny)).double()
    lam: Tensor | None = None
    iterations = torch.zeros_like(gap, dtype=torch.int64)
    for step in range(1, steps + 1):
        running = gap > goal
        if not running.any():
            break
        pace = 2 / (age + 2)
        share = per_sample(pace, image).to(image.dtype)
        between = torch.lerp(image, lead_image, share)
        value_between, gradient = value_and_gradient(objective, between)
        size = torch.where(running, 1 / (pace * smoothness), 0.0)
        moved = project_step(lead, -gradient, size, mass, ball.budget, cost, lam=lam, tol=precision, validate=False)
        assert moved.plan is not None
        lam = moved.lam
        tried = torch.lerp(image, moved.image, share)
        tried_value = evaluate(objective, tried).detach().double()
        # The step is right where the parabola with this smoothness lies above the objective.
        length = sample_sum((moved.plan - lead).double().square())
        slope = sample_sum((gradient * (tried - between)).double())
        parabola = value_between + slope + smoothness * pace.square() * length / 2
        fits = tried_value <= parabola + noise * value_between.abs()
        better = fits & (tried_value <= value + noise * value.abs())
        turned = sample_sum(((lead - moved.plan) * (moved.plan - plan)).double()) > 0
        forward, restart = running & better, running & fits & (turned | ~better)
        blend(plan, moved.plan, torch.where(forward, pace, 0.0))
        blend(image, moved.image, torch.where(forward, pace, 0.0))
        blend(lead, moved.plan, forward.double())
        blend(lead_image, moved.image, forward.double())
        blend(lead, plan, restart.double())
        blend(lead_image, image, restart.double())
        value = torch.where(forward, tried_value, value)
        age = torch.where(restart, 0.0, torch.where(forward, age + 1, age))
        smoothness = torch.where(running & ~fits, 2 * smoothness, torch.where(forward, 0.97 * smoothness, smoothness))
        iterations += running
        if step % GAP_EVERY == 0:
            gap = torch.where(running, duality_gap(value_and_gradient(objective, image)[1], image, ball), gap)
    return settle(objective, ball, image, plan, ball.budget, iterations, goal)


def _largest(values: Tensor) -> Tensor:
    return values.abs().flatten(1).amax(1)
