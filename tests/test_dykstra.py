"""Dykstra's algorithm is the paper's App. C step by step, and arrives at the exact projection."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.truth import project_qp
from wasserball.kernels.reference import project_rows
from wasserball.operators.dykstra import dykstra
from wasserball.threat import Cost, DenseCost, LocalCost

INF = float("inf")
ASYMMETRIC = DenseCost(
    torch.tensor([[0, 0.5, 2, INF], [1, 0, 0.3, 1.5], [INF, 1, 0, 0.7], [0.2, INF, 3, 0]], dtype=torch.float64)
)
CASES = [
    pytest.param(LocalCost(3), (1, 4, 3), id="window 3"),
    pytest.param(LocalCost(5, "l1"), (2, 3, 3), id="window 5, two channels"),
    pytest.param(ASYMMETRIC, (4,), id="asymmetric"),
    pytest.param(ASYMMETRIC, (2, 4), id="asymmetric, two channels"),
]
FLOATS = [torch.float32, torch.float64]


def sample(cost: Cost, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """A target and masses, a quarter of them 0."""
    generator = torch.Generator().manual_seed(seed)
    mass = (torch.rand(shape, generator=generator, dtype=torch.float64) - 0.25).clamp(min=0)
    target = cost.identity(mass) + 0.2 * torch.randn(cost.plan_shape(mass), generator=generator, dtype=torch.float64)
    return target.to(dtype), mass.to(dtype)


def literal(target: Tensor, mass: Tensor, budget: float, cost: Cost, rounds: int) -> list[tuple[Tensor, Tensor]]:
    """The paper's listing with both increments, on rows that all hold mass."""
    price, allowed = cost.entries(mass)
    normal = torch.where(allowed, price, 0.0).expand_as(target)
    norm = normal.square().flatten(1).sum(1)
    plan_h, simplex_increment, half_increment = target, torch.zeros_like(target), torch.zeros_like(target)
    iterates = []
    for _ in range(rounds):
        plan_s = project_rows(plan_h - simplex_increment, mass, allowed, cost.axis).plan
        simplex_increment = plan_s - plan_h + simplex_increment
        point = plan_s - half_increment
        over = ((point * normal).flatten(1).sum(1) - budget).clamp(min=0)
        plan_h = point - (over / norm).view(-1, *(1,) * (target.ndim - 1)) * normal
        half_increment = plan_h - plan_s + half_increment
        iterates.append((plan_s, plan_h))
    return iterates


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("cost", "shape"), CASES)
@pytest.mark.parametrize("budget", [0.3, 30.0])
def test_agrees_with_a_conic_solver(cost: Cost, shape: tuple[int, ...], budget: float, dtype: torch.dtype) -> None:
    target, mass = sample(cost, 2, *shape, dtype=dtype)
    solution = dykstra(target, mass, budget, cost)
    assert solution.converged.all()
    assert solution.plan is not None
    assert solution.plan.dtype == solution.image.dtype == dtype
    for b in range(2):
        exact = project_qp(target[b].double().numpy(), mass[b].double().numpy(), budget, cost)
        np.testing.assert_allclose(solution.plan[b].numpy(), exact, atol=2e-6)
    assert (solution.spent <= budget * (1 + 2e-6)).all()
    torch.testing.assert_close(cost.row_sums(solution.plan), mass)


@pytest.mark.parametrize(("cost", "shape"), CASES)
def test_every_iterate_is_the_papers(cost: Cost, shape: tuple[int, ...]) -> None:
    target, mass = sample(cost, 2, *shape)
    mass, budget = mass + 0.1, 0.05
    _, allowed = cost.entries(mass)
    target = torch.where(allowed, target, 0.0)
    seen: list[tuple[Tensor, Tensor]] = []
    dykstra(target, mass, budget, cost, max_iterations=20, callback=lambda _, *plans: seen.append(plans))
    assert len(seen) == 20
    for ours, papers in zip(seen, literal(target, mass, budget, cost, 20), strict=True):
        torch.testing.assert_close(ours, papers, rtol=0, atol=1e-12)


