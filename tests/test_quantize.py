"""Rounding to 8 bits: a proof in whole levels for every image, near the best rounding that an integer program finds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from tests.truth import moves
from wasserball import DenseCost, LocalCost, verify
from wasserball.attacks import recover
from wasserball.attacks.quantize import quantize
from wasserball.operators import project_box

THREE = LocalCost(3)


@dataclass(frozen=True, repr=False)
class Attacked:
    """Two 8-bit images and valid adversarial ones, as an attack would hand them over."""

    images: Tensor
    adversarial: Tensor
    plan: Tensor
    gradient: Tensor
    eps: Tensor
    cost: LocalCost
    high: float

    def __repr__(self) -> str:
        return f"Attacked({self.cost}, {tuple(self.images.shape)} {self.images.dtype}, eps {self.eps}, to {self.high})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every tensor

    @property
    def budget(self) -> Tensor:
        return self.eps * self.images.double().flatten(1).sum(1)

    @property
    def levels(self) -> Tensor:
        return (self.images.double() * 255 / self.high).round().long()

    def quantized(self, *, plan: bool = True, gradient: bool = True) -> tuple[Tensor, Tensor]:
        return quantize(
            self.images,
            self.adversarial,
            self.budget,
            self.cost,
            self.high,
            plan=self.plan if plan else None,
            gradient=self.gradient if gradient else None,
        )


def attack(
    shape: tuple[int, ...],
    look: int = 0,
    eps: float = 0.1,
    cost: LocalCost = THREE,
    high: float = 1.0,
    dtype: torch.dtype = torch.float32,
    size: float = 0.03,
    seed: int = 0,
    batch: int = 2,
) -> Attacked:
    """A step of box projected gradient ascent from random images, along a gradient that is not quite the last one."""
    rng = np.random.default_rng(seed)
    grey = rng.random((batch, *shape))
    looks = [
        grey,
        np.clip(3 * grey - 1, 0, 1),
        1 - 0.02 * grey,
        np.ones_like(grey),
        np.zeros_like(grey),
        np.round(grey),
    ]
    images = torch.from_numpy(np.round(255 * looks[look]) * (high / 255)).to(dtype).clamp(max=high)
    radii = torch.full((batch,), eps, dtype=torch.float64)
    gradient = torch.from_numpy(rng.standard_normal((batch, *shape))).to(dtype)
    earlier = gradient + 0.7 * torch.from_numpy(rng.standard_normal(gradient.shape)).to(dtype)
    step = cost.identity(images) + high * size * cost.gather(earlier)
    budget = radii * images.double().flatten(1).sum(1)
    found = project_box(step, images, budget, cost, (0, high), max_iterations=5)
    assert found.plan is not None
    return Attacked(images, found.image, found.plan, gradient, radii, cost, high)


@st.composite
def attacked(draw: st.DrawFn) -> Attacked:
    cost = LocalCost(
        window=draw(st.sampled_from([1, 3, 5, 7])),
        metric=draw(st.sampled_from(["euclidean", "l1", "linf"])),
        power=draw(st.sampled_from([1, 1.5, 2])),
    )
    return attack(
        (draw(st.integers(1, 3)), draw(st.integers(1, 8)), draw(st.integers(1, 8))),
        look=draw(st.integers(0, 5)),
        eps=draw(st.sampled_from([0.0, 1e-9, 1e-3, 0.01, 0.1, 0.5, 10.0])),
        cost=cost,
        high=draw(st.sampled_from([1.0, 255.0, 0.1])),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        size=draw(st.sampled_from([0.01, 0.1, 1.0])),
        seed=draw(st.integers(0, 2**32)),
    )


def check_proof(case: Attacked, levels: Tensor, plan: Tensor) -> None:
    """All that makes the rounded images valid, in integers; and by the library's own certificate."""
    assert levels.dtype == torch.uint8
    assert not plan.is_floating_point()
    assert plan.shape == case.cost.plan_shape(case.images)
    whole, image = plan.long(), levels.long()
    _, allowed = case.cost.entries(case.images)
    assert (whole >= 0).all()
    assert (torch.where(allowed, 0, whole) == 0).all()
    assert torch.equal(whole.sum(1), case.levels)
    assert torch.equal(case.cost.scatter(whole), image)
    assert torch.equal(image.sum((2, 3)), case.levels.sum((2, 3)))
    assert (case.cost.spent(whole, case.images) <= 255 / case.high * case.budget).all()
    unit = case.high / 255
    stored = (image.double() * unit).to(case.images.dtype).clamp(max=case.high)
    certificate = verify(
        case.images,
        stored,
        eps=case.eps,
        plan=(whole.double() * unit).to(stored.dtype),
        cost=case.cost,
        bounds=(0, case.high),
    )
    assert certificate.valid.all(), str(certificate)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(attacked(), st.booleans(), st.booleans())
