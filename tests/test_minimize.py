"""Optimisation over the ball: convex problems with a known optimum, and the duality gap as its proof."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.truth import minimize_lp, moves, solve_conic
from wasserball import DenseCost, LocalCost, Minimum, TransportPlan, minimize, verify
from wasserball.solvers import Method, Objective

METHODS: list[Method] = ["pgd", "frank-wolfe"]


def squared_distance(goal: Tensor) -> Objective:
    return lambda image: (image - goal).square().flatten(1).sum(1) / 2


def line(points: int) -> DenseCost:
    """Points on a line, a histogram domain."""
    place = torch.arange(points, dtype=torch.float64)
    return DenseCost((place[:, None] - place[None, :]).abs())


def check_certificate(result: Minimum, mass: Tensor, eps: Tensor | float, cost: LocalCost | DenseCost) -> None:
    assert result.plan is not None
    plan = TransportPlan(result.plan, cost)
    certificate = verify(mass, result.image, eps=eps, plan=plan, cost=cost, bounds=None)
    assert certificate.valid.all(), str(certificate)


@pytest.mark.parametrize("cost", [LocalCost(3), LocalCost(5, "l1"), line(12)])
def test_pgd_projects_onto_the_ball(cost: LocalCost | DenseCost) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 12) if isinstance(cost, DenseCost) else (3, 2, 4, 5)
    mass, goal = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
    eps = torch.tensor([0.0, 0.05, 0.3], dtype=torch.float64)
    result = minimize(squared_distance(goal), mass, eps=eps, cost=cost, tol=1e-9, steps=2000)
    assert result.converged.all()
    check_certificate(result, mass, eps, cost)
    for sample in range(3):
        budget = eps[sample].item() * mass[sample].sum().item()
        if budget == 0:
            torch.testing.assert_close(result.image[sample], mass[sample])
            continue
        move = moves(cost, tuple(mass.shape[1:]))
        columns = move.sums(move.destination, mass[sample].numel())
        best, *_ = solve_conic(
            columns.T @ columns, -columns.T @ goal[sample].numpy().ravel(), move, mass[sample].numpy(), budget
        )
        torch.testing.assert_close(result.image[sample].flatten(), torch.from_numpy(columns @ best), rtol=0, atol=1e-5)
        assert result.gap[sample] <= 1e-8


@pytest.mark.parametrize("method", METHODS)
def test_linear_objective_is_the_linear_program(method: Method) -> None:
    generator = torch.Generator().manual_seed(0)
    mass, slope = torch.rand(2, 2, 1, 5, 6, generator=generator, dtype=torch.float64)
    result = minimize(
        lambda image: (image * slope).flatten(1).sum(1),
        mass,
        eps=0.2,
        cost=LocalCost(3),
        method=method,
        steps=2000,
    )
    assert result.converged.all()
    for sample in range(2):
        truth = minimize_lp(slope[sample].numpy(), mass[sample].numpy(), 0.2 * mass[sample].sum().item(), LocalCost(3))
        assert result.value[sample].item() - truth <= result.gap[sample].item() + 1e-9
        assert result.value[sample].item() >= truth - 1e-9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gap_bounds_the_distance_to_the_minimum(method: Method, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    mass, goal = torch.rand(2, 4, 1, 6, 6, generator=generator, dtype=torch.float64).to(dtype)
    best = minimize(squared_distance(goal.double()), mass.double(), eps=0.1, tol=1e-8, steps=1000)
    for steps in (1, 10, 100):
        early = minimize(squared_distance(goal), mass, eps=0.1, method=method, steps=steps)
        check_certificate(early, mass, 0.1, LocalCost())
        assert early.image.dtype == dtype
        assert (early.value - best.value <= early.gap + 1e-6).all()
        assert (early.gap >= 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_thousand_steps_in_float32_end_with_a_valid_witness(method: Method) -> None:
    mass = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    objective = squared_distance(mass.flip(-1))
    result = minimize(objective, mass, eps=0.1, method=method, steps=1000, tol=1e-12)
    check_certificate(result, mass, 0.1, LocalCost())
    if method == "frank-wolfe":
        image = minimize(objective, mass, eps=0.1, method=method, steps=1000, tol=1e-12, return_plan=False).image
        assert verify(mass, image, eps=0.1, bounds=None).valid.all()


@pytest.mark.parametrize("method", METHODS)
def test_nonconvex_objective_only_goes_down(method: Method) -> None:
    generator = torch.Generator().manual_seed(2)
    mass = torch.rand(3, 1, 6, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(36, 8, generator=generator, dtype=torch.float64)

    def objective(image: Tensor) -> Tensor:
        return torch.sin(3 * image.flatten(1) @ weight).sum(1)

    result = minimize(objective, mass, eps=0.1, method=method, steps=200)
    assert (result.value <= objective(mass)).all()
    check_certificate(result, mass, 0.1, LocalCost())


def test_frank_wolfe_without_a_plan_gives_the_same_image() -> None:
    generator = torch.Generator().manual_seed(3)
    mass, goal = torch.rand(2, 2, 1, 6, 6, generator=generator, dtype=torch.float64)
    with_plan, without = (
        minimize(squared_distance(goal), mass, eps=0.1, method="frank-wolfe", steps=50, return_plan=keep)
        for keep in (True, False)
    )
    assert without.plan is None
    torch.testing.assert_close(with_plan.image, without.image)
    torch.testing.assert_close(with_plan.spent, without.spent)


@pytest.mark.parametrize("method", METHODS)
def test_samples_do_not_depend_on_batch_mates(method: Method) -> None:
    generator = torch.Generator().manual_seed(4)
    mass, goal = torch.rand(2, 3, 1, 6, 6, generator=generator, dtype=torch.float64)
    eps = torch.tensor([0.01, 0.1, 10.0])  # the last is done after a few steps
    together = minimize(squared_distance(goal), mass, eps=eps, method=method, steps=60)
    for sample in range(3):
        alone = minimize(
            squared_distance(goal[[sample]]),
            mass[[sample]],
            eps=eps[[sample]],
            method=method,
            steps=60,
        )
        assert torch.equal(alone.image[0], together.image[sample])


def test_black_sample_stays_black() -> None:
    mass = torch.zeros(1, 1, 4, 4)
    for method in METHODS:
        result = minimize(squared_distance(torch.ones(1, 1, 4, 4)), mass, eps=0.5, method=method)
        assert torch.equal(result.image, mass)
        assert result.converged.all()


def test_mass_moves_to_the_right_of_a_line() -> None:
    """A histogram pushed to the right with budget for half a step of all its mass: a closed form."""
    mass = torch.full((1, 8), 0.125, dtype=torch.float64)
    place = torch.arange(8, dtype=torch.float64)
    result = minimize(lambda image: -(image @ place), mass, eps=0.5, cost=line(8))
    assert result.value.item() == pytest.approx(-(3.5 + 0.5), abs=1e-6)
    assert result.spent.item() == pytest.approx(0.5, abs=1e-6)
    assert np.isclose(result.image.sum().item(), 1.0)
