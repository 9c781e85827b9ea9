"""Optimisation over the Wasserstein ball for any differentiable objective, on any discrete domain."""

from typing import Literal

from torch import Tensor

from wasserball.checks import check_count, check_tolerance
from wasserball.solvers.frank_wolfe import frank_wolfe
from wasserball.solvers.objective import Minimum, Objective
from wasserball.solvers.projected_gradient import projected_gradient
from wasserball.threat import Cost, LocalCost, WassersteinBall

__all__ = ["Method", "Minimum", "Objective", "minimize"]

Method = Literal["pgd", "frank-wolfe"]


def minimize(
    objective: Objective,
    mass: Tensor,
    *,
    eps: float | Tensor,
    cost: Cost | None = None,
    method: Method = "pgd",
    steps: int = 1000,
    tol: float = 1e-6,
    return_plan: bool = True,
) -> Minimum:
    """``argmin f(z)`` over all z in the Wasserstein ball of radius ``eps · Σ mass`` around ``mass``.

    ``objective`` maps images ``(B, ...)``, shaped like ``mass``, to one value for each sample. For a convex one both
    methods reach the optimum, and ``gap`` proves how near they came: a sample stops when its gap is ``tol`` times that
    of the clean mass. For any other, the answer is a point where no direction in the ball improves to first order.

    ``"pgd"`` is accelerated and precise; ``"frank-wolfe"`` takes cheap first steps, needs no plan
    (``return_plan=False`` keeps its memory linear in the number of pixels) and is slow to the last digits.

    >>> points = torch.arange(5.0)
    >>> cost = wb.DenseCost((points[:, None] - points).abs())
    >>> mass, wanted = torch.tensor([[1.0, 0, 0, 0, 1]]), torch.tensor([[0, 0, 2.0, 0, 0]])
    >>> found = wb.minimize(lambda z: (z - wanted).square().sum(1), mass, eps=1.0, cost=cost)
    >>> found.image
    tensor([[0.5000, 0.0000, 1.0000, 0.0000, 0.5000]])
    """
    if not callable(objective):
        raise ValueError(f"objective must be callable, got {objective!r}")
    ball = WassersteinBall(mass, eps, LocalCost() if cost is None else cost)
    check_count("steps", steps)
    check_tolerance("tol", tol)
    if method == "pgd":
        return projected_gradient(objective, ball, steps, tol)
    if method == "frank-wolfe":
        return frank_wolfe(objective, ball, steps, tol, return_plan)
    raise ValueError(f'method must be "pgd" or "frank-wolfe", got {method!r}')
