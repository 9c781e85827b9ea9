"""Projected Sinkhorn solves the entropic problem of paper App. A, says so when it did not, and stays in the ball."""

import clarabel
import numpy as np
import numpy.typing as npt
import ot
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import wrightomega
from torch import Tensor

from tests.truth import moves
from wasserball.operators.sinkhorn import _wright_omega, sinkhorn
from wasserball.operators.solution import Solution
from wasserball.threat import Cost, DenseCost, LocalCost

Array = npt.NDArray[np.float64]
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


def sample(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """A target and masses, a quarter of them 0."""
    generator = torch.Generator().manual_seed(seed)
    target, mass = torch.rand((2, *shape), generator=generator, dtype=torch.float64)
    return (1.5 * target - 0.2).to(dtype), (mass - 0.25).clamp(min=0).to(dtype)


def entropic_program(target: Array, mass: Array, budget: float, cost: Cost, gamma: float) -> tuple[Array, float]:
    """Image and objective of the entropic projection of a sample of total mass 1, by an interior point method.

    Every entry has its own exponential cone, ``(−t, Π, 1) ∈ K_exp`` being ``t ≥ Π log Π``; there are none at γ = 0.
    """
    move = moves(cost, mass.shape)
    count, held = len(move.source), mass.ravel() > 0
    columns = move.sums(move.destination, mass.size)
    rows, dead = move.sums(move.source, mass.size)[held], sp.identity(count, format="csr")[~held[move.source]]
    # Massless rows are fixed at 0 and stay out of the cones, whose boundary they would be.
    alive = np.flatnonzero(held[move.source]) if gamma else np.array([], dtype=np.int64)
    first, cone = np.arange(len(alive)), 3 * np.arange(len(alive))
    entry = sp.csr_matrix((-np.ones(len(alive)), (cone + 1, alive)), (3 * len(alive), count))
    bound = sp.csr_matrix((np.ones(len(alive)), (cone, first)), (3 * len(alive), len(alive)))
    linear = sp.vstack([rows, dead, sp.csr_matrix(move.price), -sp.identity(count)])
    none = sp.csr_matrix((linear.shape[0], len(alive)))
    limits = [mass.ravel()[held], np.zeros(dead.shape[0]), [budget], np.zeros(count), np.tile([0.0, 0, 1], len(alive))]
    cones = [
        clarabel.ZeroConeT(int(held.sum()) + dead.shape[0]),
        clarabel.NonnegativeConeT(1 + count),
        *(clarabel.ExponentialConeT() for _ in alive),
    ]
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-11
    solver = clarabel.DefaultSolver(
        sp.block_diag([columns.T @ columns, sp.csr_matrix((len(alive), len(alive)))], format="csc"),
        np.concatenate([-columns.T @ target.ravel(), np.full(len(alive), gamma)]),
        sp.csc_matrix(sp.bmat([[linear, none], [entry, bound]])),
        np.concatenate([np.asarray(limit, dtype=np.float64) for limit in limits]),
        cones,
        options,
    )
    found = solver.solve()
    image = columns @ np.array(found.x[:count])
    return image.reshape(mass.shape), float(found.obj_val) + float(np.square(target).sum()) / 2


def solve_unit(
    cost: Cost, shape: tuple[int, ...], eps: float, gamma: float, tol: float
) -> tuple[Solution, Array, Array]:
    """One sample of total mass 1 solved tightly, with its target and mass."""
    target, mass = sample(1, *shape)
    target, mass = target / mass.sum(), mass / mass.sum()
    solution = sinkhorn(target, mass, eps, cost, gamma=gamma, tol=tol, max_iterations=5000)
    return solution, target[0].numpy(), mass[0].numpy()


def check_feasible(solution: Solution, mass: Tensor, budget: Tensor, cost: Cost) -> None:
    plan = solution.plan
    assert plan is not None
    exact = 4 * torch.finfo(plan.dtype).eps
    assert (plan >= 0).all()
    torch.testing.assert_close(cost.row_sums(plan), mass, rtol=exact, atol=0)
    torch.testing.assert_close(cost.scatter(plan.double()).to(plan.dtype), solution.image, rtol=0, atol=0)
    assert (cost.spent(plan, mass) <= budget).all()


@pytest.mark.parametrize(("cost", "shape"), CASES)
@pytest.mark.parametrize("gamma", [0.1, 0.01])
@pytest.mark.parametrize("eps", [0.05, 2.0])
def test_agrees_with_a_conic_solver(cost: Cost, shape: tuple[int, ...], gamma: float, eps: float) -> None:
    solution, target, mass = solve_unit(cost, shape, eps, gamma, tol=1e-12)
    image, objective = entropic_program(target, mass, eps, cost, gamma)
    assert solution.converged.all()
    np.testing.assert_allclose(solution.image[0].numpy(), image, atol=2e-6)
    assert solution.plan is not None
    entropy = float(torch.xlogy(solution.plan, solution.plan).sum())
    reached = float(np.square(solution.image[0].numpy() - target).sum()) / 2 + gamma * entropy
    assert -1e-10 <= reached - objective <= solution.gap.item() + 1e-10
    assert solution.gap.item() <= 1e-6


@pytest.mark.parametrize(("cost", "shape"), CASES)
def test_approaches_the_exact_projection_of_the_image(cost: Cost, shape: tuple[int, ...]) -> None:
    error = []
    for gamma in (1e-1, 1e-2, 1e-3):
        solution, target, mass = solve_unit(cost, shape, 0.1, gamma, tol=1e-7)
        exact, _ = entropic_program(target, mass, 0.1, cost, gamma=0.0)
        error.append(float(np.abs(solution.image[0].numpy() - exact).max()))
    assert error[2] < error[1] < error[0]
    assert error[2] < 3e-3


def test_table_2_of_the_paper() -> None:
    """On a draw chosen to be as far apart as the paper's, 0.797: what the authors' code (float32) reaches on that draw.

    Distances are within the window, as the paper's. Its own figures are 0.267, 0.402, 0.437 and 0.356, 0.498, 0.555;
    six draws as far apart differ from them by up to 0.07. At the last γ the authors' code fails on this draw as well.
    """
    torch.manual_seed(153)
    a, b = (torch.rand(1, 1, 20, 20, dtype=torch.float64) for _ in range(2))
    a, b = a / a.sum(), b / b.sum()
    pixels = np.indices((20, 20)).reshape(2, -1).T
    offset = np.abs(pixels[:, None] - pixels)
    matrix = np.where(offset.max(-1) <= 2, np.linalg.norm(offset, axis=-1), 1e6)

    def distance(image: Tensor) -> float:
        return float(ot.emd2(a.flatten().numpy(), (image / image.sum()).flatten().numpy(), matrix, numItermax=10**7))

    assert distance(b) == pytest.approx(0.798, abs=0.001)
    for eps, authors in ((0.5, [0.263, 0.377, 0.414]), (1.0, [0.339, 0.450, 0.502])):
        reached = []
        for gamma in (1e-3, 2e-4, 1e-4, 5e-5):
            solution = sinkhorn(b, a, eps, LocalCost(5), gamma=gamma)
            assert solution.converged.all()
            assert 0 <= solution.gap.item() < 1e-6
            reached.append(distance(solution.image))
        assert reached[:3] == pytest.approx(authors, abs=0.004)
        assert reached == sorted(reached)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    window=st.sampled_from([1, 3, 5]),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    push=st.sampled_from([0.0, 1.0, 100.0]),
    eps=st.sampled_from([1e-9, 0.01, 0.5, 100.0]),
    gamma=st.sampled_from([1.0, 1e-3, 1e-7]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_answer_lies_in_the_ball_wherever_it_stops(
    seed: int,
    height: int,
    width: int,
    window: int,
    scale: float,
    push: float,
    eps: float,
    gamma: float,
    dtype: torch.dtype,
) -> None:
    cost = LocalCost(window)
    target, mass = sample(2, 1, height, width, seed=seed, dtype=dtype)
    target, mass = target * scale * push, mass * scale
    budget = eps * mass.double().flatten(1).sum(1)
    solution = sinkhorn(target, mass, budget, cost, gamma=gamma, max_iterations=20)
    check_feasible(solution, mass, budget, cost)
    assert solution.plan is not None
    assert solution.plan.dtype == solution.image.dtype == dtype
    assert torch.isfinite(solution.gap).all()
    # The entropic objective itself is rounded: of a plan in float32, and of targets far away.
    size = gamma * mass.double().flatten(1).sum(1) ** 2 + target.double().flatten(1).square().sum(1)
    assert (solution.gap >= -10 * torch.finfo(dtype).eps * (size + scale**2)).all()
    assert (solution.lam >= 0).all()
    assert (solution.iterations <= 20).all()


def test_the_dual_never_falls() -> None:
    """So the gap, whose primal side hardly moves by then, only closes; and the flag waits for the rule."""
    target, mass = sample(1, 1, 6, 6)
    steps = [sinkhorn(target, mass, 1.0, LocalCost(5), gamma=1e-3, max_iterations=n) for n in (1, 3, 10, 30, 1000)]
    gaps = [float(step.gap) for step in steps]
    assert gaps == sorted(gaps, reverse=True)
    assert [bool(step.converged) for step in steps] == [False, False, False, False, True]
    assert [int(step.iterations) for step in steps[:4]] == [1, 3, 10, 30]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("cost", "shape"), CASES)
def test_no_sample_depends_on_its_batch_mates(cost: Cost, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    target, mass = sample(7, *shape, dtype=dtype)
    mass[2] = 0
    target[4] *= 50
    budget = torch.tensor([0.1, 0.5, 0.1, 0.0, 1.0, 0.02, 30.0], dtype=torch.float64)
    together = sinkhorn(target, mass, budget, cost, gamma=0.05, max_iterations=200)
    assert len(set(together.iterations.tolist())) > 3
    for part in ([0], [3, 5], [6, 2, 4]):
        alone = sinkhorn(target[part], mass[part], budget[part], cost, gamma=0.05, max_iterations=200)
        for name, value in vars(alone).items():
            assert value is None or torch.equal(value, getattr(together, name)[part]), name


def test_units_scale() -> None:
    target, mass = sample(2, 1, 4, 4)
    one, thousand = (
        sinkhorn(unit * target, unit * mass, unit * 0.3, LocalCost(3), gamma=1e-3, tol=1e-12) for unit in (1, 1000)
    )
    torch.testing.assert_close(thousand.image, 1000 * one.image)
    torch.testing.assert_close(thousand.lam, 1000 * one.lam)
    torch.testing.assert_close(thousand.gap, 1e6 * one.gap, rtol=1e-3, atol=1e-6)


def test_black_images_and_empty_budgets_pass_through() -> None:
    target, mass = sample(3, 1, 4, 4)
    mass[0] = 0
    budget = torch.tensor([0.5, 0.0, 0.5])
    solution = sinkhorn(target, mass, budget, LocalCost(3), gamma=1e-3)
    assert torch.equal(solution.image[:2], mass[:2])
    assert not torch.equal(solution.image[2], mass[2])
    assert solution.converged.all()
    assert solution.gap[:2].tolist() == [0, 0]
    assert solution.lam[:2].tolist() == [0, INF]
    assert solution.iterations[:2].tolist() == [0, 0]


def test_an_overflow_is_not_passed_off_as_an_answer() -> None:
    target, mass = sample(2, 1, 4, 4)
    target[0] = 1e200
    solution = sinkhorn(target, mass, 0.5, LocalCost(3), gamma=1e-3)
    assert solution.converged.tolist() == [False, True]
    assert solution.gap[0] == INF
    check_feasible(solution, mass, torch.full((2,), 0.5), LocalCost(3))
    assert torch.equal(solution.image[1:], sinkhorn(target[1:], mass[1:], 0.5, LocalCost(3), gamma=1e-3).image)


def test_wright_omega() -> None:
    u = torch.cat([torch.linspace(-740, 740, 20_001), torch.linspace(-4, 8, 20_001)]).double()
    np.testing.assert_allclose(_wright_omega(u).numpy(), wrightomega(u.numpy()), rtol=1e-13, atol=0)
    assert _wright_omega(torch.tensor([-INF, -800.0])).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(gamma=0.0), "gamma must be a finite number > 0, got 0.0"),
        (dict(tol=-1.0), "tol must be"),
        (dict(max_iterations=0), "max_iterations must be an integer >= 1, got 0"),
        (dict(budget=-0.5), "budget must be finite and >= 0: sample 0 has -0.5"),
        (dict(target=torch.zeros(1, 9, 1, 4, 4)), "target must have shape"),
        (dict(target=torch.full((1, 1, 4, 4), torch.nan)), "target must be finite: sample 0 has nan"),
        (dict(mass=torch.full((1, 1, 4, 4), -1.0)), "mass must be in"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    good = dict(target=torch.ones(1, 1, 4, 4), mass=torch.ones(1, 1, 4, 4), budget=1.0, cost=LocalCost(3), gamma=1e-3)
    with pytest.raises(ValueError, match=message):
        sinkhorn(**(good | change))  # type: ignore[arg-type]
