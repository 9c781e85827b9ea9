"""The row kernels against plain truth: sorting in exact arithmetic for projections, explicit minima for moves."""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import costs
from tests.truth import moves
from wasserball import Cost, DenseCost, LocalCost
from wasserball.kernels import reference
from wasserball.kernels.reference import Rows, best_moves, move, project_rows, soft_moves, softmax
from wasserball.sums import ordered_sum

Array = npt.NDArray[np.float64]
EPS = 2.0**-52
INF = math.inf


# ------------------------------------------------------------------------------------------- the projection of a row


def sorted_projection(scores: Array, mass: float) -> list[Fraction]:
    """``argmin ‖p − scores‖²  s.t.  p ≥ 0, Σp = mass`` by sorting (Duchi et al. 2008, Fig. 1), without rounding.

    Forbidden entries are −∞.
    """
    exact = [Fraction(score) if score > -INF else None for score in scores.tolist()]
    ordered = sorted((score for score in exact if score is not None), reverse=True)
    total = Fraction(0)
    threshold = ordered[0]
    for rank, score in enumerate(ordered, start=1):
        total += score
        if score - (total - Fraction(mass)) / rank > 0:
            threshold = (total - Fraction(mass)) / rank
    return [max(score - threshold, Fraction(0)) if score is not None else Fraction(0) for score in exact]


def project(scores: Tensor, mass: Tensor, allowed: Tensor, axis: int) -> Rows:
    """The kernel, which must not take more passes over the rows than they have entries."""
    passes = 0

    def counted(values: Tensor, dim: int) -> Tensor:
        nonlocal passes
        passes += 1
        assert passes <= 2 * (scores.shape[axis] + 1), "the active set does not settle"
        return ordered_sum(values, dim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "ordered_sum", counted)
        return project_rows(scores, mass, allowed, axis)


@st.composite
def rows(draw: st.DrawFn) -> tuple[Array, Array]:
    """Scores (−∞ where forbidden) and masses of three rows, each of its own scale."""
    length = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores, masses = np.empty((3, length)), np.empty(3)
    for row in range(3):
        scale = 10.0 ** draw(st.integers(-6, 6))
        spread = scale * 10.0 ** draw(st.integers(-3, 3))
        kinds: list[Array] = [
            rng.standard_normal(length),
            rng.choice([0, 0.5, 1.0], length),
            np.full(length, rng.standard_normal()),
            -np.exp2(-np.arange(length, dtype=np.float64)),
            1 + EPS * rng.choice([0, 1.0, 2.0, 3.0], length),
        ]
        values = kinds[draw(st.integers(0, len(kinds) - 1))]
        offset = draw(st.sampled_from([0.0, 0.0, 1.0, -1e3, 1e9, -1e15])) * scale
        scores[row] = offset + spread * values
        masses[row] = draw(st.sampled_from([0.0, 1.0, 1.0, 1.0])) * scale * rng.random()
        if draw(st.booleans()):
            # The rest of the row at the threshold of its first entries, where rounding decides who is active.
            head = draw(st.integers(1, length))
            threshold = (scores[row, :head].sum() - masses[row]) / head
            scores[row, head:] = threshold * (1 + EPS * rng.integers(-1, 2, length - head))
        forbidden = rng.random(length) < draw(st.sampled_from([0, 0.5, 1]))
        forbidden[rng.integers(length)] = False
        scores[row, forbidden] = -INF
    return scores, masses


@settings(max_examples=400, deadline=None)
@given(rows())
def test_rows_agree_with_sorting(drawn: tuple[Array, Array]) -> None:
    scores, masses = drawn
    length = scores.shape[1]
    allowed = torch.from_numpy(scores > -INF)
    # What stands in a forbidden entry must not matter.
    filled = torch.from_numpy(np.where(scores > -INF, scores, 1e30))
    plan, active, size = project(filled, torch.from_numpy(masses), allowed, 1)
    assert torch.equal(active, plan > 0)
    assert torch.equal(size, active.sum(1).clamp(min=1).double())
    assert (plan[~allowed] == 0).all()
    for row in range(3):
        slack = Fraction(4 * length * EPS * masses[row])
        found = [Fraction(entry) for entry in plan[row].tolist()]
        truth = sorted_projection(scores[row], masses[row])
        assert max(abs(entry - exact) for entry, exact in zip(found, truth, strict=True)) <= slack
        # The optimality conditions: what an active entry lost is the same for all, and no other entry had more to lose.
        assert min(found) >= 0
        assert abs(sum(found) - Fraction(masses[row])) <= slack
        pairs = list(zip(scores[row].tolist(), found, strict=True))
        lost = [Fraction(score) - entry for score, entry in pairs if entry > 0]
        assert bool(lost) == (masses[row] > 0)
        if lost:
            assert max(lost) - min(lost) <= slack
            assert all(Fraction(score) <= min(lost) + slack for score, entry in pairs if entry == 0 and score > -INF)


