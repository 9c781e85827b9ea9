"""The paper's own algorithms, to their own modest accuracy: Alg. 1, the capacity projection, the entropic oracle."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor

from tests.truth import moves, project_qp
from wasserball.operators.baselines import bisection_projection, capacity_projection, entropic_bisection_oracle
from wasserball.operators.solution import Solution
from wasserball.threat import Cost, DenseCost, LocalCost

Array = npt.NDArray[np.float64]
INF = float("inf")
ASYMMETRIC = DenseCost(
    torch.tensor([[0, 0.5, 2, INF], [1, 0, 0.3, 1.5], [INF, 1, 0, 0.7], [0.2, INF, 3, 0]], dtype=torch.float64)
)
CHEAP = DenseCost(
    torch.tensor([[0, 0.01, 2, INF], [1, 0, 0.3, 1.5], [INF, 1, 0, 0.02], [0.2, INF, 3, 0]], dtype=torch.float64)
)
CASES = [
    pytest.param(LocalCost(3), (1, 4, 3), id="window 3"),
    pytest.param(LocalCost(5, "l1"), (2, 3, 3), id="window 5, two channels"),
    pytest.param(ASYMMETRIC, (4,), id="asymmetric"),
    pytest.param(CHEAP, (2, 4), id="cheap moves, two channels"),
]
FLOATS = [torch.float32, torch.float64]


def sample(cost: Cost, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """A target and masses in the unit box, a quarter of them 0."""
    generator = torch.Generator().manual_seed(seed)
    mass = (1.25 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.25).clamp(min=0)
    target = torch.randn(cost.plan_shape(mass), generator=generator, dtype=torch.float64)
    return target.to(dtype), mass.to(dtype)


def check_feasible(
    solution: Solution, mass: Tensor, budget: float | Tensor, cost: Cost, dtype: torch.dtype, scale: float = 1.0
) -> None:
    plan = solution.plan
    assert plan is not None
    assert plan.dtype == solution.image.dtype == dtype
    rounding = 80 * torch.finfo(dtype).eps * max(scale, 1)
    assert (plan >= 0).all()
    torch.testing.assert_close(cost.row_sums(plan), mass, rtol=0, atol=rounding)
    torch.testing.assert_close(cost.scatter(plan), solution.image)
    assert (cost.spent(plan, mass) <= budget * (1 + rounding) + rounding).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("cost", "shape"), CASES)
@pytest.mark.parametrize("budget", [0.0, 0.1, 100.0])
def test_algorithm_1(cost: Cost, shape: tuple[int, ...], budget: float, dtype: torch.dtype) -> None:
    target, mass = sample(cost, 2, *shape, dtype=dtype)
    solution = bisection_projection(target, mass, budget, cost, iterations=40)
    assert solution.converged.all()
    check_feasible(solution, mass, budget, cost, dtype)
    for b in range(2):
        exact = project_qp(target[b].double().numpy(), mass[b].double().numpy(), budget, cost)
        assert solution.plan is not None
        # λ is off by at most 1e-4, or the budget by 1e-4, of which the cheapest move makes a hundred times as much.
        np.testing.assert_allclose(solution.plan[b].numpy(), exact, atol=1e-3 if cost is not CHEAP else 2e-2)
    assert (solution.gap <= 1e-4 * torch.maximum(solution.lam, torch.full_like(solution.lam, budget)) + 1e-6).all()


def test_the_bracket_starts_above_any_cheap_move() -> None:
    """With the smallest cost taken to be 1, as in the public code, everything cheap would move although it must not."""
    target = torch.tensor([[[0, 1.0], [0, 0]]])
    cost = DenseCost(torch.tensor([[0, 0.01], [0.01, 0]]))
    solution = bisection_projection(target, torch.ones(1, 2), 0.001, cost, iterations=40)
    assert solution.lam.item() > 20
    assert solution.spent.item() == pytest.approx(0.001, abs=1e-4)
    assert solution.spent.item() <= 0.001


def test_fifteen_iterations_may_not_suffice_and_are_feasible() -> None:
    target, mass = sample(CHEAP, 3, 4, dtype=torch.float32)
    solution = bisection_projection(target, mass, 0.05, CHEAP)
    assert not solution.converged.any()
    assert solution.iterations.tolist() == [15, 15, 15]
    check_feasible(solution, mass, 0.05, CHEAP, torch.float32)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("cost", "shape"), CASES)
@pytest.mark.parametrize("budget", [0.1, 100.0])
def test_capacity_projection(cost: Cost, shape: tuple[int, ...], budget: float, dtype: torch.dtype) -> None:
    target, mass = sample(cost, 2, *shape, dtype=dtype)
    solution = capacity_projection(target, mass, budget, cost, rounds=60)
    assert solution.converged.all()
    check_feasible(solution, mass, budget, cost, dtype)
    assert solution.image.max() <= 1 + 1e-3
    for b in range(2):
        exact = project_qp(target[b].double().numpy(), mass[b].double().numpy(), budget, cost, high=1.0)
        assert solution.plan is not None
        np.testing.assert_allclose(solution.plan[b].numpy(), exact, atol=5e-3 if cost is not CHEAP else 2e-2)


def test_capacity_projection_says_when_the_box_is_not_met() -> None:
    cost = LocalCost(5)
    target, mass = sample(cost, 1, 1, 5, 5)
    target += cost.gather(torch.full_like(mass, 2.0) * (torch.arange(5) == 2))
    hasty = capacity_projection(target, mass, 5.0, cost, rounds=1, nesterov_steps=1)
    assert not hasty.converged.any()
    assert hasty.image.max() > 1.001
    assert (hasty.spent <= 5).all()
    assert capacity_projection(target, mass, 5.0, cost, (0, 50), rounds=5).converged.all()


def entropic_minimum(gradient: Array, mass: Array, budget: float, cost: Cost, gamma: float) -> float:
    """The optimal value from the dual of Prop. 6, maximised over λ by a generic scalar solver."""
    move = moves(cost, mass.shape)
    rows = [np.flatnonzero(move.source == i) for i in range(mass.size)]

    def negative_dual(lam: float) -> float:
        prices = -(gradient.ravel()[move.destination] + lam * move.price) / gamma
        soft = sum(x * (np.log(x) - logsumexp(prices[row])) for x, row in zip(mass.ravel(), rows, strict=True) if x > 0)
        return float(lam * budget - gamma * soft)

    found = minimize_scalar(negative_dual, bounds=(0, 1000), method="bounded", options={"xatol": 1e-10})
    return -min(float(found.fun), negative_dual(0.0))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("cost", "shape"), CASES)
@pytest.mark.parametrize("budget", [0.1, 100.0])
@pytest.mark.parametrize("gamma", [1.0, 1e-2])
def test_entropic_oracle(cost: Cost, shape: tuple[int, ...], budget: float, gamma: float, dtype: torch.dtype) -> None:
    _, mass = sample(cost, 2, *shape, dtype=dtype)
    gradient = torch.randn(mass.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    solution = entropic_bisection_oracle(gradient, mass, budget, cost, gamma=gamma, iterations=40)
    assert solution.converged.all()
    check_feasible(solution, mass, budget, cost, dtype)
    assert solution.plan is not None
    plan = solution.plan.double()
    value = (solution.image.double() * gradient).flatten(1).sum(1) + gamma * torch.xlogy(plan, plan).flatten(1).sum(1)
    for b in range(2):
        best = entropic_minimum(gradient[b].double().numpy(), mass[b].double().numpy(), budget, cost, gamma)
        assert -1e-5 <= value[b].item() - best <= solution.gap[b].item() + 1e-5


def test_a_small_gamma_does_not_overflow() -> None:
    _, mass = sample(LocalCost(5), 3, 1, 6, 6, dtype=torch.float32)
    gradient = torch.randn(mass.shape, generator=torch.Generator().manual_seed(2))
    solution = entropic_bisection_oracle(gradient, mass, 0.5, LocalCost(5), gamma=1e-6, iterations=30)
    check_feasible(solution, mass, 0.5, LocalCost(5), torch.float32)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(FLOATS),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4)),
    window=st.sampled_from([1, 3, 5]),
)
def test_feasible_and_indifferent_to_batch_mates(
    seed: int, dtype: torch.dtype, scale: float, shape: tuple[int, int, int], window: int
) -> None:
    cost = LocalCost(window)
    target, mass = sample(cost, 3, *shape, seed=seed, dtype=dtype)
    mass[0] = 0
    budget = torch.tensor([0.5, 0.0, 0.3], dtype=torch.float64)
    tasks: list[tuple[Callable[..., Solution], Tensor]] = [
        (bisection_projection, scale * target),
        (partial(capacity_projection, rounds=2), scale * target),
        (entropic_bisection_oracle, scale * cost.diagonal(target)),
    ]
    for operate, wanted in tasks:
        together = operate(wanted, mass, budget, cost)
        check_feasible(together, mass, budget, cost, dtype, scale)
        assert torch.equal(together.image[0], mass[0])
        for part in ([0], [2, 1]):
            alone = operate(wanted[part], mass[part], budget[part], cost)
            for name, value in vars(alone).items():
                assert value is None or torch.equal(value, getattr(together, name)[part]), name


@pytest.mark.parametrize(
    ("operate", "wanted"),
    [
        (bisection_projection, torch.ones(1, 9, 1, 4, 4)),
        (capacity_projection, torch.ones(1, 9, 1, 4, 4)),
        (entropic_bisection_oracle, torch.ones(1, 1, 4, 4)),
    ],
)
def test_bad_arguments_are_named(operate: Callable[..., Solution], wanted: Tensor) -> None:
    mass, cost = torch.ones(1, 1, 4, 4), LocalCost(3)
    with pytest.raises(ValueError, match="must have shape"):
        operate(wanted[..., :3], mass, 1.0, cost)
    with pytest.raises(ValueError, match="must be finite: sample 0 has nan"):
        operate(wanted * torch.nan, mass, 1.0, cost)
    with pytest.raises(ValueError, match="mass must be in"):
        operate(wanted, -mass, 1.0, cost)
    with pytest.raises(ValueError, match=r"budget must be finite and >= 0: sample 0 has -1\.0"):
        operate(wanted, mass, -1.0, cost)
    with pytest.raises(ValueError, match="must be an integer >= 1, got 0"):
        operate(wanted, mass, 1.0, cost, **{"rounds" if operate is capacity_projection else "iterations": 0})


def test_capacity_projection_needs_masses_inside_the_box() -> None:
    with pytest.raises(ValueError, match="mass must be in"):
        capacity_projection(torch.ones(1, 9, 1, 4, 4), torch.full((1, 1, 4, 4), 1.5), 1.0, LocalCost(3))
