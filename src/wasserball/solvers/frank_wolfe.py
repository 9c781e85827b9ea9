"""Frank-Wolfe over the ball with the exact linear oracle (paper §4), in image space."""

import torch

from wasserball.operators.oracle import linear_minimizer
from wasserball.solvers.objective import Minimum, Objective, blend, settle, value_and_gradient
from wasserball.sums import sample_sum
from wasserball.threat import WassersteinBall


def frank_wolfe(objective: Objective, ball: WassersteinBall, steps: int, tol: float, return_plan: bool) -> Minimum:
    """``min f(z)`` over the images of the ball, moving towards the oracle's answer: ``z ← (1−η)z + ηẑ, η = 2/(t+1)``.

    The duality gap comes free with each step. The schedule is the paper's; on its toy a line search, which falls
    faster at first, was further from the optimum after a thousand steps. Without ``return_plan`` memory is linear in
    the number of pixels.
    """
    mass, cost = ball.mass, ball.cost
    image = mass.clone()
    plan = cost.identity(mass) if return_plan else None
    spent, goal = torch.zeros_like(ball.budget), torch.zeros_like(ball.budget)
    iterations = torch.zeros_like(spent, dtype=torch.int64)
    for t in range(1, steps + 1):
        _, gradient = value_and_gradient(objective, image)
        best = linear_minimizer(gradient, mass, ball.budget, cost, return_plan=return_plan)
        gap = sample_sum((gradient * (image - best.image)).double())
        goal = tol * gap.clamp(min=0) if t == 1 else goal
        running = gap > goal
        if not running.any():
            break
        share = running.double() * (2 / (t + 1))
        blend(image, best.image, share)
        spent = torch.lerp(spent, best.spent, share)
        if plan is not None and best.plan is not None:
            blend(plan, best.plan, share)
        iterations += running
    return settle(objective, ball, image, plan, spent, iterations, goal)