@settings(max_examples=50, deadline=None)
@given(rows(), st.integers(0, 2))
def test_a_row_does_not_depend_on_the_others(drawn: tuple[Array, Array], row: int) -> None:
    scores, masses = (torch.from_numpy(values) for values in drawn)
    together = project(scores, masses, scores > -INF, 1)
    alone = project(scores[[row]], masses[[row]], scores[[row]] > -INF, 1)
    for theirs, own in zip(together, alone, strict=True):
        assert torch.equal(theirs[row], own[0])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_rows_lie_along_any_axis(axis: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 5, 7, generator=generator)
    mass, allowed = torch.rand(4, 5, generator=generator), torch.rand(4, 5, 7, generator=generator) < 0.7
    allowed[..., 0] = True
    plan, active, size = project(scores, mass, allowed, -1)
    moved = project(scores.movedim(-1, axis), mass, allowed.movedim(-1, axis), axis)
    assert torch.equal(moved.plan, plan.movedim(-1, axis))
    assert torch.equal(moved.active, active.movedim(-1, axis))
    assert torch.equal(moved.size, size)


def test_rows_are_projected_in_float64() -> None:
    scores, mass = torch.randn(3, 8), torch.rand(3)
    allowed = torch.ones(8, dtype=torch.bool)  # broadcast over the rows
    single = project(scores, mass, allowed, 1)
    double = project(scores.double(), mass.double(), allowed.expand(3, 8), 1)
    assert single.plan.dtype == torch.float64
    assert torch.equal(single.plan, double.plan)


@pytest.mark.parametrize("mass", [0.0, 1e-300, 1.0, 1e300])
@pytest.mark.parametrize("offset", [0.0, 1e300, -1e300])
def test_a_row_of_ties_shares_evenly(mass: float, offset: float) -> None:
    scores, masses = (torch.tensor(values, dtype=torch.float64) for values in ([[offset] * 4], [mass]))
    assert project(scores, masses, torch.tensor(True), 1).plan.tolist() == [[mass / 4] * 4]


def test_the_slowest_row_takes_one_pass_for_each_entry_at_most() -> None:
    # Each entry is just below the threshold of those above it, so that every pass sheds few.
    entries = [0.0, -0.5]
    while len(entries) < 60:
        entries.append((sum(entries) - 1) / len(entries) - 1e-12)
    scores = torch.tensor([entries], dtype=torch.float64)
    plan = project(scores, torch.ones(1), torch.tensor(True), 1).plan
    truth = sorted_projection(scores[0].numpy(), 1.0)
    assert plan[0].tolist() == pytest.approx([float(entry) for entry in truth], abs=1e-14)


# --------------------------------------------------------------------------------------- what a source can do

LAYOUTS: dict[str, tuple[Cost, tuple[int, ...]]] = {
    "5x5 window": (LocalCost(5), (2, 4, 6)),
    "l1": (LocalCost(5, "l1"), (1, 5, 3)),
    "linf squared, one row": (LocalCost(3, "linf", 2), (2, 1, 5)),
    "window larger than the image": (LocalCost(9), (1, 2, 3)),
    "window of one": (LocalCost(1), (1, 2, 2)),
    "one pixel": (LocalCost(5), (1, 1, 1)),
    "points": (DenseCost(torch.tensor([[0.0, 1.0, INF], [2.0, 0.0, 0.5], [1.0, 3.0, 0.0]])), (3,)),
    "points with channels": (DenseCost(torch.tensor([[0.0, 1.0], [INF, 0.0]])), (2, 2)),
}
layouts = pytest.mark.parametrize(("cost", "shape"), LAYOUTS.values(), ids=LAYOUTS)


def reachable(gradient: Tensor, cost: Cost) -> dict[tuple[int, ...], dict[float, list[float]]]:
    """The gradients that each source (sample, then flat index) can reach, sorted into the prices it pays for them."""
    found: dict[tuple[int, ...], dict[float, list[float]]] = {}
    options = moves(cost, tuple(gradient.shape[1:]))
    for sample, values in enumerate(gradient.flatten(1).tolist()):
        for source, destination, price in zip(options.source, options.destination, options.price, strict=True):
            prices = found.setdefault((sample, int(source)), {})
            prices.setdefault(round(float(price), 9), []).append(values[destination])
    return found


def candidates(value: Tensor, price: Tensor, cost: Cost) -> list[list[list[tuple[float, float]]]]:
    """``[sample][source]`` → the pairs of price and value that lie along the axis, without those that are infinite."""
    both = [entries.expand(value.shape).movedim(cost.axis, -1) for entries in (price, value)]
    count = both[0].shape[-1]
    table: list[list[list[tuple[float, float]]]] = []
    for prices, values in zip(*(entries.reshape(len(value), -1, count).tolist() for entries in both), strict=True):
        table.append(
            [
                [(round(p, 9), v) for p, v in zip(*pair, strict=True) if v < INF]
                for pair in zip(prices, values, strict=True)
            ]
        )
    return table


