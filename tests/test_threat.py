"""Costs and the ball against the definition: prices are norms, and the layout operations are loops over moves."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import costs
from tests.truth import moves
from wasserball import Cost, DenseCost, LocalCost, WassersteinBall
from wasserball.threat import Metric

INF = math.inf
FLOATS = [torch.float32, torch.float64]
METRICS: list[Metric] = ["euclidean", "l1", "linf"]
NORMS: dict[str, float] = {"euclidean": 2, "l1": 1, "linf": np.inf}
ASYMMETRIC = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, INF], [0.25, 3.0, 0.0]])

# Each with the shape of one sample of mass.
LAYOUTS: dict[str, tuple[Cost, tuple[int, ...]]] = {
    "5x5 window": (LocalCost(), (2, 6, 6)),
    "not square, l1": (LocalCost(3, "l1"), (1, 2, 7)),
    "one row, linf squared": (LocalCost(3, "linf", 2), (3, 1, 4)),
    "window larger than the image": (LocalCost(9, power=1.5), (2, 3, 2)),
    "window of one": (LocalCost(1), (1, 3, 4)),
    "one pixel": (LocalCost(5), (1, 1, 1)),
    "points": (DenseCost(ASYMMETRIC), (3,)),
    "points with channels": (DenseCost(ASYMMETRIC), (2, 3)),
    "one point": (DenseCost(torch.zeros(1, 1)), (1,)),
}
layouts = pytest.mark.parametrize(("cost", "shape"), LAYOUTS.values(), ids=LAYOUTS)
batches = pytest.mark.parametrize("batch", [1, 3])
floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def dyadic(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Multiples of 1/64 below 4: their sums are exact in float32 too, so that tests may ask for equality."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    return (torch.randint(0, 256, shape, generator=generator) / 64).to(dtype)


def allowed_entries(cost: Cost, batch: int, shape: tuple[int, ...]) -> Tensor:
    """Where a plan may be positive, from the list of moves."""
    allowed = np.zeros(cost.plan_shape(torch.zeros(1, *shape))[1:], dtype=np.bool_)
    allowed[moves(cost, shape).entry] = True
    return torch.from_numpy(allowed).expand(batch, *allowed.shape)


def random_plan(cost: Cost, batch: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    allowed = allowed_entries(cost, batch, shape)
    return torch.where(allowed, dyadic(*allowed.shape, dtype=dtype), 0)


def each_move(cost: Cost, shape: tuple[int, ...]) -> Iterator[tuple[int, int, float, tuple[int, ...]]]:
    """The source and destination as flat indices, the price, and the index into the plan of a sample."""
    found = moves(cost, shape)
    yield from zip(
        found.source.tolist(),
        found.destination.tolist(),
        found.price.tolist(),
        zip(*(index.tolist() for index in found.entry), strict=True),
        strict=True,
    )


# ---------------------------------------------------------------------------------------------- the price of a move


@pytest.mark.parametrize("window", [1, 3, 5, 7])
def test_offsets_are_row_major(window: int) -> None:
    reach = window // 2
    expected = [(down, right) for down in range(-reach, reach + 1) for right in range(-reach, reach + 1)]
    assert list(LocalCost(window).offsets) == expected
    assert LocalCost(window).offsets[window**2 // 2] == (0, 0)


@pytest.mark.parametrize("power", [1, 1.5, 2, 3.7])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("window", [1, 5, 11])
def test_prices_are_norms(window: int, metric: Metric, power: float) -> None:
    cost = LocalCost(window, metric, power)
    norms = [np.linalg.norm(offset, NORMS[metric]) ** power for offset in cost.offsets]
    assert cost.prices == pytest.approx(norms, rel=1e-15, abs=0)
    assert all(type(price) is float for price in cost.prices)
    assert cost.price(-30, 40) == pytest.approx(np.linalg.norm([30, 40], NORMS[metric]) ** power, rel=1e-15)


@pytest.mark.parametrize("power", [1, 1.5, 2, 3.7])
@pytest.mark.parametrize("metric", METRICS)
def test_shells_sort_the_offsets_by_price(metric: Metric, power: float) -> None:
    cost = LocalCost(11, metric, power)
    prices, members = zip(*cost.shells, strict=True)
    assert list(prices) == sorted(set(prices))
    assert sorted(itertools.chain(*members)) == list(range(121))
    assert all(cost.prices[k] == price for price, shell in cost.shells for k in shell)
    assert cost.shells[0] == (0.0, (60,))
    # Equal distances fall into one shell: by their whole numbers, not by rounded roots.
    moves = np.indices((6, 6))
    whole = {"euclidean": (moves**2).sum(0), "l1": moves.sum(0), "linf": moves.max(0)}[metric]
    assert len(cost.shells) == len(np.unique(whole))


def test_a_5x5_window_has_6_shells() -> None:
    assert [len(members) for _, members in LocalCost(5).shells] == [1, 4, 4, 4, 8, 4]


@pytest.mark.parametrize("cost", [LocalCost(), LocalCost(3, "l1"), LocalCost(7, "linf", 1.5), LocalCost(1, power=2)])
def test_a_local_cost_is_its_repr_and_hashable(cost: LocalCost) -> None:
    again = eval(repr(cost))
    assert again == cost
    assert hash(again) == hash(cost)
    assert {cost: "found"}[again] == "found"
    assert again.prices == cost.prices


def test_local_costs_differ_by_any_field() -> None:
    different = {LocalCost(), LocalCost(3), LocalCost(metric="l1"), LocalCost(metric="linf"), LocalCost(power=2)}
    assert len(different) == 5
    assert LocalCost(power=1) == LocalCost(power=1.0)


@pytest.mark.parametrize("power", [1, 1.5, 2])
@pytest.mark.parametrize("metric", METRICS)
def test_a_local_cost_is_a_metric_where_the_triangle_inequality_holds(metric: Metric, power: float) -> None:
    cost = LocalCost(5, metric, power)
    detours = itertools.product(cost.offsets, repeat=2)
    holds = all(cost.price(a + c, b + d) <= cost.price(a, b) + cost.price(c, d) + 1e-12 for (a, b), (c, d) in detours)
    assert cost.is_metric == holds == (power == 1)


# ------------------------------------------------------------------------------------------------ a matrix of prices


def distances(count: int, norm: float) -> Tensor:
    points = np.random.default_rng(count).standard_normal((count, 3))
    return torch.from_numpy(np.linalg.norm(points[:, None] - points, norm, axis=-1))


def with_entry(matrix: Tensor, value: float, *where: tuple[int, int]) -> Tensor:
    changed = matrix.clone()
    for i, j in where:
        changed[i, j] = value
    return changed


PLANE = distances(6, 2)
LINE = np.random.default_rng(0).random(30)
ISLANDS = torch.full((12, 12), INF, dtype=torch.float64)
ISLANDS[:6, :6] = ISLANDS[6:, 6:] = PLANE

MATRICES: dict[str, tuple[Tensor, bool]] = {
    "one point": (torch.zeros(1, 1), True),
    "two points": (torch.tensor([[0, 3], [3, 0]]), True),
    "euclidean": (distances(40, 2), True),
    "maximum": (distances(40, np.inf), True),
    "on a line, but for rounding": (torch.from_numpy(np.abs(LINE[:, None] - LINE)), True),
    "tiny": (PLANE * 1e-200, True),
    "huge": (PLANE * 1e300, True),
    "two islands": (ISLANDS, True),
    "asymmetric": (with_entry(PLANE, 0.999 * PLANE[0, 1].item(), (0, 1)), False),
    "a one-way ban": (with_entry(PLANE, INF, (2, 4)), False),
    "a cheaper detour": (with_entry(PLANE, 100.0, (2, 4), (4, 2)), False),
    "a detour around a ban": (with_entry(PLANE, INF, (2, 4), (4, 2)), False),
    "squared": (PLANE**2, False),
}


@pytest.mark.parametrize(("matrix", "expected"), MATRICES.values(), ids=MATRICES)
def test_a_matrix_is_a_metric_where_it_is_symmetric_and_no_detour_is_cheaper(matrix: Tensor, expected: bool) -> None:
    assert DenseCost(matrix).is_metric is expected


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float32, torch.float64], ids=str)
def test_a_matrix_is_kept_in_float64(dtype: torch.dtype) -> None:
    matrix = torch.tensor([[0, 2], [3, 0]], dtype=dtype)
    assert DenseCost(matrix).matrix.dtype == torch.float64
    assert DenseCost(matrix).matrix.tolist() == [[0, 2], [3, 0]]


def test_a_matrix_is_no_part_of_a_graph() -> None:
    assert not DenseCost(torch.tensor([[0.0, 1.0], [1.0, 0.0]], requires_grad=True)).matrix.requires_grad


def test_a_matrix_that_is_overwritten_later_does_not_change_the_cost() -> None:
    matrix = torch.tensor([[0, 1], [1, 0]], dtype=torch.float64)
    cost = DenseCost(matrix)
    matrix.fill_(-1)
    assert cost.matrix.tolist() == [[0, 1], [1, 0]]


# -------------------------------------------------------------------------------------- plans, by loops over the moves


@layouts
@batches
def test_entries_are_prices_and_permissions(cost: Cost, shape: tuple[int, ...], batch: int) -> None:
    mass = dyadic(batch, *shape)
    plan_shape = cost.plan_shape(mass)
    price, allowed = (entries.expand(plan_shape) for entries in cost.entries(mass))
    assert price.dtype == torch.float64
    assert torch.isfinite(price).all()
    assert torch.equal(allowed, allowed_entries(cost, batch, shape))
    for _, _, expected, entry in each_move(cost, shape):
        assert price[(0, *entry)].item() == pytest.approx(expected, rel=1e-15, abs=0)


@layouts
@batches
@floats
def test_gather_reads_the_destination(cost: Cost, shape: tuple[int, ...], batch: int, dtype: torch.dtype) -> None:
    image = dyadic(batch, *shape, dtype=dtype) + 1
    gathered = cost.gather(image)
    assert gathered.dtype == dtype
    seen = gathered.expand(cost.plan_shape(image))
    for sample in range(batch):
        flat = image[sample].flatten()
        for _, destination, _, entry in each_move(cost, shape):
            assert seen[(sample, *entry)] == flat[destination]
    if isinstance(cost, LocalCost):
        assert (seen[~allowed_entries(cost, batch, shape)] == 0).all()


@layouts
@batches
@floats
def test_sums_and_spending_of_a_plan(cost: Cost, shape: tuple[int, ...], batch: int, dtype: torch.dtype) -> None:
    plan = random_plan(cost, batch, shape, dtype)
    rows, columns = torch.zeros(2, batch, math.prod(shape)).unbind()
    spent = torch.zeros(batch, dtype=torch.float64)
    for sample in range(batch):
        for source, destination, price, entry in each_move(cost, shape):
            amount = plan[(sample, *entry)].item()
            rows[sample, source] += amount
            columns[sample, destination] += amount
            spent[sample] += price * amount
    mass = rows.view(batch, *shape).to(dtype)
    assert torch.equal(cost.row_sums(plan), mass)
    assert torch.equal(cost.scatter(plan), columns.view(batch, *shape).to(dtype))
    assert cost.spent(plan, mass).dtype == torch.float64
    assert cost.spent(plan, mass).tolist() == pytest.approx(spent.tolist(), rel=1e-14)


@layouts
@batches
@floats
def test_slices_add_up_like_the_plan(cost: Cost, shape: tuple[int, ...], batch: int, dtype: torch.dtype) -> None:
    plan = random_plan(cost, batch, shape, dtype)
    before = plan.clone()
    count = plan.shape[cost.axis]
    asked: list[int] = []

    def entries(k: int) -> Tensor:
        asked.append(k)
        return plan.select(cost.axis, k)

    assert torch.equal(cost.scatter_slices(count, entries), cost.scatter(plan))
    assert sorted(asked) == list(range(count))
    assert torch.equal(plan, before)


@layouts
@batches
@floats
def test_home_is_the_diagonal(cost: Cost, shape: tuple[int, ...], batch: int, dtype: torch.dtype) -> None:
    plan = random_plan(cost, batch, shape, dtype)
    mass = dyadic(batch, *shape, dtype=dtype)
    home = cost.home(mass)
    assert (home.dtype, home.shape) == (torch.int64, mass.shape)
    stays = plan.movedim(cost.axis, -1).gather(-1, home.unsqueeze(-1)).squeeze(-1)
    assert torch.equal(cost.diagonal(plan), stays)
    entries = {source: entry for source, destination, _, entry in each_move(cost, shape) if source == destination}
    for source, where in enumerate(np.ndindex(*shape)):
        assert cost.diagonal(plan)[(0, *where)] == plan[(0, *entries[source])]
    others = plan.sum() - cost.diagonal(plan).sum()
    cost.diagonal(plan).zero_()  # a view: it writes to the plan
    assert plan.sum() == others


@layouts
@batches
@floats
def test_the_identity_moves_nothing(cost: Cost, shape: tuple[int, ...], batch: int, dtype: torch.dtype) -> None:
    mass = dyadic(batch, *shape, dtype=dtype)
    plan = cost.identity(mass)
    assert (plan.dtype, tuple(plan.shape)) == (dtype, cost.plan_shape(mass))
    assert torch.equal(cost.row_sums(plan), mass)
    assert torch.equal(cost.scatter(plan), mass)
    assert cost.spent(plan, mass).tolist() == [0] * batch
    assert plan.sum() == mass.sum()


@settings(max_examples=100, deadline=None)
@given(drawn=costs(6), seed=st.integers(0, 2**32), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_gather_and_scatter_are_adjoint(drawn: tuple[Cost, tuple[int, ...], float], seed: int, scale: float) -> None:
    cost, shape, _ = drawn
    rng = np.random.default_rng(seed)
    image = torch.from_numpy(scale * rng.standard_normal((2, *shape)))
    _, allowed = cost.entries(image)
    plan = torch.where(allowed, torch.from_numpy(rng.standard_normal(cost.plan_shape(image))), 0.0)
    terms = (cost.gather(image) * plan).flatten(1)
    arrived = (image * cost.scatter(plan)).flatten(1).sum(1)
    assert ((terms.sum(1) - arrived).abs() <= 1e-13 * terms.abs().sum(1)).all()


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_any_memory_layout_is_read_alike(layout: str) -> None:
    cost = LocalCost(3)
    plan = random_plan(cost, 2, (2, 4, 4))
    other = {
        "contiguous": plan,
        "transposed": plan.movedim(1, -1).contiguous().movedim(-1, 1),
        "strided": torch.stack([plan, plan], -1)[..., 0],
    }[layout]
    assert torch.equal(cost.scatter(other), cost.scatter(plan))
    assert torch.equal(cost.row_sums(other), cost.row_sums(plan))
    assert torch.equal(cost.gather(other[:, 0]), cost.gather(plan[:, 0]))


# ----------------------------------------------------------------------------------------------------------- the ball


@floats
@pytest.mark.parametrize("eps", [0.0, 0.5, torch.tensor(0.5), torch.tensor([0.0, 0.25, 2.0])], ids=str)
@layouts
def test_a_budget_is_the_radius_times_the_mass_of_all_channels(
    cost: Cost, shape: tuple[int, ...], eps: float | Tensor, dtype: torch.dtype
) -> None:
    mass = dyadic(3, *shape, dtype=dtype)
    ball = WassersteinBall(mass, eps, cost)
    radii: npt.NDArray[np.float64] = np.broadcast_to(np.asarray(eps, dtype=np.float64), 3)
    totals = mass.double().numpy().reshape(3, -1).sum(1)
    assert ball.total.dtype == ball.budget.dtype == torch.float64
    assert ball.total.tolist() == totals.tolist()
    assert ball.budget.tolist() == (radii * totals).tolist()


def test_a_ball_is_local_by_default() -> None:
    ball = WassersteinBall(torch.rand(1, 1, 2, 2), 0.1)
    assert ball.cost == LocalCost(5, "euclidean", 1)
    assert ball.bounds is None


def test_the_mass_of_a_float32_image_is_summed_in_float64() -> None:
    mass = torch.full((1, 3, 224, 224), 0.1)
    expected = math.fsum(mass.double().flatten().tolist())
    assert WassersteinBall(mass, 1.0).total.item() == pytest.approx(expected, rel=1e-15)


def test_a_white_pixel_fits_bounds_that_its_type_cannot_hold() -> None:
    # 0.1 is larger in float32 than in float64.
    WassersteinBall(torch.full((1, 1, 2, 2), 0.1), 0.1, bounds=(0, 0.1))
