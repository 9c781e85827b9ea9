"""What a fast implementation of the kernels provides; plans are local, and every argument has been checked.

All of mass, plan and gradient have one dtype, float32 or float64, and one device. Each sample is computed in an order
of additions that depends on its shape alone, so its bits depend neither on batch mates nor on the number of threads.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from wasserball.threat import LocalCost


class Projected(NamedTuple):
    """A projection onto the ball (see :class:`wasserball.operators.Solution`)."""

    plan: Tensor
    image: Tensor
    lam: Tensor
    spent: Tensor
    iterations: Tensor
    converged: Tensor
    gap: Tensor


class Boxed(NamedTuple):
    """A plan after a few updates of the duals of ball and box."""

    plan: Tensor
    image: Tensor
    lam: Tensor
    mu: Tensor
    spent: Tensor
    converged: Tensor


class Mixture(NamedTuple):
    """An answer of the linear oracle, whose plan is not stored."""

    image: Tensor
    lam: Tensor
    spent: Tensor
    iterations: Tensor
    converged: Tensor
    gap: Tensor
    blend: Callable[[Tensor, Tensor, Tensor], None]
    """``blend(plan, keep, share)``: ``plan ← keep · plan + share · answer`` in place, both ``(B,)`` in float64. A plan
    that is kept whole is touched only where the answer is; of one that is not kept at all nothing is left."""


class SinkhornDual(NamedTuple):
    """Where the ascent of projected Sinkhorn ended: dual variables and objective, divided by γ."""

    beta: Tensor
    psi: Tensor
    objective: Tensor
    iterations: Tensor
    converged: Tensor


class Kernels(Protocol):
    """One implementation: a module with these functions."""

    def project(
        self,
        plan: Tensor,
        gradient: Tensor | None,
        step: Tensor | None,
        mass: Tensor,
        budget: Tensor,
        cost: LocalCost,
        lam: Tensor | None,
        tol: float,
        out: Tensor | None,
    ) -> Projected:
        """Project ``plan + step · gradient[destination]``, or ``plan`` itself, onto the ball; into ``out`` if given,
        which may be ``plan``."""

    def box_step(
        self,
        plan: Tensor,
        gradient: Tensor,
        step: Tensor,
        mass: Tensor,
        budget: Tensor,
        cost: LocalCost,
        high: float,
        lam: Tensor,
        mu: Tensor,
        rounds: int,
        out: Tensor | None,
    ) -> Boxed:
        """``rounds`` updates of the duals and the plan that belongs to them; into ``out`` if given."""

    def exact_oracle(self, gradient: Tensor, mass: Tensor, budget: Tensor, cost: LocalCost, accuracy: float) -> Mixture:
        """The mixture of two vertices that minimises ``<Π, H>`` over the ball, up to the share ``accuracy`` of what it
        gains over staying put."""

    def entropic_oracle(
        self, gradient: Tensor, mass: Tensor, budget: Tensor, cost: LocalCost, gamma: float, tol: float
    ) -> Mixture:
        """The plan that minimises ``<Π, H> + γ Σ Π log Π`` over the ball."""

    def step_that_spends(self, gradient: Tensor, mass: Tensor, wanted: Tensor, share: float, cost: LocalCost) -> Tensor:
        """The step at which ``identity + step · gradient[destination]`` spends ``wanted``, or the share of the most."""

    def ascend_sinkhorn(
        self,
        target: Tensor,
        mass: Tensor,
        budget: Tensor,
        cost: LocalCost,
        gamma: float,
        tol: float,
        max_iterations: int,
    ) -> SinkhornDual:
        """The dual of projected Sinkhorn for masses that sum to 1, in float64; no iteration where the budget is 0."""
