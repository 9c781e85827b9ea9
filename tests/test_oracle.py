"""The linear oracle: exact against HiGHS, entropic against its own optimality conditions and the exact limit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.cases import Problem, problems
from tests.truth import minimize_lp
from wasserball import DenseCost, LocalCost
from wasserball.operators import linear_minimizer

SWAP = DenseCost(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))


def test_exact_agrees_with_highs_within_few_evaluations() -> None:
    evaluations: list[int] = []

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(problems(largest=7))
    def check(problem: Problem) -> None:
        gradient, mass = problem.gradient.double(), problem.mass.double()
        solution = linear_minimizer(gradient, mass, problem.budget, problem.cost, return_plan=True)
        assert solution.plan is not None
        assert solution.converged.all()
        assert (solution.plan >= 0).all()
        assert (solution.spent <= problem.budget).all()
        torch.testing.assert_close(problem.cost.row_sums(solution.plan), mass, rtol=1e-14, atol=0)
        for sample in range(2):
            value = (gradient[sample] * solution.image[sample]).sum().item()
            size = (gradient[sample].abs() * mass[sample]).sum().item()
            truth = minimize_lp(
                gradient[sample].numpy(), mass[sample].numpy(), problem.budget[sample].item(), problem.cost
            )
            assert abs(value - truth) <= 1e-9 * size
            assert solution.gap[sample] <= 1e-13 * size
        evaluations.extend(solution.iterations.tolist())

    check()
    assert np.median(evaluations) <= 8
    assert max(evaluations) <= 60


@settings(max_examples=100, deadline=None)
@given(problems(largest=6))
def test_image_alone_is_that_of_the_plan(problem: Problem) -> None:
    for gamma in (0.0, 1e-2):
        image = linear_minimizer(problem.gradient, problem.mass, problem.budget, problem.cost, gamma=gamma)
        plan = linear_minimizer(
            problem.gradient, problem.mass, problem.budget, problem.cost, gamma=gamma, return_plan=True
        )
        assert plan.plan is not None
        assert image.plan is None
        assert image.image.dtype == plan.plan.dtype == problem.gradient.dtype
        torch.testing.assert_close(image.image, plan.image, rtol=1e-6, atol=2e-6 * problem.scale)
        assert (plan.spent <= problem.budget).all()
        assert (image.spent <= problem.budget).all()


def test_the_paper_s_failure_example_comes_out_right() -> None:
    """App. D: at λ* = 2 every split of the mass minimises the Lagrangian; only (.5, .5) is optimal."""
    mass, gradient = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, -1.0]])
    solution = linear_minimizer(gradient, mass, 0.5, SWAP, return_plan=True)
    assert solution.plan is not None
    torch.testing.assert_close(solution.plan[0], torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
    assert solution.lam.item() == pytest.approx(2.0)
    assert solution.gap.item() == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("nudge", [-1e-9, 1e-9])
def test_recovery_from_the_dual_alone_fails(nudge: float) -> None:
    """Prop. 4–5 and App. D: minimising the Lagrangian near λ* = 2 is either infeasible or useless."""
    priced = torch.tensor([1.0, -1.0]) + (2 + nudge) * torch.tensor([0.0, 1.0], dtype=torch.float64)
    moved = float(priced.argmin() == 1)  # all mass goes to the cheaper of "stay" and "move"
    value, spent = 1 - 2 * moved, moved
    assert spent > 0.5 or value > 0
    exact = linear_minimizer(torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, 0.0]]), 0.5, SWAP)
    assert (exact.image * torch.tensor([[1.0, -1.0]])).sum().item() == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("gamma", [1e-6, 1e-4, 1e-2, 1.0, 10.0])
@settings(max_examples=60, deadline=None)
@given(problem=problems(largest=6))
def test_entropic_meets_its_optimality_conditions(gamma: float, problem: Problem) -> None:
    """Prop. 7: rows are a softmin of H + λC, with λ spending the budget or 0."""
    mass, gradient = problem.mass.double(), problem.gradient.double()
    solution = linear_minimizer(gradient, mass, problem.budget, problem.cost, gamma=gamma, return_plan=True)
    assert solution.plan is not None
    assert solution.converged.all()
    assert torch.isfinite(solution.plan).all()
    assert (solution.spent <= problem.budget).all()
    assert (solution.iterations <= 60).all()
    assert (problem.cost.row_sums(solution.plan) - mass).abs().max() <= 1e-8 * problem.scale
    price, allowed = problem.cost.entries(mass)
    lam = solution.lam.view(-1, *(1,) * (price.ndim if isinstance(problem.cost, LocalCost) else mass.ndim))
    scores = torch.where(allowed, -(problem.cost.gather(gradient) + lam * price) / gamma, -math.inf)
    expected = scores.softmax(problem.cost.axis) * mass.unsqueeze(problem.cost.axis)
    spends = solution.spent >= (1 - 1e-6) * problem.budget
    slack_ok = (solution.lam == 0) | spends
    assert slack_ok.all()
    resolved = (solution.gap <= 1e-5 * solution.lam * problem.budget) & (problem.budget > 0)
    error = (solution.plan - expected).abs().flatten(1).amax(1)
    # Where γ is too small for float64 to resolve λ, the plan is a mixture of two softmins instead.
    assert (error[resolved & (gamma >= 1e-4)] <= 1e-5 * problem.scale).all()


@settings(max_examples=60, deadline=None)
@given(problems(largest=6))
def test_entropic_converges_to_exact(problem: Problem) -> None:
    mass, gradient = problem.mass.double(), problem.gradient.double()
    exact = linear_minimizer(gradient, mass, problem.budget, problem.cost)
    value = (gradient * exact.image).flatten(1).sum(1)
    total = mass.flatten(1).sum(1)
    for gamma in (1e-1, 1e-3, 1e-6):
        soft = linear_minimizer(gradient, mass, problem.budget, problem.cost, gamma=gamma)
        excess = (gradient * soft.image).flatten(1).sum(1) - value
        size = (gradient.abs() * mass).flatten(1).sum(1)
        destinations = problem.cost.plan_shape(mass)[problem.cost.axis]
        assert (excess >= -1e-9 * size).all()
        # The entropy of a row lies between −x log(destinations) and 0; the rest is the tolerance on the budget.
        assert (excess <= gamma * math.log(destinations) * total + 1e-5 * size).all()


@pytest.mark.parametrize("gamma", [0.0, 1e-3])
def test_bits_do_not_depend_on_batch_mates(gamma: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mass, gradient = torch.rand(2, 6, 3, 16, 16, generator=generator)
    budget = mass.double().flatten(1).sum(1) * 10.0 ** torch.linspace(-4, 1, 6)
    together = linear_minimizer(gradient, mass, budget, LocalCost(5), gamma=gamma)
    for sample in range(6):
        alone = linear_minimizer(gradient[[sample]], mass[[sample]], budget[[sample]], LocalCost(5), gamma=gamma)
        assert torch.equal(alone.image[0], together.image[sample])
        assert torch.equal(alone.lam[0], together.lam[sample])


def test_equal_gradients_move_nothing() -> None:
    mass = torch.rand(1, 1, 4, 4)
    solution = linear_minimizer(torch.full_like(mass, 0.3), mass, 1.0, LocalCost(3))
    torch.testing.assert_close(solution.image, mass)
    assert solution.spent.item() == 0
