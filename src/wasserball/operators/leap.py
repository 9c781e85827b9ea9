"""How long a gradient step must be to be worth projecting: a scale for step sizes that fits any image and radius."""

import torch
from torch import Tensor

from wasserball.kernels import Backend, choose
from wasserball.kernels.reference import project_rows
from wasserball.operators.rounding import per_sample
from wasserball.operators.solution import chunks
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost, LocalCost

ITERATIONS = 8


@torch.no_grad()
def step_that_spends(
    gradient: Tensor, mass: Tensor, wanted: Tensor, share: float, cost: Cost, *, backend: Backend | None = None
) -> Tensor:
    """The step size, ``(B,)``, at which ``identity + step · gradient[destination]`` spends ``wanted`` if no budget is
    kept to, or ``share`` of the most that any step can spend where that is less; 0 where nothing can move.

    What is spent is concave in the step and starts at 0, so that scaling the step by wanted / spent creeps up on the
    answer from below. A few rounds of it are near enough for a step size.
    """
    fast = choose(backend, cost, gradient, mass)
    if fast is not None:
        assert isinstance(cost, LocalCost)
        return fast.step_that_spends(gradient, mass, wanted, share, cost)
    parts = [
        _solve(gradient[some].double(), mass[some].double(), wanted[some], share, cost)
        for some in chunks(len(mass), mass[0].numel() * cost.plan_shape(mass)[cost.axis], mass.device)
    ]
    return torch.cat(parts)


def _solve(gradient: Tensor, mass: Tensor, wanted: Tensor, share: float, cost: Cost) -> Tensor:
    price, allowed = cost.entries(mass)
    home, there = cost.identity(mass), cost.gather(gradient)

    def spent(step: Tensor) -> Tensor:
        plan = project_rows(home + per_sample(step, home) * there, mass, allowed, cost.axis).plan
        return sample_sum(ordered_sum(plan * price, cost.axis))

    largest = mass.flatten(1).amax(1)
    goal = torch.minimum(wanted, share * spent(1e6 * largest))
    step = 1e-6 * largest
    for _ in range(ITERATIONS):
        step = (step * goal / spent(step)).nan_to_num(0.0, posinf=0.0)
    return step
