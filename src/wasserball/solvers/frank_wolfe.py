"""Frank-Wolfe over the ball with the exact linear oracle (paper §4), in image space."""

import torch
from torch import Tensor

from wasserball.operators.oracle import mixture
from wasserball.operators.rounding import per_sample
from wasserball.solvers.objective import Minimum, Objective, blend, evaluate, settle, value_and_gradient
from wasserball.sums import sample_sum
from wasserball.threat import WassersteinBall

RELAXATION = 1.8
"""How far to go, in units of the way to the bottom of the parabola; at 2 there is nothing left to gain. The bottom
itself makes for zigzags: on the paper's toy that needs many times the steps, and so does its schedule 2/(t+1)."""
HALVINGS = 20


def frank_wolfe(objective: Objective, ball: WassersteinBall, steps: int, tol: float, return_plan: bool) -> Minimum:
    """``min f(z)`` over the images of the ball, moving towards the oracle's answer: ``z ← (1−η)z + ηẑ``.

    The duality gap comes free with each step, and is the slope of the parabola that sets η: an over-relaxed line
    search. Without ``return_plan`` memory is linear in the number of pixels.
    """
    mass, cost = ball.mass, ball.cost
    image = mass.clone()
    plan = cost.identity(mass) if return_plan else None
    spent, goal = torch.zeros_like(ball.budget), torch.zeros_like(ball.budget)
    curvature: Tensor | None = None
    iterations = torch.zeros_like(spent, dtype=torch.int64)
    for _ in range(steps):
        value, gradient = value_and_gradient(objective, image)
        best = mixture(gradient, mass, ball.budget, cost)
        gap = sample_sum((gradient * (image - best.image)).double()).clamp(min=0)
        goal = tol * gap if curvature is None else goal
        running = gap > goal
        if not running.any():
            break
        share, curvature = _line_search(objective, image, best.image, value, gap, running, curvature)
        blend(image, best.image, share)
        spent = torch.lerp(spent, best.spent, share)
        if plan is not None:
            best.blend(plan, 1 - share, share)
        iterations += running
    return settle(objective, ball, image, plan, spent, iterations, goal)


def _line_search(
    objective: Objective,
    image: Tensor,
    goal: Tensor,
    value: Tensor,
    gap: Tensor,
    running: Tensor,
    curvature: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The share of the way to go, 0 for samples that are done, and the curvature of the objective along it.

    A first guess, from the curvature of the last step, is a third point for the parabola; the share that it suggests is
    halved as long as the objective is higher there.
    """

    def along(share: Tensor) -> Tensor:
        part = per_sample(share, image).to(image.dtype)
        return evaluate(objective, torch.lerp(image, goal, part)).detach().double()

    def relaxed(curvature: Tensor) -> Tensor:
        return torch.where(running, (RELAXATION * gap / curvature).clamp(max=1), 0.0)

    guess = relaxed(gap if curvature is None else curvature)
    seen = 2 * (along(guess) - value + guess * gap) / guess.square()
    if curvature is not None:  # near the optimum differences are rounding: no single one is believed
        seen = torch.minimum(torch.maximum(seen, curvature / 4), 4 * curvature)
    seen = torch.where(running, seen.clamp(min=torch.finfo(torch.float64).tiny), 1.0)
    share = relaxed(seen)
    for _ in range(HALVINGS):
        higher = along(share) > value
        if not higher.any():
            break
        share = torch.where(higher, share / 2, share)
    return share, seen