def draw_gradient(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(2, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).to(dtype)


@layouts
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_best_move_at_each_price(cost: Cost, shape: tuple[int, ...], dtype: torch.dtype, scale: float) -> None:
    gradient = draw_gradient(shape, dtype, scale)
    found = best_moves(gradient, cost)
    assert found.value.dtype == found.price.dtype == torch.float64
    table = candidates(found.value, found.price, cost)
    for (sample, source), prices in reachable(gradient, cost).items():
        if isinstance(cost, LocalCost):
            assert sorted(table[sample][source]) == sorted((price, min(values)) for price, values in prices.items())
        else:
            pairs = [(price, value) for price, values in prices.items() for value in values]
            assert sorted(table[sample][source]) == sorted(pairs)


@pytest.mark.parametrize("name", [name for name, (cost, _) in LAYOUTS.items() if isinstance(cost, LocalCost)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_destination_holds_the_value(name: str, ties: bool) -> None:
    cost, shape = LAYOUTS[name]
    assert isinstance(cost, LocalCost)
    gradient = torch.ones(2, *shape) if ties else draw_gradient(shape)
    found = best_moves(gradient, cost)
    assert found.destination is not None
    assert found.value.shape[1] == len(cost.shells)
    assert torch.isfinite(found.value[:, 0]).all()  # one may always stay
    for b, shell, c, h, w in np.argwhere(np.isfinite(found.value.numpy())):
        k = int(found.destination[b, shell, c, h, w])
        assert k in cost.shells[shell][1]
        down, right = cost.offsets[k]
        assert gradient[b, c, h + down, w + right] == found.value[b, shell, c, h, w]


def test_points_are_their_own_candidates() -> None:
    cost, shape = LAYOUTS["points"]
    assert best_moves(draw_gradient(shape), cost).destination is None


@layouts
@pytest.mark.parametrize("gamma", [10.0, 1.0, 1e-2, 1e-5])
def test_the_soft_minimum_at_each_price(cost: Cost, shape: tuple[int, ...], gamma: float) -> None:
    gradient = draw_gradient(shape)
    found = soft_moves(gradient, cost, gamma)
    assert found.destination is None
    table = candidates(found.value, found.price, cost)
    for (sample, source), prices in reachable(gradient, cost).items():
        expected = [
            (price, value)
            for price, values in prices.items()
            for value in ([_soft_minimum(values, gamma)] if isinstance(cost, LocalCost) else values)
        ]
        for pair, wanted in zip(sorted(table[sample][source]), sorted(expected), strict=True):
            assert pair == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def _soft_minimum(values: list[float], gamma: float) -> float:
    return float(-gamma * np.logaddexp.reduce(np.array(values) / -gamma))


@settings(max_examples=50, deadline=None)
@given(drawn=costs(6), seed=st.integers(0, 2**32), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_soft_becomes_hard_as_gamma_vanishes(
    drawn: tuple[Cost, tuple[int, ...], float], seed: int, scale: float
) -> None:
    cost, shape, _ = drawn
    gradient = torch.from_numpy(scale * np.random.default_rng(seed).standard_normal((2, *shape)))
    hard, count = best_moves(gradient, cost).value, cost.plan_shape(gradient)[cost.axis]
    last = torch.full_like(hard, -INF)
    for gamma in scale * 10.0 ** np.arange(1, -12, -3):
        soft = soft_moves(gradient, cost, gamma).value
        assert torch.equal(torch.isinf(soft), torch.isinf(hard))
        noise = 1e-14 * scale
        assert (soft <= hard + noise).all()
        assert (hard.nan_to_num(posinf=0) - soft.nan_to_num(posinf=0) <= gamma * math.log(count) + noise).all()
        assert (soft >= last - noise).all()
        last = soft


@layouts
def test_one_move_at_a_time(cost: Cost, shape: tuple[int, ...]) -> None:
    gradient = draw_gradient(shape, torch.float32)
    plan_shape = cost.plan_shape(gradient)
    values, prices = [], []
    for k in range(plan_shape[cost.axis]):
        value, price = move(gradient, cost, k)
        values.append(value.expand_as(gradient))
        prices.append(price.expand_as(gradient))
    value, price = torch.stack(values, cost.axis), torch.stack(prices, cost.axis)
    assert value.dtype == price.dtype == torch.float64
    options = moves(cost, shape)
    entry = tuple(torch.from_numpy(index) for index in options.entry)
    for sample in range(2):
        assert value[sample][entry].tolist() == gradient[sample].flatten()[options.destination].tolist()
        assert price[sample][entry].tolist() == pytest.approx(options.price.tolist(), rel=1e-15)
        value[sample][entry] = INF
    assert (value == INF).all()  # also at all that is not a move


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis: int, offset: float) -> None:
    scores = offset + torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores.select(axis, 2).fill_(-INF)
    weight, total = softmax(scores, axis)
    expected = torch.logsumexp(scores, axis)
    torch.testing.assert_close(total, expected, rtol=1e-15, atol=1e-14)
    torch.testing.assert_close(weight, (scores - expected.unsqueeze(axis)).exp(), rtol=1e-11, atol=0)
    assert (weight.select(axis, 2) == 0).all()
    torch.testing.assert_close(weight.sum(axis), torch.ones_like(total), rtol=1e-14, atol=0)
