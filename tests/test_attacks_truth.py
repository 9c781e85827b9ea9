"""What attacks find, against what there is to find: linear models, whose best attack is a linear program."""

import dataclasses
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import wasserball as wb
from tests.truth import least_budget_lp, minimize_lp
from tests.victims import convolutions, grey_images, linear, predictions
from wasserball.attacks.frank_wolfe import ORACLE_ACCURACY, Schedule

COST = wb.LocalCost(3)
SAMPLES, SIDE = 3, 7
FAR = 1000.0
"""A bias that no attack makes up for, so that none stops early."""
Method = Literal["PGD", "FrankWolfe"]


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Images with black and white pixels, the labels of a model that is too sure of itself, and its weight."""
    weight = torch.randn(1, SIDE, SIDE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return grey_images(SAMPLES, SIDE, dtype=torch.float64), torch.zeros(SAMPLES, dtype=torch.int64), weight


def heights(images: Tensor) -> Tensor:
    """What the attack of the linear model makes large."""
    return (images.double() * problem()[2]).flatten(1).sum(1)


@lru_cache
def best_height(sample: int, eps: float, high: float | None) -> float:
    image, weight = problem()[0][sample], problem()[2]
    return -minimize_lp(-weight.numpy(), image.numpy(), eps * image.sum().item(), COST, high)


def shortfall(result: wb.AttackResult, eps: float, high: float | None) -> float:
    """How much of the way from the clean image to the best one is missing, in the worst sample."""
    images = problem()[0]
    best = torch.tensor([best_height(sample, eps, high) for sample in range(SAMPLES)], dtype=torch.float64)
    reached = heights(result.adversarial)
    assert (reached <= best + 1e-6).all(), "better than the optimum: not in the ball"
    return float(((best - reached) / (best - heights(images))).max())


def far_attack(method: Method, **arguments: object) -> wb.AttackResult:
    images, labels, weight = problem()
    attack: wb.Attack = {"PGD": wb.PGD, "FrankWolfe": wb.FrankWolfe}[method](
        cost=COST,
        loss="margin",
        **arguments,
    )
    result = attack(linear(weight, FAR), images, labels)
    torch.testing.assert_close(result.loss, heights(result.adversarial) - FAR, rtol=0, atol=1e-9)
    assert not result.success.any()
    return result


@pytest.mark.parametrize("eps", [0.03, 0.3])
@pytest.mark.parametrize(("method", "steps", "tolerance"), [("PGD", 40, 1e-4), ("FrankWolfe", 3, ORACLE_ACCURACY)])
def test_without_a_box_the_linear_oracle_is_reached(method: Method, steps: int, tolerance: float, eps: float) -> None:
    """The box is off and also far away, since a model is shown clamped images on the way."""
    result = far_attack(method, eps=eps, steps=steps, bounds=(0, 50), box="off")
    assert shortfall(result, eps, None) <= tolerance
    images, _, weight = problem()
    budget = eps * images.flatten(1).sum(1)
    oracle = wb.operators.linear_minimizer(-weight.expand_as(images).contiguous(), images, budget, COST)
    moved = heights(oracle.image) - heights(images)
    torch.testing.assert_close(heights(result.adversarial) - heights(images), moved, rtol=tolerance, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "eps", "steps", "tolerance"),
    [
        ("PGD", 0.03, 60, 5e-3),
        ("PGD", 0.1, 60, 5e-3),
        ("FrankWolfe", 0.1, 60, 2e-2),
        # The error of Frank-Wolfe falls like one over the steps, once the prices of the pixels are found.
        pytest.param("FrankWolfe", 0.1, 500, 2e-3, marks=pytest.mark.slow),
        pytest.param("FrankWolfe", 0.03, 500, 5e-3, marks=pytest.mark.slow),
        pytest.param("PGD", 0.3, 500, 2e-2, marks=pytest.mark.slow),
    ],
)
def test_with_the_box_the_linear_program_is_reached(method: Method, eps: float, steps: int, tolerance: float) -> None:
    result = far_attack(method, eps=eps, steps=steps)
    assert result.valid.all()
    assert shortfall(result, eps, 1.0) <= tolerance
    # The box matters here: without it there would be far more to gain.
    assert shortfall(far_attack("FrankWolfe", eps=eps, steps=1, bounds=(0, 50)), eps, None) <= ORACLE_ACCURACY
    assert best_height(0, eps, 1.0) < 0.9 * (best_height(0, eps, None) - float(heights(problem()[0])[0]))


@pytest.mark.parametrize("schedule", ["short", "line-search"])
def test_other_schedules_reach_the_linear_program(schedule: Schedule) -> None:
    assert shortfall(far_attack("FrankWolfe", eps=0.1, steps=60, schedule=schedule), 0.1, 1.0) <= 5e-2


@pytest.mark.parametrize("box", ["loop", "final"])
@pytest.mark.parametrize("schedule", ["harmonic", "short", "line-search"])
@pytest.mark.parametrize("steps", [2, 15])
def test_the_gap_bounds_what_is_missing(box: str, schedule: Schedule, steps: int) -> None:
    result = far_attack("FrankWolfe", eps=0.1, steps=steps, box=box, schedule=schedule)
    assert result.gap is not None
    best = torch.tensor([best_height(sample, 0.1, 1.0) for sample in range(SAMPLES)], dtype=torch.float64)
    assert (best - heights(result.adversarial) <= result.gap + 1e-9).all()


def test_the_gap_without_a_box_is_what_is_missing() -> None:
    result = far_attack("FrankWolfe", eps=0.1, steps=4, bounds=(0, 50), box="off", gamma=0.3)
    assert result.gap is not None
    best = torch.tensor([best_height(sample, 0.1, None) for sample in range(SAMPLES)], dtype=torch.float64)
    torch.testing.assert_close(result.gap, best - heights(result.adversarial))
    assert (result.gap > 0.1).all()


@pytest.mark.parametrize("box", ["loop", "off"])
def test_frank_wolfe_stops_at_its_gap(box: str) -> None:
    share, high = 0.1, 1.0 if box == "loop" else 50.0
    early, late = (
        far_attack("FrankWolfe", eps=0.1, steps=40, box=box, bounds=(0, high), gamma=0.1, gap_tolerance=tolerance)
        for tolerance in (share, 0.0)
    )
    assert early.gap is not None
    first = torch.tensor([best_height(sample, 0.1, None) for sample in range(SAMPLES)]) - heights(problem()[0])
    # In the loop it is measured before the last overflow is sent back.
    assert (early.gap <= (2 * share if box == "loop" else share) * first).all()
    assert (early.queries.forward <= late.queries.forward).all()
    assert (early.queries.forward < late.queries.forward).any()


def test_gap_where_it_is_not_known() -> None:
    """Of a sample that was fooled nothing is known, and a black one has nothing to gain; whatever the batches."""
    images, labels, weight = problem()
    images = torch.cat([images, torch.zeros_like(images[:1])])
    labels = torch.tensor([1, 0, 0, 0])  # the first is wrong already
    for model, known in ((linear(weight, FAR), True), (linear(weight, float(heights(images)[1]) + 0.5), False)):
        for size in (None, 1):
            attack = wb.FrankWolfe(eps=0.1, steps=5, cost=COST, batch_size=size)
            gap = attack(model, images, labels).gap
            assert gap is not None
            assert torch.isfinite(gap).tolist()[:2] == [False, known]
            assert gap[3] == 0


def test_the_least_radius_is_found() -> None:
    """Within 2 %: it is looked for in steps of 1 %."""
    images, labels, weight = problem()
    bias = 2.0
    result = wb.MinimalRadius(cost=COST, steps=20, return_plan=True)(linear(weight, bias), images, labels)
    assert result.success.all()
    assert result.valid.all()
    for sample, image in enumerate(images):
        least = least_budget_lp(-weight.numpy(), image.numpy(), -bias, COST, 1.0)
        assert least is not None
        truth = least / image.sum().item()
        assert truth * (1 - 1e-9) <= result.distance[sample].item() <= 1.02 * truth
    assert np.ptp(result.distance.numpy()) > 1e-3


def test_no_radius_where_there_is_none() -> None:
    images, labels, weight = problem()
    out_of_reach = max(-minimize_lp(-weight.numpy(), image.numpy(), 1e6, COST, 1.0) for image in images) + 1e-3
    result = wb.MinimalRadius(cost=COST, steps=10)(linear(weight, out_of_reach), images, labels)
    assert not result.success.any()
    assert torch.equal(result.adversarial, images)
    assert result.robust_accuracy(1.0) == 1


COUNT = 40
NOISE = 2 / COUNT
"""Two images of all."""


@lru_cache
def accuracy(attack: wb.Attack) -> float:
    model, images = convolutions(), grey_images(COUNT, 8)
    return attack(model, images, predictions(model, images)).robust_accuracy()


@pytest.mark.parametrize("attack", [wb.PGD(eps=0, steps=10, cost=COST), wb.FrankWolfe(eps=0, steps=10, cost=COST)])
def test_more_is_not_less(attack: wb.Attack) -> None:
    """A larger radius, a larger window, more steps: accuracy does not rise, but for the luck of two images."""
    radii = [accuracy(dataclasses.replace(attack, eps=eps)) for eps in (0.0, 0.004, 0.01, 0.1)]
    assert radii[0] == 1
    assert all(later <= sooner + NOISE for sooner, later in pairwise(radii))
    assert 0.1 < radii[2] < 0.9
    assert radii[-1] <= 0.1
    here = dataclasses.replace(attack, eps=0.01)
    assert accuracy(dataclasses.replace(here, cost=wb.LocalCost(5))) <= accuracy(here) + NOISE
    assert accuracy(dataclasses.replace(here, steps=30)) <= accuracy(here) + NOISE


def test_the_curve_of_least_radii_falls_below_attacks_at_each_radius() -> None:
    model, images = convolutions(), grey_images(COUNT, 8)
    result = wb.MinimalRadius(eps=0.1, cost=COST, steps=15)(model, images, predictions(model, images))
    curve = [result.robust_accuracy(eps) for eps in np.linspace(0, 0.1, 51).tolist()]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] == 1
    assert curve[-1] == result.robust_accuracy()
    for eps in (0.004, 0.01, 0.03):
        assert result.robust_accuracy(eps) <= accuracy(wb.PGD(eps=eps, steps=10, cost=COST)) + NOISE


def test_auto_is_as_good_as_its_parts_and_they_add_up() -> None:
    model, images = convolutions(), grey_images(16, 8)
    labels = predictions(model, images)
    labels[5] = (labels[5] + 1) % 4
    attack = wb.Auto(eps=0.008, steps=3, cost=COST, return_plan=True)
    result = attack(model, images, labels)
    assert result.part is not None
    found, already = result.distance > 0, result.success & (result.distance == 0)
    assert already.nonzero().tolist() == [[5]]
    assert sum(part.broken for part in result.parts) == int(result.success.sum()) - 1
    assert sum(part.forward for part in result.parts) == int(result.queries.forward.sum())
    assert sum(part.backward for part in result.parts) == int(result.queries.backward.sum())
    assert sum(part.seconds for part in result.parts) <= result.seconds
    left = len(images) - 1
    for number, part in enumerate(result.parts):
        assert part.tried == left
        assert part.broken == int((result.success & found & (result.part == number)).sum())
        left -= part.broken
    assert left == int((~result.success).sum())
    assert torch.equal(result.part >= 0, found)
    assert torch.equal(result.loss, result.margin)
    alone = wb.PGD(eps=0.008, steps=3, cost=COST)(model, images, labels)
    assert (result.success >= alone.success).all()
    assert (result.margin >= alone.margin)[~result.success].all()
    assert isinstance(result.cost, wb.LocalCost)
    assert result.cost.window == 5
    split = dataclasses.replace(attack, batch_size=10)(model, images, labels)
    assert [part.name for part in split.parts] == [part.name for part in result.parts]
    assert sum(part.broken for part in split.parts) == int(split.success.sum()) - 1


def test_auto_aims_at_a_target_with_every_part() -> None:
    model, images = convolutions(), grey_images(6, 8)
    targets = (predictions(model, images) + 1) % 4
    result = wb.Auto(eps=0.3, steps=5, cost=COST, targeted=True)(model, images, targets)
    assert torch.equal(result.success, predictions(model, result.adversarial) == targets)
    assert not any("rival" in part.name for part in result.parts)
