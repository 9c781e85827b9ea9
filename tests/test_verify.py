"""A certificate agrees with plain optimal transport, accepts what is valid, and rejects each way of cheating."""

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wasserball.plan import TransportPlan
from wasserball.threat import Cost, DenseCost, LocalCost
from wasserball.verify import Certificate, transport, verify
from wasserball.verify.space import Grid

LOCAL = [LocalCost(5), LocalCost(3, "l1"), LocalCost(5, "linf"), LocalCost(5, power=2), LocalCost(3, "l1", power=1.5)]
FLOATS = [torch.float32, torch.float64]
INF = float("inf")


def price(cost: LocalCost, down: int, right: int) -> float:
    metrics = {
        "euclidean": (down**2 + right**2) ** 0.5,
        "l1": abs(down) + abs(right),
        "linf": max(abs(down), abs(right)),
    }
    return float(metrics[cost.metric] ** cost.power)


def price_matrix(cost: Cost, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """The full, un-windowed cost between the points of a channel."""
    if isinstance(cost, DenseCost):
        return cost.matrix.numpy()
    assert isinstance(cost, LocalCost)
    pixels = list(np.ndindex(*shape[2:]))
    return np.array([[price(cost, i[0] - j[0], i[1] - j[1]) for j in pixels] for i in pixels])


def plain_distance(images: Tensor, adversarial: Tensor, cost: Cost) -> list[float]:
    """``ot.emd2`` on the full cost, with nothing cancelled."""
    matrix = price_matrix(cost, tuple(images.shape))
    distances = []
    for x, z in zip(images.double(), adversarial.double(), strict=True):
        supply, demand = x.reshape(-1, len(matrix)).numpy(), z.reshape(-1, len(matrix)).numpy()
        spent = sum(
            ot.emd2(a, b * a.sum() / b.sum(), matrix, numItermax=10**7)
            for a, b in zip(supply, demand, strict=True)
            if a.any()
        )
        distances.append(float(spent / supply.sum()))
    return distances


@dataclass(frozen=True)
class Case:
    """A plan, the images it leads to by plain additions in their own type, and exactly the radius that it needs."""

    images: Tensor
    adversarial: Tensor
    plan: Tensor
    eps: Tensor
    cost: Cost

    def verify(self, **changes: Any) -> Certificate:
        arguments: dict[str, Any] = dict(eps=self.eps, plan=self.plan, cost=self.cost)
        return verify(self.images, self.adversarial, **(arguments | changes))


def blobs(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Spots on black: about half of the pixels hold no mass, none is close to white."""
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ((2 * noise - 1).clamp(min=0) * 0.7).to(dtype)


def local_case(cost: LocalCost, images: Tensor, share: float = 0.3, seed: int = 0) -> Case:
    """Each pixel sends up to ``share`` of its mass to some of the pixels in its window."""
    generator = np.random.default_rng(seed)
    batch, channels, height, width = images.shape
    reach = cost.window // 2
    offsets = list(itertools.product(range(-reach, reach + 1), repeat=2))
    sent = generator.random((len(offsets), batch, channels, height, width))
    sent *= (generator.random(sent.shape) < 0.3) * share / len(offsets)
    for k, (down, right) in enumerate(offsets):
        for h, w in np.ndindex(height, width):
            if not (0 <= h + down < height and 0 <= w + right < width):
                sent[k, ..., h, w] = 0
    sent[len(offsets) // 2] = 0
    sent[len(offsets) // 2] = 1 - sent.sum(0)
    clean = images.numpy()
    plan = (sent * clean).astype(clean.dtype).swapaxes(0, 1)
    image = np.zeros_like(clean)
    spent = np.zeros(batch)
    for b, k, c, h, w in np.argwhere(plan):
        down, right = offsets[k]
        image[b, c, h + down, w + right] += plan[b, k, c, h, w]
        spent[b] += float(plan[b, k, c, h, w]) * price(cost, down, right)
    total = clean.astype(np.float64).sum((1, 2, 3))
    eps = spent / np.where(total > 0, total, 1)
    return Case(images, torch.from_numpy(image), torch.from_numpy(plan.copy()), torch.from_numpy(eps), cost)


def dense_case(matrix: npt.NDArray[np.float64], masses: Tensor, seed: int = 0) -> Case:
    """Each point sends a part of its mass to some of the points where it may."""
    generator = np.random.default_rng(seed)
    count = len(matrix)
    sent = generator.random((*masses.shape, count)) * (generator.random((*masses.shape, count)) < 0.5)
    sent = np.where(np.isfinite(matrix), sent, 0) * 0.5 / count + np.eye(count)
    sent /= sent.sum(-1, keepdims=True)
    plan = (sent * masses.double().numpy()[..., None]).astype(masses.numpy().dtype)
    exact = plan.astype(np.float64)
    spent = (exact * np.where(np.isfinite(matrix), matrix, 0)).reshape(len(masses), -1).sum(1)
    eps = spent / masses.double().flatten(1).sum(1).numpy()
    image = exact.sum(-2).astype(plan.dtype)
    cost = DenseCost(torch.from_numpy(matrix))
    return Case(masses, torch.from_numpy(image), torch.from_numpy(plan), torch.from_numpy(eps), cost)


def random_matrix(count: int, seed: int = 0, forbidden: float = 0.0) -> npt.NDArray[np.float64]:
    """Neither symmetric nor a metric."""
    generator = np.random.default_rng(seed)
    matrix = generator.uniform(0.1, 3, (count, count))
    matrix[generator.random((count, count)) < forbidden] = np.inf
    np.fill_diagonal(matrix, 0)
    return matrix


def default_case(dtype: torch.dtype = torch.float32) -> Case:
    return local_case(LocalCost(5), blobs(3, 2, 9, 7, dtype=dtype))


# ---------------------------------------------------------------------------------------------- the distance itself


@pytest.mark.parametrize("cost", LOCAL, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_distance_of_images_is_that_of_plain_optimal_transport(cost: LocalCost, dtype: torch.dtype) -> None:
    case = local_case(cost, blobs(3, 3, 8, 5, dtype=dtype))
    certificate = case.verify(plan=None)
    assert certificate.exact.all()
    assert certificate.valid.all(), certificate.faults
    expected = plain_distance(case.images, case.adversarial, cost)
    assert certificate.distance.tolist() == pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 2e-6)


@pytest.mark.parametrize("cost", LOCAL, ids=str)
def test_the_distance_of_unrelated_images_is_not_limited_by_the_window(cost: LocalCost) -> None:
    images, others = blobs(2, 1, 6, 9, seed=1), blobs(2, 1, 6, 9, seed=2)
    others *= (images.sum((1, 2, 3)) / others.sum((1, 2, 3))).view(-1, 1, 1, 1)
    certificate = verify(images, others, eps=100.0, cost=cost)
    assert certificate.valid.all()
    assert certificate.distance.tolist() == pytest.approx(plain_distance(images, others, cost), rel=1e-9)


@pytest.mark.parametrize("channels", [(), (2,)], ids=["points", "channels"])
def test_the_distance_of_points_is_that_of_plain_optimal_transport(channels: tuple[int, ...]) -> None:
    masses = blobs(3, *channels, 12, seed=3) * 5
    case = dense_case(random_matrix(12), masses)
    certificate = case.verify(plan=None, bounds=None)
    assert certificate.exact.all()
    assert certificate.distance.tolist() == pytest.approx(
        plain_distance(case.images, case.adversarial, case.cost), rel=1e-9
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_forbidden_moves_are_not_made(dtype: torch.dtype) -> None:
    matrix = random_matrix(10, seed=4, forbidden=0.6)
    case = dense_case(matrix, blobs(4, 10, seed=4, dtype=dtype))
    certificate = case.verify(plan=None, bounds=None)
    assert certificate.valid.all(), certificate.faults
    dear = DenseCost(torch.from_numpy(np.where(np.isinf(matrix), 1e4, matrix)))
    expected = plain_distance(case.images, case.adversarial, dear)
    assert certificate.distance.tolist() == pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 1e-5)


def test_a_distance_that_needs_a_forbidden_move_is_infinite() -> None:
    matrix = torch.tensor([[0, 1, INF], [1, 0, INF], [INF, INF, 0]])
    images = torch.tensor([[0.5, 0.2, 0.3]] * 2)
    moved = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]])
    certificate = verify(images, moved, eps=10.0, cost=DenseCost(matrix))
    assert certificate.distance.tolist() == pytest.approx([0.3, INF])
    assert certificate.valid.tolist() == [True, False]


@pytest.mark.parametrize("cost", LOCAL, ids=str)
def test_where_there_are_too_many_pairs_the_bound_is_within_a_tenth(
    cost: LocalCost, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = local_case(cost, blobs(3, 1, 14, 11))
    exact = case.verify(plan=None)
    monkeypatch.setattr(transport, "MAX_PAIRS", 1200)
    bound = case.verify(plan=None)
    assert exact.exact.all()
    assert not bound.exact.any()
    assert (bound.distance >= exact.distance * (1 - 1e-9)).all()
    assert (bound.distance <= exact.distance * 1.1).all()


def test_too_many_pairs_of_points_give_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    case = dense_case(random_matrix(30, forbidden=0.2), blobs(3, 30, seed=5))
    exact = case.verify(plan=None, bounds=None)
    monkeypatch.setattr(transport, "MAX_PAIRS", 100)
    bound = case.verify(plan=None, bounds=None)
    assert not bound.exact.any()
    assert (bound.distance >= exact.distance * (1 - 1e-9)).all()


def test_a_solver_that_does_not_finish_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = ot.emd
    monkeypatch.setattr(ot, "emd", lambda *args, **options: solve(*args, **(options | {"numItermax": 1})))
    certificate = default_case().verify(plan=None)
    assert not certificate.valid.any()
    assert not certificate.exact.any()
    assert certificate.distance.tolist() == [INF] * 3


# ------------------------------------------------------------------------------------------------ what is accepted


@pytest.mark.parametrize("cost", LOCAL, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (2, 3, 5, 11), (2, 2, 1, 7), (1, 1, 1, 1)], ids=str)
def test_a_valid_plan_is_accepted_at_its_own_cost(cost: LocalCost, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    case = local_case(cost, blobs(*shape, dtype=dtype) + 0.01)
    certificate = case.verify()
    assert certificate.valid.all(), certificate.faults
    assert not certificate.exact.any()
    assert certificate.distance.tolist() == pytest.approx(
        case.eps.tolist(), rel=1e-4 if dtype == torch.float32 else 1e-12
    )
    assert (certificate.distance >= case.verify(plan=None).distance * (1 - 1e-12)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("channels", [(), (2,)], ids=["points", "channels"])
def test_a_valid_plan_between_points_is_accepted(dtype: torch.dtype, channels: tuple[int, ...]) -> None:
    case = dense_case(random_matrix(20, forbidden=0.3), blobs(3, *channels, 20, dtype=dtype) * 4)
    certificate = case.verify(bounds=None)
    assert certificate.valid.all(), certificate.faults
    assert (certificate.distance >= case.verify(plan=None, bounds=None).distance * (1 - 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(-6, 0).map(lambda power: 10**power),
    share=st.floats(1e-4, 0.5),
    cost=st.sampled_from(LOCAL),
    dtype=st.sampled_from(FLOATS),
)
def test_a_certificate_is_a_bound_on_the_distance(
    seed: int, scale: float, share: float, cost: LocalCost, dtype: torch.dtype
) -> None:
    case = local_case(cost, blobs(1, 2, 6, 5, seed=seed, dtype=dtype) * scale, share, seed)
    by_plan, by_images = case.verify(), case.verify(plan=None)
    assert by_plan.valid.all(), by_plan.faults
    assert by_images.valid.all(), by_images.faults
    assert by_images.distance.item() <= by_plan.distance.item() * (1 + 1e-9)


@pytest.mark.parametrize("with_plan", [True, False], ids=["plan", "images"])
def test_unchanged_black_and_white_images_are_valid_at_radius_zero(with_plan: bool) -> None:
    images = torch.stack([torch.zeros(3, 6, 6), torch.ones(3, 6, 6), blobs(3, 6, 6, dtype=torch.float32)])
    plan = TransportPlan.identity(images, LocalCost()) if with_plan else None
    certificate = verify(images, images.clone(), eps=0.0, plan=plan)
    assert certificate.valid.all()
    assert certificate.distance.tolist() == [0, 0, 0]
    assert certificate.mass_error.tolist() == [0, 0, 0]


def test_white_pixels_may_exchange_their_mass() -> None:
    plan = torch.zeros(1, 9, 1, 1, 2)
    plan[0, 4] = 0.5
    plan[0, 5, 0, 0, 0] = plan[0, 3, 0, 0, 1] = 0.5
    images = torch.ones(1, 1, 1, 2)
    assert verify(images, images, eps=0.5, plan=plan, cost=LocalCost(3)).distance.tolist() == [0.5]
    assert verify(images, images, eps=0.0, cost=LocalCost(3)).valid.all()


def test_rows_that_are_off_by_rounding_are_accepted() -> None:
    case = default_case()
    noise = 1 + 2e-7 * (torch.rand(case.plan[:, :1].shape, generator=torch.Generator().manual_seed(0)) - 0.5)
    assert case.verify(plan=case.plan * noise).valid.all()


def test_float64_images_may_come_with_a_float32_plan() -> None:
    case = default_case(torch.float64)
    assert case.verify(plan=case.plan.float()).valid.all()


def test_entries_that_the_image_is_too_coarse_for_are_rounding() -> None:
    images = torch.tensor([[[[0.5, 0.0]]]])
    plan = torch.zeros(1, 9, 1, 1, 2, dtype=torch.float64)
    plan[0, 4, 0, 0, 0], plan[0, 5, 0, 0, 0] = 0.5, 1e-60
    assert verify(images, images, eps=1e-9, plan=plan, cost=LocalCost(3)).valid.all()


def test_samples_do_not_depend_on_each_other() -> None:
    case = default_case()
    together = case.verify(eps=torch.tensor([1.0, 0.0, 1.0]))
    assert together.valid.tolist() == [True, False, True]
    for sample in range(3):
        one = slice(sample, sample + 1)
        alone = verify(case.images[one], case.adversarial[one], eps=1.0, plan=case.plan[one])
        assert alone.distance.item() == together.distance[sample].item()


# ------------------------------------------------------------------------------------------------ what is rejected


def kinds(certificate: Certificate, sample: int = 0) -> list[str]:
    """Of what kind the faults of a sample are: each test below is about one at a time."""
    return [fault.split(":")[0] for fault in certificate.faults[sample]]


def with_pixel(case: Case, value: float) -> Case:
    adversarial = case.adversarial.clone()
    adversarial[0, 0, 4, 3] = value
    return replace(case, adversarial=adversarial)


def with_entry(case: Case, value: float, *where: int) -> Case:
    plan = case.plan.clone()
    plan[where] += value
    return replace(case, plan=plan)


def with_moved_mass(case: Case, amount: float, channel: int) -> Case:
    """``amount`` taken from the brightest pixel of the first channel to a corner of ``channel``."""
    adversarial = case.adversarial.clone()
    adversarial[0, 0].view(-1)[case.adversarial[0, 0].argmax()] -= amount
    adversarial[0, channel, -1, -1] += amount
    return replace(case, adversarial=adversarial)


def scaled(case: Case, factor: float) -> Case:
    return replace(case, adversarial=case.adversarial * factor)


FAULTS: dict[str, tuple[Callable[[Case], Case], str]] = {
    "mass grows": (lambda case: scaled(case, 1 + 1e-3), "mass"),
    "mass shrinks": (lambda case: scaled(case, 1 - 1e-5), "mass"),
    "mass changes channel": (lambda case: with_moved_mass(case, 1e-3, channel=1), "mass"),
    "pixel not a number": (lambda case: with_pixel(case, float("nan")), "image"),
    "pixel infinite": (lambda case: with_pixel(case, INF), "image"),
    "budget": (lambda case: replace(case, eps=case.eps / 1.001), "budget"),
    "column sums": (lambda case: with_moved_mass(case, 1e-4, channel=0), "plan"),
    "row sums": (lambda case: replace(case, plan=case.plan * (1 + 1e-3)), "plan"),
    "rows of another image": (lambda case: replace(case, plan=case.plan.flip(-1)), "plan"),
    "entry negative": (lambda case: with_entry(case, -0.6, 0, 0, 0, 4, 3), "plan"),
    "entry not a number": (lambda case: with_entry(case, float("nan"), 0, 12, 0, 4, 3), "plan"),
    "entry infinite": (lambda case: with_entry(case, INF, 0, 12, 0, 4, 3), "plan"),
    "entry outside the image": (lambda case: with_entry(case, 1e-30, 0, 0, 0, 0, 0), "plan"),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_with_a_plan(fault: str, dtype: torch.dtype) -> None:
    damage, reason = FAULTS[fault]
    certificate = damage(default_case(dtype)).verify()
    assert not certificate.valid[0]
    assert kinds(certificate) == [reason]
    assert (certificate.distance[0] < INF) == (reason == "budget")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fault", [fault for fault, (_, reason) in FAULTS.items() if reason != "plan"])
def test_each_fault_is_found_from_the_images_alone(fault: str, dtype: torch.dtype) -> None:
    case = default_case(dtype)
    damage, reason = FAULTS[fault]
    damaged = damage(replace(case, eps=case.verify(plan=None).distance))
    certificate = damaged.verify(plan=None)
    assert not certificate.valid[0]
    assert kinds(certificate) == [reason]


@pytest.mark.parametrize("with_plan", [True, False], ids=["plan", "images"])
def test_a_pixel_outside_the_box_is_the_only_fault_of_an_honest_plan(with_plan: bool) -> None:
    images = torch.tensor([[[[0.9, 0.2, 0.5]]]])
    plan = LocalCost(3).identity(images)
    plan[0, [3, 4], 0, 0, 1] = torch.tensor([0.101, 0.099])
    adversarial = torch.tensor([[[[1.001, 0.099, 0.5]]]])
    certificate = verify(images, adversarial, eps=0.07, plan=plan if with_plan else None, cost=LocalCost(3))
    assert kinds(certificate) == ["box"]
    assert certificate.box_error.item() == pytest.approx(1e-3, abs=1e-7)
    assert certificate.distance.item() == pytest.approx(0.101 / 1.6, rel=1e-6)


def test_teleported_mass_is_charged_for_its_way() -> None:
    images = blobs(1, 1, 9, 9, dtype=torch.float32)
    images[0, 0, 0, 0] = images[0, 0, 8, 8] = 0.5
    adversarial = images.clone()
    adversarial[0, 0, 0, 0] -= 1e-4
    adversarial[0, 0, 8, 8] += 1e-4
    certificate = verify(images, adversarial, eps=0.0)
    assert kinds(certificate) == ["budget"]
    assert certificate.distance.item() == pytest.approx(1e-4 * 8 * 2**0.5 / images.sum().item(), rel=1e-2)
    assert kinds(verify(images, adversarial, eps=1.0, plan=LocalCost().identity(images))) == ["plan"]


def test_rounding_errors_that_conspire_are_charged() -> None:
    """Every sum agrees with its pixel to 20 ulps, yet mass goes from one side of the image to the other."""
    images = torch.full((1, 1, 32, 32), 0.6)
    adversarial = images.clone()
    adversarial[..., :16] -= 20 * 2**-24
    adversarial[..., 16:] += 20 * 2**-24
    least = verify(images, adversarial, eps=0.0).distance.item()
    for start in (images, adversarial):  # the errors are in the columns, in the rows
        certificate = verify(images, adversarial, eps=0.0, plan=LocalCost().identity(start))
        assert kinds(certificate) == ["budget"]
        assert certificate.distance.item() >= least > 0


@pytest.mark.parametrize("with_plan", [True, False], ids=["plan", "images"])
def test_a_black_channel_must_stay_black(with_plan: bool) -> None:
    images = blobs(2, 2, 5, 5, dtype=torch.float32)
    images[0, 1] = 0
    images[1] = 0
    adversarial = images.clone()
    adversarial[0, 1, 2, 2] = adversarial[1, 0, 2, 2] = 1e-44
    plan = TransportPlan.identity(images, LocalCost()) if with_plan else None
    certificate = verify(images, adversarial, eps=1.0, plan=plan)
    assert not certificate.valid.any()
    assert certificate.distance.tolist() == [INF, INF]
    assert certificate.mass_error[1] == INF


def test_no_bounds_still_means_no_negative_mass() -> None:
    case = dense_case(random_matrix(4), torch.full((1, 4), 3.0, dtype=torch.float64))
    assert case.verify(bounds=None).valid.all()
    below = case.adversarial.clone()
    below[0, :2] += torch.tensor([10.0, -10.0])
    certificate = replace(case, adversarial=below).verify(bounds=None)
    assert kinds(certificate) == ["box"]
    assert certificate.distance.item() == INF


def test_the_box_is_measured_in_the_type_of_the_image() -> None:
    images = torch.full((1, 1, 3, 3), 0.1)
    assert images.double().max() > 0.1
    assert verify(images, images, eps=0.0, bounds=(0, 0.1)).valid.all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), cost=st.sampled_from([LocalCost(5), LocalCost(5, "l1"), LocalCost(5, "linf")]))
def test_noise_costs_no_more_than_its_price(seed: int, cost: LocalCost) -> None:
    noise = np.random.default_rng(seed).normal(size=(1, 63))
    noise -= noise.mean()
    gone, come = np.maximum(-noise, 0)[0], np.maximum(noise, 0)[0]
    least = ot.emd2(gone, come * gone.sum() / come.sum(), price_matrix(cost, (1, 1, 7, 9)))
    assert least <= Grid(cost, 7, 9).noise_price(noise) <= 8 * least


# ---------------------------------------------------------------------------------------------------- the interface


def test_a_transport_plan_and_its_values_say_the_same() -> None:
    case = default_case()
    wrapped = case.verify(plan=TransportPlan(case.plan, case.cost))
    assert torch.equal(wrapped.distance, case.verify().distance)
    dense = dense_case(random_matrix(5), blobs(2, 5))
    again = DenseCost(torch.from_numpy(random_matrix(5)))
    assert dense.verify(plan=TransportPlan(dense.plan, again), bounds=None).valid.all()


def test_no_layout_code_of_the_operators_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [default_case(), dense_case(random_matrix(6), blobs(2, 6))]
    for name in ("gather", "scatter", "scatter_slices", "entries", "diagonal", "row_sums", "spent", "identity"):
        for owner in (Cost, LocalCost, DenseCost):
            monkeypatch.setattr(owner, name, None)
    for case in cases:
        assert case.verify(plan=TransportPlan(case.plan, case.cost)).valid.all()
        assert case.verify(plan=None).valid.all()


def test_without_pot_a_plan_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    case = default_case()
    assert case.verify().valid.all()
    with pytest.raises(ImportError, match="pip install POT"):
        case.verify(plan=None)


def test_the_summary_is_one_line() -> None:
    images = torch.full((2, 1, 1, 4), 0.5)
    moved = torch.tensor([0.375, 0.625, 0.5, 0.5]).expand(2, 1, 1, 4)
    good = verify(images, moved, eps=0.0625)
    assert str(good) == "2/2 valid · distance ≤ 0.0625 (exact) · mass error 0 · box error 0"
    bad = verify(images, moved.clone().mul_(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)), eps=0.0625)
    assert str(bad) == (
        "1/2 valid · distance ≤ inf (upper bound) · mass error ≤ 1e+00 · box error ≤ 2e-01"
        " · sample 1: box: a pixel is 0.25 outside [0, 1]; mass: channel 0 changes by 2"
    )


def test_results_have_one_entry_for_each_sample() -> None:
    certificate = default_case().verify()
    for name in ("valid", "distance", "mass_error", "box_error", "exact"):
        assert getattr(certificate, name).shape == (3,)
    assert certificate.faults == ((), (), ())
    assert certificate.valid.dtype == certificate.exact.dtype == torch.bool
    assert certificate.distance.dtype == certificate.mass_error.dtype == certificate.box_error.dtype == torch.float64


IMAGE = torch.full((2, 1, 4, 4), 0.5)
BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "images of integers": (dict(images=IMAGE.int()), "images must be float32 or float64"),
    "images without channels": (dict(images=IMAGE[0]), "images must have shape"),
    "images above the bounds": (dict(images=IMAGE * 3), r"images must be in \[0, 1\]: sample 0 has 1.5"),
    "images not a number": (dict(images=IMAGE * float("nan")), "images must be in .* has nan"),
    "adversarial of another shape": (dict(adversarial=IMAGE[:1]), "adversarial must have shape"),
    "adversarial of integers": (dict(adversarial=IMAGE.int()), "adversarial must be float32"),
    "adversarial not a tensor": (dict(adversarial=None), "adversarial must be a torch.Tensor"),
    "negative eps": (dict(eps=-0.1), "eps must be finite and >= 0: sample 0 has -0.1"),
    "eps of another batch": (dict(eps=torch.ones(3)), "eps must be a number or have shape"),
    "no tolerance": (dict(tolerance=0.0), "tolerance must be a finite number > 0"),
    "lower bound": (dict(bounds=(-1, 1)), "bounds must start at 0"),
    "cost by name": (dict(cost="euclidean"), "cost must be a LocalCost or a DenseCost"),
    "cost of points": (dict(cost=DenseCost(1 - torch.eye(4))), "images must have shape"),
    "plan of another window": (dict(plan=torch.zeros(2, 9, 1, 4, 4)), "plan must have shape"),
    "plan of integers": (dict(plan=torch.zeros(2, 25, 1, 4, 4, dtype=torch.int)), "plan must be float32"),
    "plan of another cost": (dict(plan=TransportPlan.identity(IMAGE, LocalCost(5, "l1"))), "plan must have the cost"),
    "plan of another batch": (dict(plan=TransportPlan.identity(IMAGE[:1], LocalCost())), "plan must have shape"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_arguments_that_make_no_sense_are_errors(name: str) -> None:
    changes, message = BAD_ARGUMENTS[name]
    arguments: dict[str, Any] = dict(images=IMAGE, adversarial=IMAGE, eps=0.1) | changes
    with pytest.raises(ValueError, match=message):
        verify(**arguments)
