"""Independent truth for the operators: a conic solver for the projections, HiGHS for the linear programs.

Everything works on explicit lists of allowed moves (source, destination, price) built here from the definition of the
cost, with none of the library's own layout code.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import clarabel
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import linprog

from wasserball.threat import Cost, DenseCost, LocalCost

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moves:
    """All allowed moves of one sample: flat indices into its mass, the price, and where the plan stores the move."""

    source: npt.NDArray[np.int64]
    destination: npt.NDArray[np.int64]
    price: Array
    entry: tuple[npt.NDArray[np.int64], ...]

    def sums(self, ends: npt.NDArray[np.int64], points: int) -> sp.csr_matrix:
        """The matrix that adds up a vector of moves by their source or by their destination."""
        count = len(ends)
        return sp.csr_matrix((np.ones(count), (ends, np.arange(count))), (points, count))


def moves(cost: Cost, shape: tuple[int, ...]) -> Moves:
    """Every move that ``cost`` allows on a sample of mass of this shape (without the batch)."""
    found = list(_local(cost, shape) if isinstance(cost, LocalCost) else _dense(cost, shape))
    source, destination, price, entries = zip(*found, strict=True)
    entry = tuple(np.array(index) for index in zip(*entries, strict=True))
    return Moves(np.array(source), np.array(destination), np.array(price), entry)


def _local(cost: LocalCost, shape: tuple[int, ...]) -> Iterator[tuple[int, int, float, tuple[int, ...]]]:
    channels, height, width = shape
    reach = cost.window // 2
    for c, h, w in np.ndindex(channels, height, width):
        for down in range(-reach, reach + 1):
            for right in range(-reach, reach + 1):
                if 0 <= h + down < height and 0 <= w + right < width:
                    norm = {"euclidean": 2, "l1": 1, "linf": np.inf}[cost.metric]
                    price = float(np.linalg.norm([down, right], norm)) ** cost.power
                    k = (down + reach) * cost.window + right + reach
                    here = (c * height + h) * width + w
                    yield here, here + down * width + right, price, (k, c, h, w)


def _dense(cost: Cost, shape: tuple[int, ...]) -> Iterator[tuple[int, int, float, tuple[int, ...]]]:
    assert isinstance(cost, DenseCost)
    *channels, n = shape
    for *c, i, j in np.ndindex(*channels, n, n):
        price = float(cost.matrix[i, j])
        if np.isfinite(price):
            offset = c[0] * n if c else 0
            yield offset + i, offset + j, price, (*c, i, j)


def project_qp(target: Array, mass: Array, budget: float, cost: Cost, high: float | None = None) -> Array:
    """``argmin ½‖Π − target‖²`` over ball (and box), for one sample, to the last digits.

    An interior point method finds the objective to 1e-12 and so the plan to 1e-6 only, but it also knows which
    constraints are tight: given those, the plan is the solution of a linear system.
    """
    move = moves(cost, mass.shape)
    plan = np.zeros_like(target)
    wanted = target[move.entry]
    rough, tight, rows, limits = solve_conic(sp.identity(len(move.source)), -wanted, move, mass, budget, high)
    found = rough
    if len(rows):
        support = ~tight
        normal = rows[:, support]
        duals = np.linalg.lstsq(normal @ normal.T, limits - normal @ wanted[support], rcond=1e-12)[0]
        sharp = np.zeros_like(rough)
        sharp[support] = wanted[support] + normal.T @ duals
        if sharp.min() >= 0 and np.abs(sharp - rough).max() <= 1e-4 * mass.max():
            found = sharp
    plan[move.entry] = found
    return plan


def solve_conic(
    quadratic: sp.spmatrix, linear: Array, move: Moves, mass: Array, budget: float, high: float | None = None
) -> tuple[Array, npt.NDArray[np.bool_], Array, Array]:
    """``argmin ½vᵀQv + cᵀv`` over the moves v of ball (and box) by an interior point method, for one sample.

    Also which moves are zero, and the other tight constraints as a linear system ``rows @ v = limits``.
    """
    # Rows without mass hold nothing; leaving them out keeps the interior of the problem from vanishing.
    held = mass.ravel() > 0
    alive = held[move.source]
    found = np.zeros(len(move.source))
    if budget == 0 or not alive.any():
        stay = (move.source == move.destination) & alive
        found[stay] = mass.ravel()[move.source[stay]]
        return found, ~stay, np.zeros((0, len(found))), np.zeros(0)
    scale, count = mass.max(), int(alive.sum())
    # In units of what all the mass could spend at most; more than that is no limit.
    dearest = max(move.price.max(), 1e-300)
    allowance = min(budget / (dearest * scale), 2 * mass.sum() / scale)
    equalities, totals = move.sums(move.source, mass.size)[held], mass.ravel()[held] / scale
    inequalities, bounds = [sp.csr_matrix(move.price / dearest)], [np.array([allowance])]
    if high is not None:
        columns = move.sums(move.destination, mass.size)
        if mass.sum() >= high * mass.size * (1 - 1e-9):
            # In a box that is full all pixels stay so. As inequalities they would leave no interior, and the method
            # would stop far from the end. The last of these equations follows from the others.
            equalities = sp.vstack([equalities, columns[:-1]])
            totals = np.concatenate([totals, np.full(mass.size - 1, high / scale)])
        else:
            inequalities.append(columns)
            bounds.append(np.full(mass.size, high / scale))
    fixed = len(totals)
    system = sp.csr_matrix(sp.vstack([equalities, *inequalities]))
    limits = np.concatenate([totals, *bounds])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    settings.reduced_tol_gap_abs = settings.reduced_tol_gap_rel = settings.reduced_tol_feas = 1e-10
    solution = clarabel.DefaultSolver(
        sp.triu(sp.csc_matrix(quadratic)[alive][:, alive], format="csc"),
        linear[alive] / scale,
        sp.csc_matrix(sp.vstack([system[:, alive], -sp.identity(count)])),
        np.concatenate([limits, np.zeros(count)]),
        [clarabel.ZeroConeT(fixed), clarabel.NonnegativeConeT(len(limits) - fixed + count)],
        settings,
    ).solve()
    found[alive] = np.array(solution.x) * scale
    tight = np.array(solution.z) > np.array(solution.s)
    zero = np.ones_like(alive)
    zero[alive] = tight[len(limits) :]
    chosen = np.concatenate([np.ones(fixed, dtype=bool), tight[fixed : len(limits)]])
    return found, zero, system[chosen].toarray(), limits[chosen] * scale


def minimize_lp(gradient: Array, mass: Array, budget: float, cost: Cost, high: float | None = None) -> float:
    """``min <Π, gradient[destination]>`` over the ball (and box) by HiGHS, for one sample."""
    if not mass.any():
        return 0.0
    move = moves(cost, mass.shape)
    scale = max(float(np.abs(gradient).max()), 1e-300)
    size = mass.max()
    limits, bounds = [sp.csr_matrix(move.price)], [np.array([budget / size])]
    if high is not None:
        limits.append(move.sums(move.destination, mass.size))
        bounds.append(np.full(mass.size, high / size))
    value = _solve_lp(gradient.ravel()[move.destination] / scale, limits, bounds, move, mass / size)
    assert value is not None
    return float(value * scale * size)


def least_budget_lp(gradient: Array, mass: Array, value: float, cost: Cost, high: float) -> float | None:
    """``min <C, Π>  s.t.  <Π, gradient[destination]> ≤ value`` in the box by HiGHS, for one sample; None if none is."""
    move = moves(cost, mass.shape)
    limits = [sp.csr_matrix(gradient.ravel()[move.destination]), move.sums(move.destination, mass.size)]
    return _solve_lp(move.price, limits, [np.array([value]), np.full(mass.size, high)], move, mass)


def _solve_lp(
    objective: Array, limits: list[sp.csr_matrix], bounds: list[Array], move: Moves, mass: Array
) -> float | None:
    result = linprog(
        objective,
        A_ub=sp.vstack(limits),
        b_ub=np.concatenate(bounds),
        A_eq=move.sums(move.source, mass.size),
        b_eq=mass.ravel(),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert result.status in (0, 2), result.message
    return float(result.fun) if result.status == 0 else None
