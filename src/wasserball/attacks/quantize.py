"""Adversarial images in whole 8-bit levels, each with a transport plan in whole levels as its proof.

A PNG holds integers, so mass has to move in units of one level. Plans whose columns lie between the levels below and
above the adversarial image form a polytope with integral vertices: a rounding that costs no more and is no worse to
first order exists. It is searched for by exchanging single units, at all pixels at once.
"""

import math

import torch
from torch import Tensor

from wasserball.attacks.recover import cheapest_plan
from wasserball.attacks.units import Units
from wasserball.checks import check_floating, check_like, check_per_sample, check_positive, check_range
from wasserball.operators.rounding import per_sample
from wasserball.operators.solution import chunks
from wasserball.sums import ordered_sum, sample_sum
from wasserball.threat import Cost, LocalCost, WassersteinBall

LEVELS = 255
INTEGRAL = 1e-3
"""Of a level: a float32 pixel that comes from 8 bits is nearer than this to a whole number of them."""


@torch.no_grad()
def quantize(
    images: Tensor,
    adversarial: Tensor,
    budget: float | Tensor,
    cost: Cost,
    high: float,
    *,
    plan: Tensor | None = None,
    gradient: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``argmax_N <gradient, L>  s.t.  N1 = l, <C, N> ≤ budget, ⌊z⌋ ≤ L = Nᵀ1 ≤ ⌈z⌉`` over whole ``N ≥ 0``, nearly.

    Here l and z are ``images`` and ``adversarial`` in levels, of which ``high`` has 255. Returned are L as uint8 and N
    as int32 in the layout of ``cost``. They are exact: rows sum to l, columns to L, no level is above 255 and the cost
    is at most 255/high times the budget. Only ``⌊z⌋ ≤ L ≤ ⌈z⌉`` gives way, where the search does not get there.

    ``plan`` leads from ``images`` to ``adversarial`` within the budget. If it is None, the cheapest within the window
    is found by optimal transport, which needs POT. ``gradient`` is the direction in which the attack's loss rises;
    where it is None or all 0, the change from ``images`` to ``adversarial`` stands in for it.
    """
    if not isinstance(cost, LocalCost):
        raise ValueError(f"cost must be a LocalCost, since only images have levels, got {cost!r}")
    check_positive("high", high)
    WassersteinBall(images, 0.0, cost, (0, check_floating("images", images).new_tensor(high).item()))
    check_like("adversarial", adversarial, images.shape, images)
    allowance = check_per_sample("budget", budget, images) * (LEVELS / high)
    clean = _whole_levels(images, high)
    if plan is not None:
        check_like("plan", plan, cost.plan_shape(images), images)
        check_range("plan", plan, 0)
        _check_rows(plan, clean, cost, high)
    if gradient is not None:
        check_like("gradient", gradient, images.shape, images)

    scale, tariff = _tariff(cost, images.device)
    limit = (allowance.clamp(max=2.0**60 / scale) * scale).floor().long()
    levels = torch.empty_like(images, dtype=torch.uint8)
    moves = torch.empty(cost.plan_shape(images), dtype=torch.int32, device=images.device)
    for some in chunks(len(images), moves[0].numel(), images.device):
        goal = (adversarial[some].double() * (LEVELS / high)).clamp(0, LEVELS)
        change = goal - clean[some]
        way = cheapest_plan(clean[some], goal, cost) if plan is None else plan[some].double() * (LEVELS / high)
        units = Units(_round_down(way, clean[some], limit[some], tariff, cost), cost, tariff)
        units.return_overflow(LEVELS)
        slope = change if gradient is None else gradient[some].double()
        low, above = (goal + INTEGRAL).floor(), (goal - INTEGRAL).ceil()
        units.exchange(_direction(slope, change), low, above, limit[some])
        levels[some], moves[some] = units.answer()
    return levels, moves


def _whole_levels(images: Tensor, high: float) -> Tensor:
    """The images in levels, in float64; ``ValueError`` where they have no 8-bit source."""
    exact = images.double() * (LEVELS / high)
    clean = exact.round()
    bad = (exact - clean).abs() > INTEGRAL
    if bad.any():
        sample, *place = bad.nonzero()[0].tolist()
        value = images[sample][tuple(place)].item()
        raise ValueError(
            f"images must hold whole multiples of {high:g}/255: sample {sample} has {value!r} at {tuple(place)}"
        )
    return clean


def _check_rows(plan: Tensor, clean: Tensor, cost: LocalCost, high: float) -> None:
    """``ValueError`` for a plan of other images. Half a level leaves room for float32, and none for another unit."""
    rows = cost.row_sums(plan).double() * (LEVELS / high)
    bad = (rows - clean).abs() >= 0.5
    if bad.any():
        sample, *place = bad.nonzero()[0].tolist()
        found, wanted = (values[sample][tuple(place)].item() for values in (rows, clean))
        raise ValueError(
            f"plan must move the images: the row of sample {sample} at {tuple(place)} sums to {found:g} levels, "
            f"not {wanted:g}"
        )


def _tariff(cost: LocalCost, device: torch.device) -> tuple[float, Tensor]:
    """Prices in fixed point, and what 1 is there: whole numbers add up to the same in any order, in any batch.

    They are rounded up by more than the rounding of a float64 sum, which is exact where the prices are whole.
    """
    scale = 2.0 ** (28 - math.ceil(math.log2(max(1.0, *cost.prices))))
    prices = [math.ceil(price * scale) + (not float(price).is_integer()) for price in cost.prices]
    return scale, torch.tensor(prices, device=device)


def _round_down(way: Tensor, clean: Tensor, limit: Tensor, tariff: Tensor, cost: LocalCost) -> Tensor:
    """The whole units of each move within the limit; what is cut off stays at home."""
    away = torch.where(cost.entries(clean)[1], way, 0.0)
    cost.diagonal(away).zero_()
    toll = tariff.view(-1, 1, 1, 1)
    units = (away + INTEGRAL).floor()
    bill = sample_sum(ordered_sum(units * toll, cost.axis))
    dear = (bill * (1 + 1e-9) > limit).nonzero().squeeze(1)
    if len(dear):
        share = limit[dear] / sample_sum(ordered_sum(away[dear] * toll, cost.axis)) * (1 - 1e-9)
        units[dear] = (away[dear] * per_sample(share.clamp(max=1), away)).floor()
    cost.diagonal(units).copy_(clean - cost.row_sums(units))
    return units.to(torch.int32)


def _direction(gradient: Tensor, change: Tensor) -> Tensor:
    """The gradient, or where that is 0 the change, with a root mean square of 1 in each sample."""
    slope = torch.where(per_sample((gradient != 0).flatten(1).any(1), gradient), gradient, change)
    slope = slope / per_sample(slope.abs().flatten(1).amax(1).clamp(min=1e-300), slope)
    size = (sample_sum(slope.square()) / slope[0].numel()).sqrt()
    return (slope / per_sample(torch.where(size > 0, size, 1.0), slope)).float()
