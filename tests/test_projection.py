"""The projection against an independent conic solver, and its promises on budget, effort and independence."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.cases import Problem, problems
from tests.truth import project_qp
from wasserball import DenseCost, LocalCost
from wasserball.operators import Solution, linear_minimizer, project, project_box, project_step
from wasserball.operators.solution import CHUNK


def check_promises(problem: Problem, solution: Solution, slack: float) -> None:
    assert solution.plan is not None
    assert solution.plan.dtype == problem.target.dtype
    assert solution.converged.all()
    assert (solution.plan >= 0).all()
    assert (solution.spent <= problem.budget).all()
    assert (solution.gap >= 0).all()
    binding = solution.lam > 0
    assert (solution.spent[binding] >= (1 - slack) * problem.budget[binding]).all()
    rows = problem.cost.row_sums(solution.plan.double())
    assert (rows - problem.mass).abs().max() <= 2e-7 * problem.scale
    _, allowed = problem.cost.entries(problem.mass)
    assert (solution.plan.masked_select(~allowed) == 0).all()


def test_agrees_with_a_conic_solver_within_few_evaluations() -> None:
    evaluations: list[int] = []

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(problems(tiniest=-4))  # what moves has to be well above the 1e-6 to which the solver is right
    def check(problem: Problem) -> None:
        solution = project(problem.target, problem.mass, problem.budget, problem.cost, tol=1e-7)
        check_promises(problem, solution, 1e-6)
        assert solution.plan is not None
        # The solver is right to 1e-6; a fast backend computes in float32 what is given in it.
        largest = problem.target.abs().max().item()
        slack = 1e-6 * problem.scale + (4 * 2**-23 * largest if problem.target.dtype == torch.float32 else 0.0)
        for sample in range(2):
            truth = project_qp(
                problem.target[sample].double().numpy(),
                problem.mass[sample].double().numpy(),
                problem.budget[sample].item(),
                problem.cost,
            )
            assert np.abs(solution.plan[sample].double().numpy() - truth).max() <= slack
        evaluations.extend(solution.iterations.tolist())

    check()
    assert max(evaluations) <= 60
    assert np.median(evaluations) <= 9


@settings(max_examples=200, deadline=None)
@given(problems(tiniest=-9))
def test_meets_the_optimality_conditions(problem: Problem) -> None:
    """Each row is a simplex projection of target − λC: positive entries lie above one threshold, the others below."""
    target, mass = problem.target.double(), problem.mass.double()
    solution = project(target, mass, problem.budget, problem.cost, tol=1e-9)
    assert solution.plan is not None
    assert solution.converged.all()
    axis = problem.cost.axis
    price, allowed = problem.cost.entries(mass)
    lam = solution.lam.view(-1, *(1,) * (target.ndim - 1))
    scores = torch.where(allowed, target - lam * price, -torch.inf)
    above = (scores - solution.plan).masked_fill(solution.plan == 0, torch.inf).amin(axis)
    below = (scores - solution.plan).masked_fill(solution.plan == 0, -torch.inf).amax(axis)
    outside = scores.masked_fill(solution.plan > 0, -torch.inf).amax(axis)
    # Where both ends of the bracket were mixed, λ itself is known to its rounding only.
    noise = 1e-9 * problem.scale + 1e-12 * (lam * price).abs().max()
    held = mass > 0
    assert ((below - above)[held] <= noise).all()
    assert ((outside - above)[held] <= noise).all()
    assert (solution.gap <= 1e-6 * solution.lam * problem.budget + 1e-12 * problem.scale**2).all()


@pytest.mark.parametrize("eps", [1e-4, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("shape", [(8, 1, 28, 28), (4, 3, 32, 32)])
def test_effort_of_attack_like_steps(shape: tuple[int, ...], eps: float) -> None:
    generator = torch.Generator().manual_seed(0)
    cost = LocalCost(5)
    mass = (1.5 * torch.rand(shape, generator=generator) - 0.5).clamp(min=0)
    budget = eps * mass.double().flatten(1).sum(1)
    plan, lam = cost.identity(mass), None
    steady = torch.randn(shape, generator=generator)
    cold: list[int] = []
    warm: list[int] = []
    for _ in range(5):
        gradient = steady + 0.3 * torch.randn(shape, generator=generator)  # the gradient of an attack turns slowly
        gradient /= gradient.abs().amax((1, 2, 3), keepdim=True)
        solution = project_step(plan, gradient, 0.1, mass, budget, cost, lam=lam)
        assert solution.plan is not None
        (cold if lam is None else warm).extend(solution.iterations.tolist())
        plan, lam = solution.plan, solution.lam
    assert np.median(cold) <= 9
    assert np.median(warm) <= 4
    assert max(cold + warm) <= 60


@settings(max_examples=100, deadline=None)
@given(problems(largest=5))
def test_a_warm_start_changes_the_effort_not_the_answer(problem: Problem) -> None:
    cold = project(problem.target, problem.mass, problem.budget, problem.cost)
    assert cold.plan is not None
    for factor in (0.5, 1.0, 2.0, 1e6):
        warm = project(problem.target, problem.mass, problem.budget, problem.cost, lam=cold.lam * factor)
        assert warm.plan is not None
        check_promises(problem, warm, 1e-6)
        assert (warm.plan - cold.plan).abs().max() <= 1e-6 * problem.scale


@settings(max_examples=50, deadline=None)
@given(problems(largest=6))
def test_bits_do_not_depend_on_batch_mates(problem: Problem) -> None:
    order = torch.tensor([0, 1, 1, 0, 0, 1])
    together = project(problem.target[order], problem.mass[order], problem.budget[order], problem.cost)
    assert together.plan is not None
    for sample in range(2):
        alone = project(problem.target[[sample]], problem.mass[[sample]], problem.budget[[sample]], problem.cost)
        assert alone.plan is not None
        assert torch.equal(alone.plan[0], together.plan[sample])
        assert torch.equal(alone.plan[0], together.plan[3 - sample])
        assert torch.equal(alone.lam[0], together.lam[sample])


def test_bits_do_not_depend_on_batch_mates_at_image_size() -> None:
    generator = torch.Generator().manual_seed(0)
    cost = LocalCost(5)
    mass = torch.rand(7, 3, 32, 32, generator=generator)
    target = cost.identity(mass) + 0.1 * torch.randn(cost.plan_shape(mass), generator=generator)
    budget = mass.double().flatten(1).sum(1) * 10.0 ** torch.linspace(-4, 0, 7)
    together = project(target, mass, budget, cost)
    assert together.plan is not None
    for sample in range(7):
        alone = project(target[[sample]], mass[[sample]], budget[[sample]], cost)
        assert alone.plan is not None
        assert torch.equal(alone.plan[0], together.plan[sample])


def test_chunks_of_a_batch_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    cost = LocalCost(3)
    mass, gradient = torch.rand(2, 5, 2, 6, 7, generator=generator)
    target, budget = cost.identity(mass) + 0.3 * cost.gather(gradient), torch.linspace(0, 5, 5, dtype=torch.float64)

    def solve() -> list[Solution]:
        return [
            project(target, mass, budget, cost, lam=torch.ones(5), backend="torch"),
            project_box(target, mass, budget, cost),
            linear_minimizer(gradient, mass, budget, cost, backend="torch"),
            linear_minimizer(gradient, mass, budget, cost, gamma=1e-2, return_plan=True, backend="torch"),
        ]

    whole = solve()
    monkeypatch.setitem(CHUNK, "cpu", 2 * 2 * 6 * 7 * 9)  # two samples at a time
    for together, apart in zip(whole, solve(), strict=True):
        for field in fields(Solution):
            one, other = getattr(together, field.name), getattr(apart, field.name)
            assert one is other is None or torch.equal(one, other), field.name


def test_projection_of_a_plan_of_the_ball_is_that_plan() -> None:
    cost = LocalCost(3)
    mass = torch.rand(2, 1, 5, 6, dtype=torch.float64)
    inside = project(torch.rand(cost.plan_shape(mass), dtype=torch.float64), mass, 1.0, cost, tol=1e-12).plan
    assert inside is not None
    again = project(inside, mass, 2.0, cost)
    assert (again.lam == 0).all()
    assert again.iterations.tolist() == [1, 1]
    torch.testing.assert_close(again.plan, inside, atol=1e-14, rtol=0)


def test_a_budget_below_the_resolution_of_lambda_is_still_spent() -> None:
    # Far from the plans, no float64 λ spends this budget to a millionth: both sides of the jump are mixed.
    cost = DenseCost(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    mass = torch.ones(1, 2, dtype=torch.float64)
    target = torch.tensor([[[0.0, 1e9], [0.0, 0.0]]], dtype=torch.float64)
    solution = project(target, mass, 1e-9, cost)
    assert solution.converged.all()
    assert 1e-9 * (1 - 1e-6) <= solution.spent.item() <= 1e-9
    # With λ near 1e9 a gap is worth what float64 resolves of λ times the budget.
    assert 0 <= solution.gap.item() <= 1e-6 * solution.lam.item() * 1e-9


def test_step_is_the_projection_of_its_target() -> None:
    cost = LocalCost(3)
    mass = torch.rand(2, 2, 4, 5)
    plan, gradient = cost.identity(mass), torch.randn(2, 2, 4, 5)
    step = torch.tensor([0.1, 0.3])
    solution = project_step(plan, gradient, step, mass, 0.5, cost)
    expected = project(plan + step.view(-1, 1, 1, 1, 1) * cost.gather(gradient), mass, 0.5, cost)
    torch.testing.assert_close(solution.plan, expected.plan)