def test_every_image_has_a_proof_in_whole_levels(case: Attacked, plan: bool, gradient: bool) -> None:
    check_proof(case, *case.quantized(plan=plan, gradient=gradient))


@settings(max_examples=12, deadline=None)
@given(attacked())
def test_what_is_whole_stays_as_it_is(case: Attacked) -> None:
    levels, plan = case.quantized()
    unit = case.high / 255
    again, moved = quantize(
        case.images,
        (levels.double() * unit).to(case.images.dtype),
        case.budget * (1 + 1e-6),
        case.cost,
        case.high,
        plan=(plan.double() * unit).to(case.images.dtype),
        gradient=case.gradient,
    )
    assert torch.equal(again, levels)
    assert torch.equal(moved, plan)


@pytest.mark.parametrize("look", [3, 4], ids=["white", "black"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 6, 5)])
def test_white_and_black_stay_white_and_black(look: int, shape: tuple[int, ...]) -> None:
    case = attack(shape, look=look)
    for plan in (True, False):
        levels, moved = case.quantized(plan=plan)
        check_proof(case, levels, moved)
        assert torch.equal(levels.long(), case.levels)


def test_a_single_pixel_has_nowhere_to_go() -> None:
    case = attack((3, 1, 1), eps=1.0)
    assert torch.equal(case.quantized()[0].long(), case.levels)


@pytest.mark.parametrize("eps", [0.0, 1e-12])
def test_without_a_budget_nothing_moves(eps: float) -> None:
    generous = attack((1, 6, 6), eps=0.2)
    case = Attacked(**{**vars(generous), "eps": torch.full((2,), eps, dtype=torch.float64)})
    levels, plan = case.quantized()
    check_proof(case, levels, plan)
    assert torch.equal(levels.long(), case.levels)


def test_the_budget_holds_where_the_plan_is_too_dear() -> None:
    generous = attack((2, 8, 8), eps=0.5, cost=LocalCost(5))
    case = Attacked(**{**vars(generous), "eps": torch.tensor([0.05, 0.3], dtype=torch.float64)})
    check_proof(case, *case.quantized())


def test_an_image_that_left_the_box_comes_back() -> None:
    case = attack((1, 8, 8), look=2, eps=0.3)
    outside = Attacked(**{**vars(case), "adversarial": 2 * case.adversarial - case.images.mean()})
    check_proof(outside, *outside.quantized())


@pytest.mark.parametrize("plan", [True, False])
@pytest.mark.parametrize("gradient", [True, False])
def test_no_sample_depends_on_its_batch_mates(plan: bool, gradient: bool) -> None:
    case = attack((3, 9, 7), look=1, eps=0.05, cost=LocalCost(5), batch=5)
    levels, moved = case.quantized(plan=plan, gradient=gradient)
    for sample in range(5):
        some = slice(sample, sample + 1)
        names = ("images", "adversarial", "plan", "gradient", "eps")
        alone = Attacked(**{**vars(case), **{name: getattr(case, name)[some] for name in names}})
        one, way = alone.quantized(plan=plan, gradient=gradient)
        assert torch.equal(one, levels[some])
        assert torch.equal(way, moved[some])


def best_rounding(case: Attacked, sample: int) -> tuple[float, float]:
    """``max <gradient, L>`` over all whole plans within the budget between ⌊z⌋ and ⌈z⌉, by HiGHS, and its cost."""
    clean = case.levels[sample].numpy()
    goal = case.adversarial[sample].double().numpy().ravel() * 255 / case.high
    move = moves(case.cost, clean.shape)
    slope = case.gradient[sample].double().numpy().ravel()
    found = milp(
        -slope[move.destination],
        integrality=np.ones_like(move.price),
        bounds=Bounds(0, 255),
        constraints=[
            LinearConstraint(move.sums(move.source, clean.size), clean.ravel(), clean.ravel()),
            LinearConstraint(move.sums(move.destination, clean.size), np.floor(goal + 1e-3), np.ceil(goal - 1e-3)),
            LinearConstraint(move.price[None], ub=255 / case.high * case.budget[sample].item()),
        ],
    )
    assert found.status == 0, found.message
    return -found.fun, float(move.price @ found.x.round())


@pytest.mark.parametrize("plan", [True, False])
def test_comes_close_to_the_best_rounding(plan: bool) -> None:
    gained, best, start, outside = 0.0, 0.0, 0.0, 0
    for seed in range(6):
        case = attack((1, 6, 6), look=seed % 2, eps=0.02, seed=seed, batch=1)
        goal = 255 * case.adversarial.double()
        levels, _ = case.quantized(plan=plan)
        optimum, spent = best_rounding(case, 0)  # that there is one is the theorem behind all this
        assert spent <= 255 * case.budget.item() * (1 + 1e-9)
        start += (goal * case.gradient).sum().item()
        gained += (levels * case.gradient).sum().item()
        best += optimum
        outside += int(((levels - goal).abs() > 1 + 1e-3).sum())
    assert best > start
    assert gained - start >= 0.7 * (best - start)
    assert outside <= 0.01 * 6 * 36


