"""What an operator returns: the answer and, for each sample, how it was reached."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Solution:
    """A point of the ball and the state of the solver that found it; every state tensor is ``(B,)``."""

    plan: Tensor | None
    """The transport plan in the layout of its cost, where one was asked for."""
    image: Tensor
    """Its column sums."""
    lam: Tensor
    """The dual variable of the budget, in float64; pass it back in as ``lam`` to warm-start."""
    spent: Tensor
    """``<C, Π>`` of the plan as returned, in float64."""
    iterations: Tensor
    """How often the dual was evaluated."""
    converged: Tensor
    """Whether the tolerance was reached."""
    gap: Tensor
    """Primal minus dual objective, in float64: how far from optimal the answer can be at most."""
    mu: Tensor | None = None
    """The dual variables of the pixel box, shaped like the image, where there is one."""
