"""The step of a box attack: with many rounds the projection itself, with few a plan that can be made feasible; and
the length of a step by what it would spend."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import Problem, problems
from wasserball import Cost, DenseCost, LocalCost, verify
from wasserball.kernels.reference import project_rows
from wasserball.operators import Solution, box_step, project_box
from wasserball.operators.leap import step_that_spends
from wasserball.operators.rounding import make_feasible, per_sample
from wasserball.threat import Metric

QUIET = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Step:
    """A step as an attack takes it: two grey images with black and white pixels, a normalised gradient."""

    cost: Cost
    mass: Tensor
    gradient: Tensor
    budget: Tensor
    size: float

    @property
    def plan(self) -> Tensor:
        return self.cost.identity(self.mass)

    def by_projection(self) -> Tensor:
        target = self.plan + self.size * self.cost.gather(self.gradient)
        plan = project_box(target, self.mass, self.budget, self.cost).plan
        assert plan is not None
        return plan


@st.composite
def steps(draw: st.DrawFn) -> Step:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    metric: Metric = draw(st.sampled_from(get_args(Metric)))
    cost = LocalCost(draw(st.sampled_from([3, 5])), metric, draw(st.sampled_from([1, 2])))
    shape = (2, draw(st.integers(1, 2)), draw(st.integers(1, 6)), draw(st.integers(1, 6)))
    mass = (1.6 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.3).clamp(0, 1)
    gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
    gradient /= per_sample(gradient.abs().flatten(1).amax(1), gradient)
    share = [10 ** draw(st.floats(-2.5, -0.3)) for _ in range(2)]
    budget = mass.flatten(1).sum(1) * torch.tensor(share, dtype=torch.float64)
    return Step(cost, mass, gradient, budget, 10 ** draw(st.floats(-2, -1)))


def plan_of(solution: Solution) -> Tensor:
    assert solution.plan is not None
    return solution.plan


def distances(solve: Callable[[Step], Solution]) -> list[float]:
    """How far from the projection the plans of many steps are, each sample on its own.

    Always the same steps. The updates of pixels know nothing of each other: now and then (4 of 1,400 random samples),
    and for steps that are ten times longer often, the duals go round in a circle, whose size nothing bounds.
    """
    found: list[float] = []

    @settings(max_examples=40, derandomize=True, **QUIET)  # type: ignore[arg-type]
    @given(steps())
    def measure(step: Step) -> None:
        solution = solve(step)
        found.extend((plan_of(solution) - step.by_projection()).abs().flatten(1).amax(1).tolist())

    measure()
    return found


def test_many_rounds_are_the_projection() -> None:
    found = distances(
        lambda step: box_step(step.plan, step.gradient, step.size, step.mass, step.budget, step.cost, rounds=400)
    )
    assert np.quantile(found, 0.9) <= 1e-6
    assert max(found) <= 0.02


def test_warm_duals_make_up_for_few_rounds() -> None:
    """Called again and again with the duals it returned, three rounds at a time."""

    def solve(step: Step) -> Solution:
        lam, mu = None, None
        for _ in range(100):
            solution = box_step(
                step.plan, step.gradient, step.size, step.mass, step.budget, step.cost, lam=lam, mu=mu, rounds=3
            )
            assert solution.iterations.tolist() == [4, 4]
            lam, mu = solution.lam, solution.mu
        return solution

    found = distances(solve)
    assert np.quantile(found, 0.9) <= 1e-6
    assert max(found) <= 0.02


@settings(max_examples=60, **QUIET)  # type: ignore[arg-type]
@given(problem=problems(largest=6), rounds=st.integers(1, 5))
def test_rows_are_kept_and_the_rest_can_be_repaired(problem: Problem, rounds: int) -> None:
    mass, cost, bounds = problem.mass, problem.cost, (0.0, problem.high)
    plan = cost.identity(mass)
    solution = box_step(plan, problem.gradient, problem.scale, mass, problem.budget, cost, bounds, rounds=rounds)
    moved = plan_of(solution)
    assert moved.dtype == solution.image.dtype == mass.dtype
    assert (moved >= 0).all()
    assert not (moved.masked_select(~cost.entries(mass)[1].expand_as(moved))).any()
    ulp = torch.finfo(mass.dtype).eps
    assert ((cost.row_sums(moved.double()) - mass).abs() <= 8 * ulp * mass).all()
    torch.testing.assert_close(solution.image, cost.scatter(moved), rtol=1e-5, atol=1e-6 * problem.scale)
    torch.testing.assert_close(solution.spent, cost.spent(moved, mass), rtol=1e-5, atol=1e-9 * problem.scale)
    assert torch.isinf(solution.gap).all()
    assert (solution.lam >= 0).all()
    assert solution.mu is not None
    assert (solution.mu >= 0).all()

    feasible, image, spent = make_feasible(moved, mass, problem.budget, cost, problem.high)
    assert (spent <= problem.budget).all()
    total = mass.double().flatten(1).sum(1)
    eps = torch.where(total > 0, problem.budget / total, 0.0)
    certificate = verify(mass, image, eps=eps, plan=feasible, cost=cost, bounds=bounds)
    assert certificate.valid.all(), str(certificate)

    feasible, image, _ = make_feasible(moved, mass, problem.budget, cost, None)
    certificate = verify(mass, image, eps=eps, plan=feasible, cost=cost, bounds=None)
    assert certificate.valid.all(), str(certificate)


def test_what_is_feasible_stays_as_it_is() -> None:
    mass = torch.full((1, 1, 3, 3), 0.5, dtype=torch.float64)
    cost = LocalCost(3)
    plan = plan_of(project_box(cost.identity(mass) + cost.gather(torch.randn_like(mass)), mass, 0.3, cost))
    again, image, spent = make_feasible(plan, mass, torch.tensor([0.5], dtype=torch.float64), cost, 1.0)
    torch.testing.assert_close(again, plan, rtol=0, atol=1e-12)
    torch.testing.assert_close(image, cost.scatter(plan), rtol=0, atol=1e-12)
    torch.testing.assert_close(spent, cost.spent(plan, mass), rtol=0, atol=1e-12)


def test_converged_says_whether_ball_and_box_are_met() -> None:
    generator = torch.Generator().manual_seed(0)
    cost = LocalCost(3)
    mass = torch.rand(20, 1, 6, 6, generator=generator, dtype=torch.float64)
    gradient = torch.randn(mass.shape, generator=generator, dtype=torch.float64)
    size = torch.linspace(0, 0.3, 20)
    solution = box_step(cost.identity(mass), gradient, size, mass, 0.5, cost, rounds=3)
    fits = (solution.image.flatten(1).amax(1) <= 1.001) & (solution.spent <= 0.5005)
    assert torch.equal(solution.converged, fits)
    assert fits.any()
    assert not fits.all()


def test_a_step_of_each_sample_is_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    for cost, shape in ((LocalCost(5), (6, 2, 9, 8)), (DenseCost(1 - torch.eye(7)), (6, 7))):
        mass = (2 * torch.rand(shape, generator=generator) - 0.5).clamp(0, 1)
        gradient = torch.randn(shape, generator=generator)
        budget = mass.double().flatten(1).sum(1) * 10.0 ** torch.linspace(-3, 0, 6)
        size, lam = torch.linspace(0, 1, 6), torch.linspace(0, 2, 6)
        mu = torch.rand(shape, generator=generator)
        plan = cost.identity(mass)
        together = box_step(plan, gradient, size, mass, budget, cost, lam=lam, mu=mu)
        wanted = step_that_spends(gradient, mass, budget, 0.75, cost)
        for sample in range(6):
            some = [sample]
            alone = box_step(
                *(plan[some], gradient[some], size[some], mass[some], budget[some], cost), lam=lam[some], mu=mu[some]
            )
            assert torch.equal(plan_of(alone)[0], plan_of(together)[sample])
            assert torch.equal(alone.lam[0], together.lam[sample])
            assert alone.mu is not None
            assert together.mu is not None
            assert torch.equal(alone.mu[0], together.mu[sample])
            leap = step_that_spends(gradient[some], mass[some], budget[some], 0.75, cost)
            assert torch.equal(leap[0], wanted[sample])


@pytest.mark.parametrize("look", [0.0, 1.0])
def test_black_and_white_images_stay_as_they_are(look: float) -> None:
    cost, mass = LocalCost(3), torch.full((1, 1, 5, 5), look)
    gradient = torch.randn(mass.shape, generator=torch.Generator().manual_seed(0))
    solution = box_step(cost.identity(mass), gradient, 0.5, mass, 2.0, cost, rounds=3)
    _, image, _ = make_feasible(plan_of(solution), mass, torch.tensor([2.0]), cost, 1.0)
    torch.testing.assert_close(image, mass, rtol=0, atol=1e-6)


def test_no_step_is_no_change() -> None:
    cost, mass = LocalCost(3), torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    solution = box_step(cost.identity(mass), torch.randn_like(mass), 0.0, mass, 1.0, cost)
    assert torch.equal(solution.image, mass)
    assert solution.converged.all()
    assert not solution.spent.any()


def spent_by(step: Tensor, gradient: Tensor, mass: Tensor, cost: Cost) -> Tensor:
    """What ``identity + step · gradient[destination]``, its rows projected, spends."""
    home = cost.identity(mass)
    target = home + per_sample(step, home) * cost.gather(gradient)
    return cost.spent(project_rows(target, mass, cost.entries(mass)[1], cost.axis).plan, mass)


@settings(max_examples=60, **QUIET)  # type: ignore[arg-type]
@given(problem=problems(largest=6, tiniest=-4), share=st.sampled_from([0.3, 0.75]))
def test_a_step_spends_what_it_should(problem: Problem, share: float) -> None:
    """To 20 %, from below: a few rounds are near enough for a step size."""
    mass, gradient = problem.mass.double(), problem.gradient.double()
    gradient /= per_sample(gradient.abs().flatten(1).amax(1), gradient)
    step = step_that_spends(gradient, mass, problem.budget, share, problem.cost)
    assert step.dtype == torch.float64
    most = spent_by(1e6 * mass.flatten(1).amax(1), gradient, mass, problem.cost)
    goal = torch.minimum(problem.budget, share * most)
    spent = spent_by(step, gradient, mass, problem.cost)
    assert (spent <= goal * (1 + 1e-6)).all()
    assert (spent >= 0.8 * goal).all()
    assert not step[goal == 0].any()


@pytest.mark.parametrize("what", ["gradient", "mass", "wanted"])
def test_no_step_where_nothing_can_move(what: str) -> None:
    generator = torch.Generator().manual_seed(0)
    mass, gradient = torch.rand(2, 3, 1, 4, 4, generator=generator)
    wanted = torch.full((3,), 0.5, dtype=torch.float64)
    {"gradient": gradient, "mass": mass, "wanted": wanted}[what][1] = 0
    step = step_that_spends(gradient, mass, wanted, 0.75, LocalCost(3))
    assert step[1] == 0
    assert (step[[0, 2]] > 0).all()


def test_a_window_of_one_pixel_moves_nothing() -> None:
    mass = torch.rand(2, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    cost = LocalCost(1)
    assert not step_that_spends(mass, mass, torch.ones(2, dtype=torch.float64), 0.75, cost).any()
    torch.testing.assert_close(box_step(cost.identity(mass), mass, 1.0, mass, 1.0, cost).image, mass)