def test_a_target_that_fits_needs_one_projection() -> None:
    cost = LocalCost(3)
    _, mass = sample(cost, 2, 1, 4, 4)
    solution = dykstra(cost.identity(mass), mass, 0.1, cost)
    assert torch.equal(solution.image, mass)
    assert solution.iterations.tolist() == [1, 1]
    assert solution.lam.tolist() == solution.gap.tolist() == [0, 0]


def test_massless_rows_do_not_slow_it_down() -> None:
    cost = LocalCost(3)
    target, mass = sample(cost, 1, 1, 3, 3)
    wide, wide_target = torch.zeros(1, 1, 9, 3, dtype=mass.dtype), torch.ones(1, 9, 1, 9, 3, dtype=mass.dtype)
    wide[:, :, 3:6], wide_target[..., 3:6, :] = mass, target
    solution = dykstra(wide_target, wide, 0.1, cost)
    assert solution.converged.all()
    assert solution.plan is not None
    assert not solution.plan[..., :3, :].any()
    with_mass = 3 * 3 * sum(price**2 for price in cost.prices)
    # A step of the dual is at least (spent − budget) / ‖C‖², ‖C‖² being over the rows with mass alone.
    first = dykstra(wide_target, wide, 0.1, cost, max_iterations=1)
    second = dykstra(wide_target, wide, 0.1, cost, max_iterations=2)
    assert second.lam.item() >= (first.spent.item() - 0.1) / with_mass


def test_it_says_when_it_has_not_arrived() -> None:
    target, mass = sample(LocalCost(5), 2, 1, 5, 5)
    target[1] = LocalCost(5).identity(mass)[1]
    solution = dykstra(target, mass, 0.01, LocalCost(5), max_iterations=5)
    assert solution.converged.tolist() == [False, True]
    assert solution.iterations.tolist() == [5, 1]


def test_black_images_and_empty_budgets() -> None:
    cost = LocalCost(3)
    target, mass = sample(cost, 3, 1, 3, 3)
    mass[0] = 0
    solution = dykstra(target, mass, torch.tensor([0.5, 0.0, 0.5]), cost, tol=1e-9, max_iterations=50_000)
    assert solution.plan is not None
    assert not solution.plan[0].any()
    torch.testing.assert_close(solution.plan[:2], cost.identity(mass)[:2])
    assert solution.converged.all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(FLOATS), case=st.sampled_from(CASES))
def test_no_sample_depends_on_its_batch_mates(seed: int, dtype: torch.dtype, case: object) -> None:
    cost, shape = case.values  # type: ignore[attr-defined]
    target, mass = sample(cost, 4, *shape, seed=seed, dtype=dtype)
    budget = torch.tensor([0.1, 0.5, 3.0, 0.01], dtype=torch.float64)
    together = dykstra(target, mass, budget, cost, max_iterations=50)
    for part in ([0], [3, 1], [2]):
        alone = dykstra(target[part], mass[part], budget[part], cost, max_iterations=50)
        for name, value in vars(alone).items():
            assert value is None or torch.equal(value, getattr(together, name)[part]), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(tol=0.0), "tol must be a number in \\(0, 1\\), got 0.0"),
        (dict(max_iterations=0), "max_iterations must be"),
        (dict(budget=torch.tensor([1.0, 2.0])), "budget must be a number or have shape"),
        (dict(target=torch.zeros(1, 1, 4, 4)), "target must have shape"),
        (dict(mass=torch.full((1, 1, 4, 4), -1.0)), "mass must be in"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    good = dict(target=torch.ones(1, 9, 1, 4, 4), mass=torch.ones(1, 1, 4, 4), budget=1.0, cost=LocalCost(3))
    with pytest.raises(ValueError, match=message):
        dykstra(**(good | change))  # type: ignore[arg-type]
