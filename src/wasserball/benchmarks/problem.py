"""What the operators are measured on: random images, and a plan a few steps into an attack on them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wasserball.operators import box_step
from wasserball.threat import LocalCost, WassersteinBall

STEP = 0.1
WARM_STEPS = 5


@dataclass(frozen=True)
class Problem:
    """One step of an attack: the arguments of the operators."""

    mass: Tensor
    budget: Tensor
    cost: LocalCost
    plan: Tensor
    gradient: Tensor
    lam: Tensor
    """The duals of the step before, to start from."""
    mu: Tensor

    @property
    def plan_bytes(self) -> int:
        """Of one plan of the batch."""
        return self.plan.numel() * self.plan.element_size()


def random_images(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Images in [0, 1] with a third of their pixels black."""
    return (1.5 * torch.rand(shape, generator=generator) - 0.5).clamp(min=0)


def make_problem(shape: tuple[int, ...], eps: float, device: torch.device, window: int = 5) -> Problem:
    """A step for ``shape[0]`` images, the same on every device up to rounding."""
    generator = torch.Generator().manual_seed(0)
    cost = LocalCost(window)
    mass = random_images(shape, generator).to(device)
    budget = WassersteinBall(mass, eps, cost).budget
    steady = torch.randn(shape, generator=generator)

    def gradient() -> Tensor:
        # The gradient of an attack turns slowly.
        turned = steady + 0.3 * torch.randn(shape, generator=generator)
        return (turned / turned.abs().amax((1, 2, 3), keepdim=True)).to(device)

    plan, lam, mu = cost.identity(mass), torch.zeros_like(budget), torch.zeros_like(mass)
    for _ in range(WARM_STEPS):
        last = box_step(plan, gradient(), STEP, mass, budget, cost, lam=lam, mu=mu)
        assert last.plan is not None
        assert last.mu is not None
        plan, lam, mu = last.plan, last.lam, last.mu
    return Problem(mass, budget, cost, plan, gradient(), lam, mu)
