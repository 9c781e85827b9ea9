"""What is minimised: any differentiable function of the images, one value for each sample."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wasserball.operators.oracle import mixture
from wasserball.operators.rounding import make_feasible, per_sample
from wasserball.sums import sample_sum
from wasserball.threat import WassersteinBall

Objective = Callable[[Tensor], Tensor]
"""``images (B, ...) -> values (B,)``; samples must not mix."""


@dataclass(frozen=True)
class Minimum:
    """Where a solver stopped, for each sample, and the proof of how good that is."""

    image: Tensor
    """Where the objective is smallest, like the mass."""
    plan: Tensor | None
    """The transport plan from the mass to the image, where one was asked for."""
    value: Tensor
    """The objective at the image, ``(B,)``."""
    gap: Tensor
    """``max <∇f(image), image − s>`` over the ball: a convex objective is at most this far above its minimum."""
    spent: Tensor
    """``<C, Π>``, ``(B,)`` in float64."""
    iterations: Tensor
    """Steps that were taken, ``(B,)``."""
    converged: Tensor
    """Whether the gap fell to the tolerance, ``(B,)``."""


def value_and_gradient(objective: Objective, image: Tensor) -> tuple[Tensor, Tensor]:
    """The objective of each sample and its gradient with respect to the image, in float64 and in the image's dtype."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = image.detach().clone().requires_grad_()
        values = evaluate(objective, leaf)
        if not values.requires_grad:
            raise ValueError("objective must be differentiable: its values do not depend on the images")
        (gradient,) = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
    if gradient is None:
        raise ValueError("objective must be differentiable: its values do not depend on the images")
    bad = ~torch.isfinite(gradient).flatten(1).all(1)
    if bad.any():
        raise ValueError(f"objective must have a finite gradient: sample {int(bad.nonzero()[0])} has not")
    return values.detach().double(), gradient


def evaluate(objective: Objective, image: Tensor) -> Tensor:
    """The objective of each sample, checked."""
    values = objective(image)
    if not isinstance(values, Tensor) or tuple(values.shape) != (len(image),):
        seen = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"objective must return one value for each sample, shape ({len(image)},), got {seen}")
    bad = ~torch.isfinite(values)
    if bad.any():
        sample = int(bad.nonzero()[0])
        raise ValueError(f"objective must be finite: sample {sample} has {values[sample].item()!r}")
    return values


def duality_gap(gradient: Tensor, image: Tensor, ball: WassersteinBall) -> Tensor:
    """``max_s <gradient, image − s>`` over the ball, by the exact oracle."""
    best = mixture(gradient, ball.mass, ball.budget, ball.cost).image
    return sample_sum((gradient * (image - best)).double()).clamp(min=0)


def settle(
    objective: Objective,
    ball: WassersteinBall,
    image: Tensor,
    plan: Tensor | None,
    spent: Tensor,
    iterations: Tensor,
    goal: Tensor,
) -> Minimum:
    """The answer, judged at exactly the point that is returned: the column sums of its plan, where there is one."""
    if plan is not None:
        plan, image, spent = make_feasible(plan, ball.mass, ball.budget, ball.cost, high=None, out=plan)
    value, gradient = value_and_gradient(objective, image)
    gap = duality_gap(gradient, image, ball)
    return Minimum(image, plan, value, gap, spent, iterations, gap <= goal)


def blend(values: Tensor, other: Tensor, share: Tensor) -> None:
    """Move ``values`` in place by a share of the way to ``other``, for each sample its own; 0 and 1 are exact."""
    values.lerp_(other, per_sample(share, values).to(values.dtype))
