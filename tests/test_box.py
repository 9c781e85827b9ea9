"""The projection onto ball and box: against an independent conic solver, strictly feasible whatever happens."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.cases import Problem, problems
from tests.truth import project_qp
from wasserball import LocalCost, verify
from wasserball.operators import Solution, box_dual, project, project_box


def check_feasible(problem: Problem, solution: Solution) -> None:
    assert solution.plan is not None
    assert solution.plan.dtype == solution.image.dtype == problem.target.dtype
    assert solution.image.max() <= problem.high
    assert solution.image.min() >= 0
    assert (solution.plan >= 0).all()
    assert (solution.spent <= problem.budget * (1 + 1e-6)).all()
    mass, image = (values.double().flatten(1).sum(1) for values in (problem.mass, solution.image))
    assert ((image - mass).abs() <= 1e-6 * mass).all()
    total = problem.mass.double().flatten(1).sum(1)
    eps = torch.where(total > 0, problem.budget / total, 0.0)
    bounds = (0.0, problem.high)
    certificate = verify(problem.mass, solution.image, eps=eps, plan=solution.plan, cost=problem.cost, bounds=bounds)
    assert certificate.valid.all(), str(certificate)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems(largest=6, tiniest=-4))
def test_agrees_with_a_conic_solver(problem: Problem) -> None:
    solution = project_box(problem.target, problem.mass, problem.budget, problem.cost, (0, problem.high))
    check_feasible(problem, solution)
    assert solution.plan is not None
    for sample in range(2):
        truth = project_qp(
            problem.target[sample].double().numpy(),
            problem.mass[sample].double().numpy(),
            problem.budget[sample].item(),
            problem.cost,
            problem.high,
        )
        assert np.abs(solution.plan[sample].double().numpy() - truth).max() <= 1e-5 * problem.scale


@pytest.mark.parametrize("budget", [0.01, 0.05, 10.0])
@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (2, 3), (3, 3)])
def test_agrees_with_a_conic_solver_where_the_box_is_full(shape: tuple[int, int], budget: float) -> None:
    cost = LocalCost(window=7, metric="euclidean")
    mass = torch.ones(1, 1, *shape, dtype=torch.float64)
    target = torch.randn(1, 49, 1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.01
    target[:, 24] += mass
    solution = project_box(target, mass, torch.tensor([budget], dtype=torch.float64), cost, (0, 1))
    assert solution.plan is not None
    truth = project_qp(target[0].numpy(), mass[0].numpy(), budget, cost, 1.0)
    assert np.abs(solution.plan[0].numpy() - truth).max() <= 1e-6


@pytest.mark.parametrize("iterations", [1, 2, 5])
@settings(max_examples=60, deadline=None)
@given(problem=problems(largest=7))
def test_is_feasible_long_before_it_converges(iterations: int, problem: Problem) -> None:
    bounds = (0, problem.high)
    solution = project_box(
        problem.target, problem.mass, problem.budget, problem.cost, bounds, max_iterations=iterations
    )
    check_feasible(problem, solution)


@settings(max_examples=60, deadline=None)
@given(problems(largest=6))
def test_a_warm_start_needs_no_second_search(problem: Problem) -> None:
    bounds = (0, problem.high)
    cold = project_box(problem.target, problem.mass, problem.budget, problem.cost, bounds)
    assert cold.mu is not None
    warm = project_box(problem.target, problem.mass, problem.budget, problem.cost, bounds, lam=cold.lam, mu=cold.mu)
    assert cold.plan is not None
    assert warm.plan is not None
    done = cold.converged
    assert (warm.iterations[done] <= 3).all()
    assert ((warm.plan - cold.plan)[done].abs() <= 1e-6 * problem.scale).all()


def test_bits_do_not_depend_on_batch_mates() -> None:
    generator = torch.Generator().manual_seed(0)
    cost = LocalCost(5)
    mass = (2 * torch.rand(6, 2, 12, 12, generator=generator) - 0.5).clamp(0, 1)
    target = cost.identity(mass) + 0.3 * cost.gather(torch.randn(mass.shape, generator=generator))
    budget = mass.double().flatten(1).sum(1) * 10.0 ** torch.linspace(-3, 0, 6)
    together = project_box(target, mass, budget, cost)
    assert together.plan is not None
    for sample in range(6):
        alone = project_box(target[[sample]], mass[[sample]], budget[[sample]], cost)
        assert alone.plan is not None
        assert torch.equal(alone.plan[0], together.plan[sample])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_white_image_cannot_gain_mass_anywhere(dtype: torch.dtype) -> None:
    cost = LocalCost(5)
    mass = torch.ones(2, 1, 9, 9, dtype=dtype)
    gradient = torch.randn(mass.shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    solution = project_box(cost.identity(mass) + cost.gather(gradient), mass, 8.0, cost)
    assert solution.image.max() <= 1
    torch.testing.assert_close(solution.image, mass, rtol=0, atol=1e-7)


def test_a_budget_so_small_that_next_to_nothing_moves() -> None:
    """All the budget buys is one cycle of swaps in each white image: which one is almost a linear program."""
    cost, mass, budget = LocalCost(3), torch.ones(8, 2, 4, 4), 1e-3
    noise = torch.randn(cost.plan_shape(mass), generator=torch.Generator().manual_seed(4))
    target = cost.identity(mass) + noise
    solution = project_box(target, mass, budget, cost)
    assert solution.converged.all()
    assert solution.plan is not None
    for sample in range(8):
        truth = project_qp(target[sample].double().numpy(), mass[sample].double().numpy(), budget, cost, 1.0)
        assert np.abs(solution.plan[sample].double().numpy() - truth).max() <= 1e-6


def test_does_not_jump_to_and_fro_between_pieces_as_small_as_rounding() -> None:
    """The rounding of a float32 target decides where μ has a gradient, and the dual changes by less than its own."""
    cost, mass = LocalCost(3), torch.ones(16, 2, 4, 4)
    gradient = torch.randn(mass.shape, generator=torch.Generator().manual_seed(4))
    solution = project_box(cost.identity(mass) + 0.3 * cost.gather(gradient), mass, 1.0, cost)
    assert solution.converged.all()
    assert (solution.iterations <= 40).all()


def test_gap_bounds_the_distance_to_the_optimum() -> None:
    generator = torch.Generator().manual_seed(1)
    cost = LocalCost(3)
    mass = torch.rand(4, 1, 8, 8, generator=generator, dtype=torch.float64)
    target = cost.identity(mass) + torch.randn(cost.plan_shape(mass), generator=generator, dtype=torch.float64)
    best = project_box(target, mass, 5.0, cost, tol=1e-12)
    early = project_box(target, mass, 5.0, cost, max_iterations=2)
    assert best.plan is not None
    assert early.plan is not None
    distance = (early.plan - best.plan).square().flatten(1).sum(1) / 2
    assert (distance <= early.gap + 1e-9).all()
    assert (best.gap <= 1e-8).all()


def test_a_loose_box_is_the_plain_projection() -> None:
    generator = torch.Generator().manual_seed(2)
    cost = LocalCost(3)
    mass = torch.rand(3, 1, 6, 6, generator=generator, dtype=torch.float64)
    target = cost.identity(mass) + torch.randn(cost.plan_shape(mass), generator=generator, dtype=torch.float64)
    boxed, plain = project_box(target, mass, 2.0, cost, (0, 100)), project(target, mass, 2.0, cost, tol=1e-10)
    torch.testing.assert_close(boxed.plan, plain.plan, rtol=0, atol=1e-8)


def test_begins_where_cheap_rounds_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    mass, cost = torch.rand(4, 3, 16, 16, generator=generator), LocalCost(5)
    target = cost.identity(mass) + 0.1 * cost.gather(torch.randn(mass.shape, generator=generator))
    budget, solved = 0.05 * mass.double().sum((1, 2, 3)), []

    def newton(self: box_dual.Problem, point: box_dual.Point, *rest: Any) -> Any:
        solved.append(len(point.lam))
        return solve(self, point, *rest)

    solve = box_dual.Problem.newton
    monkeypatch.setattr(box_dual.Problem, "newton", newton)
    short, steps = project_box(target, mass, budget, cost), sum(solved)
    long = project_box(target, mass, budget, cost, lam=torch.zeros_like(budget))
    assert short.plan is not None
    assert long.plan is not None
    assert (short.plan - long.plan).abs().max() <= 1e-6
    assert steps < (sum(solved) - steps) / 2
