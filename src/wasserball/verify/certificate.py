"""The certificate: all constraints of the ball in float64, from the definition, sharing no code with the operators."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from wasserball.checks import check_bounds, check_floating, check_per_sample, check_positive, check_range, check_shape
from wasserball.plan import TransportPlan
from wasserball.threat import Cost, DenseCost, LocalCost
from wasserball.verify.judge import Judge, Moves
from wasserball.verify.space import Floats, Grid, Points, Space

LOCAL = LocalCost()


@dataclass(frozen=True, eq=False)
class Certificate:
    """What :func:`verify` found out about each of ``B`` samples.

    >>> images = torch.tensor([[[[0.0, 0.5, 0.0]]]])
    >>> certificate = wb.verify(images, torch.tensor([[[[0.0, 0.25, 0.5]]]]), eps=0.5)
    >>> certificate.valid, certificate.mass_error
    (tensor([False]), tensor([0.5000], dtype=torch.float64))
    """

    valid: Tensor
    """``(B,)`` bool: all constraints hold."""
    distance: Tensor
    """``(B,)`` float64: a proved upper bound on the Wasserstein distance over ``Σ images``; ``inf`` if none was."""
    mass_error: Tensor
    """``(B,)`` float64: the largest change in the mass of a channel, over ``Σ images``."""
    box_error: Tensor
    """``(B,)`` float64: how far the worst pixel lies outside the bounds."""
    exact: Tensor
    """``(B,)`` bool: ``distance`` is the Wasserstein distance itself."""
    faults: tuple[tuple[str, ...], ...]
    """What each sample violates, in words; empty where it is valid."""

    def __str__(self) -> str:
        kind = "exact" if self.exact.all() else "upper bound"
        parts = [f"{int(self.valid.sum())}/{len(self.valid)} valid", f"distance ≤ {self.distance.max():.4f} ({kind})"]
        for name, error in (("mass", self.mass_error), ("box", self.box_error)):
            parts.append(f"{name} error ≤ {error.max():.0e}" if error.any() else f"{name} error 0")
        parts += [f"sample {sample}: {'; '.join(faults)}" for sample, faults in enumerate(self.faults) if faults][:1]
        return " · ".join(parts)


def verify(
    images: Tensor,
    adversarial: Tensor,
    *,
    eps: float | Tensor,
    plan: TransportPlan | Tensor | None = None,
    cost: Cost = LOCAL,
    bounds: tuple[float, float] | None = (0, 1),
    tolerance: float = 1e-6,
) -> Certificate:
    """Check that each adversarial image ``z`` lies in the ball of radius ``δ = eps·Σx`` around its clean image ``x``.

    With a ``plan``, one pass over it is enough. Without, optimal transport is solved between the two images (this needs
    POT): exactly, or up to an upper bound where millions of pairs of pixels could exchange mass.

    ``valid`` means, of the images as they are stored:

    - All pixels are within ``bounds``, exactly.
    - Each channel keeps its mass, but for ``tolerance`` times it and half an ulp of each of its pixels in ``z``.
    - The least cost of getting from ``x`` to ``z``, this difference in mass left out, is at most ``δ·(1 + tolerance)``
      plus what the rounding of ``z`` can cost: for every pixel that changed, or that the plan moves mass from or to,
      the error of a sum of K rounded terms, K the number of moves, independent of the others. In float32 and a metric
      this comes to about 1e-5·δ for MNIST at eps 0.1 and 4e-4·δ for 224×224 pixels at 0.001.
    - A plan, if given, belongs to these images: no entry is negative, forbidden or out of the image; its row and column
      sums are ``x`` and ``z``, to ``tolerance`` and K ulps in each pixel. No mass hides in these differences:
      ``distance`` contains a bound on the cost of moving it.

    An ulp is that of the coarsest type among ``images``, ``adversarial`` and ``plan``. Results are on the device of
    ``images``; the work is done on the CPU.

    An image or a plan that fails is no error, whatever it holds; an argument that makes no sense is a ``ValueError``.

    >>> images = torch.tensor([[[[0.0, 0.5, 0.0]]]])
    >>> moved = torch.tensor([[[[0.0, 0.25, 0.25]]]])
    >>> wb.verify(images, moved, eps=0.5).valid, wb.verify(images, moved, eps=0.4).valid
    (tensor([True]), tensor([False]))
    """
    if not isinstance(cost, LocalCost | DenseCost):
        raise ValueError(f"cost must be a LocalCost or a DenseCost, got {cost!r}")
    cost.check_mass("images", check_floating("images", images))
    check_shape("adversarial", check_floating("adversarial", adversarial), images.shape)
    high = math.inf if bounds is None else check_bounds(bounds)
    check_range("images", images, 0, high)
    check_positive("tolerance", tolerance)
    radii = check_per_sample("eps", eps, images).tolist()
    values = None if plan is None else _plan_values(plan, images, cost)

    space: Space = Points(cost) if isinstance(cost, DenseCost) else Grid(cost, *images.shape[2:])
    dtypes = {tensor.dtype for tensor in (images, adversarial, values) if tensor is not None}
    judge = Judge(
        space,
        high=torch.tensor(high, dtype=adversarial.dtype).item(),  # the bound as a pixel can hold it
        tolerance=tolerance,
        precision=np.dtype(np.float32 if torch.float32 in dtypes else np.float64),
    )
    findings = [
        judge(
            _float64(images[sample]).reshape(-1, space.size),
            _float64(adversarial[sample]).reshape(-1, space.size),
            None if values is None else Moves.of(space.moves(values[sample].detach().cpu().numpy())),
            radius,
        )
        for sample, radius in enumerate(radii)
    ]
    distance, mass_error, box_error, exact, faults = zip(*findings, strict=True)
    to_tensor = partial(torch.tensor, dtype=torch.float64, device=images.device)
    return Certificate(
        valid=to_tensor([not fault for fault in faults], dtype=torch.bool),
        distance=to_tensor(distance),
        mass_error=to_tensor(mass_error),
        box_error=to_tensor(box_error),
        exact=to_tensor(exact, dtype=torch.bool),
        faults=faults,
    )


def _plan_values(plan: TransportPlan | Tensor, images: Tensor, cost: Cost) -> Tensor:
    """The entries of ``plan``, in the layout of ``cost``."""
    if isinstance(plan, TransportPlan):
        same = plan.cost == cost or (
            isinstance(plan.cost, DenseCost)
            and isinstance(cost, DenseCost)
            and torch.equal(plan.cost.matrix.cpu(), cost.matrix.cpu())
        )
        if not same:
            raise ValueError(f"plan must have the cost {cost}, got one with {plan.cost}")
        plan = plan.values
    check_shape("plan", check_floating("plan", plan), cost.plan_shape(images))
    return plan


def _float64(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().to("cpu", torch.float64).numpy()
    return array