def test_the_gradient_decides_where_there_is_a_choice() -> None:
    case = attack((3, 10, 10), eps=0.02, cost=LocalCost(5), batch=3)
    against = Attacked(**{**vars(case), "gradient": -case.gradient})
    up, down = (((c.quantized()[0] * case.gradient).double()).sum((1, 2, 3)) for c in (case, against))
    neutral = (case.quantized(gradient=False)[0] * case.gradient).double().sum((1, 2, 3))
    assert (up > neutral).all()
    assert (neutral > down).all()


def test_what_just_fools_a_linear_model_still_does() -> None:
    case = attack((1, 12, 12), look=1, eps=0.03, cost=LocalCost(5), batch=40)
    # The threshold lies a thousandth of the way back from where the attack stopped.
    logit = (case.adversarial.double() * case.gradient).sum((1, 2, 3))
    clean = (case.images.double() * case.gradient).sum((1, 2, 3))
    threshold = logit - 1e-3 * (logit - clean)
    kept = {
        plan: ((case.quantized(plan=plan)[0].double() / 255 * case.gradient).sum((1, 2, 3)) > threshold).sum().item()
        for plan in (True, False)
    }
    assert kept[True] >= 38
    assert kept[False] >= 38


def test_a_source_of_other_than_8_bits_is_an_error() -> None:
    case = attack((1, 4, 4))
    images = case.images.clone()
    images[1, 0, 2, 3] = 100.4 / 255
    with pytest.raises(ValueError, match=r"images must hold whole.* 1/255: sample 1 has 0\.39.* \(0, 2, 3\)"):
        quantize(images, images, 1.0, case.cost, 1.0)


def test_points_and_plans_of_other_images_are_errors() -> None:
    case = attack((1, 4, 4))
    with pytest.raises(ValueError, match=r"cost must be a LocalCost.*DenseCost\(1 points\)"):
        quantize(case.images, case.images, 1.0, DenseCost(torch.zeros(1, 1)), 1.0)
    with pytest.raises(ValueError, match="plan must move the images: the row of sample 0"):
        quantize(case.images, case.adversarial, case.budget, case.cost, 1.0, plan=case.plan.flip(0))
    with pytest.raises(ValueError, match=r"plan must be in \[0, inf\]"):
        quantize(case.images, case.adversarial, case.budget, case.cost, 1.0, plan=-case.plan)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")
@pytest.mark.parametrize("gradient", [True, False])
def test_the_gpu_gives_the_same_answer(gradient: bool) -> None:
    case = attack((3, 20, 20), look=1, eps=0.01, cost=LocalCost(5), batch=4)
    names = ("images", "adversarial", "plan", "gradient", "eps")
    remote = Attacked(**{**vars(case), **{name: getattr(case, name).cuda() for name in names}})
    for here, there in zip(case.quantized(gradient=gradient), remote.quantized(gradient=gradient), strict=True):
        assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("moves_at_once", [0, 10**9], ids=["large", "small"])
@pytest.mark.parametrize("look", [0, 1, 2, 4])
def test_the_plan_that_is_found_is_the_cheapest(moves_at_once: int, look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "MANY_MOVES", moves_at_once)
    case = attack((2, 4, 5), look=look, eps=0.1, cost=LocalCost(9), dtype=torch.float64)
    plan = recover.cheapest_plan(case.images, case.adversarial, case.cost)
    exact = verify(case.images, case.adversarial, eps=case.eps, cost=case.cost)
    total = case.images.flatten(1).sum(1)
    assert (plan >= 0).all()
    assert torch.allclose(case.cost.row_sums(plan), case.images)
    assert torch.allclose(case.cost.scatter(plan), case.adversarial)
    assert torch.allclose(case.cost.spent(plan, case.images), exact.distance * total, rtol=1e-6, atol=0)


def test_mass_that_moved_on_in_steps_is_found_on_a_large_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "MANY_MOVES", 0)
    cost = LocalCost(3)
    clean = torch.tensor([[[[1.0, 1.0, 1.0, 0.0]]]], dtype=torch.float64)
    moved = torch.tensor([[[[0.0, 1.0, 1.0, 1.0]]]], dtype=torch.float64)
    plan = recover.cheapest_plan(clean, moved, cost)
    assert torch.allclose(cost.scatter(plan), moved)
    assert torch.allclose(cost.row_sums(plan), clean)
    assert cost.spent(plan, clean).item() == pytest.approx(3)
