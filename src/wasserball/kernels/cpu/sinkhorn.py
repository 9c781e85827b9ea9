"""The dual of projected Sinkhorn for a range of samples whose masses sum to 1, in float64."""

import numpy as np

from wasserball.kernels.cpu.entropic import exponentials, soft_moves
from wasserball.kernels.cpu.layout import LANES, Array, Grid, canvas_size, compiled, fold, inner, list_rows, paint


@inner
def wright_omega(u: float) -> float:
    """``y > 0`` such that ``y + log y = u``, by Newton's method for ``log y`` from above."""
    u = max(u, -800.0)
    v = min(np.log(u) if u > 1 else u, (u - 1) / 2)
    for _ in range(5):
        y = np.exp(v)
        v -= (y + v - u) / (y + 1)
    return np.exp(v)  # type: ignore[no-any-return]


@inner
def weigh(values: Array, psi: float, grid: Grid, lines: Array) -> None:
    """Of a tile of rows, from the soft minima of their shells: ``log Σ exp(−value − ψ·price)``, and under those weights
    the mean and the mean square of the price. The lines are the three answers, and room for three more."""
    top, mean, square = lines[:LANES], lines[LANES : 2 * LANES], lines[2 * LANES : 3 * LANES]
    total, weight, power = lines[3 * LANES : 4 * LANES], lines[4 * LANES : 5 * LANES], lines[5 * LANES : 6 * LANES]
    bits = power.view(np.int64)
    for lane in range(LANES):
        top[lane], mean[lane], square[lane], total[lane] = -np.inf, 0.0, 0.0, 0.0
    for shell in range(len(grid.shell_prices)):
        value, charge = values[shell * LANES :], psi * grid.shell_prices[shell]
        for lane in range(LANES):
            top[lane] = max(top[lane], -value[lane] - charge)
    for shell in range(len(grid.shell_prices)):
        value, price = values[shell * LANES :], grid.shell_prices[shell]
        charge = psi * price
        for lane in range(LANES):
            outside = value[lane] == np.inf
            weight[lane] = -np.inf if outside else (-value[lane] - charge) - top[lane]
        exponentials(weight, power, bits)
        for lane in range(LANES):
            total[lane] += weight[lane]
            mean[lane] += weight[lane] * price
            square[lane] += weight[lane] * (price * price)
    for lane in range(LANES):
        mean[lane] /= total[lane]
        square[lane] /= total[lane]
        top[lane] += np.log(total[lane])


@compiled
def ascend(
    first: int,
    last: int,
    target: Array,
    mass: Array,
    budget: Array,
    gamma: float,
    tol: float,
    max_iterations: int,
    grid: Grid,
    beta: Array,
    psi: Array,
    objective: Array,
    iterations: Array,
    converged: Array,
) -> None:
    """:func:`wasserball.operators.sinkhorn._ascend` for some samples."""
    pixels, shells = mass.shape[1], len(grid.shell_prices)
    most = -(-pixels // LANES) * LANES + 1
    pixel, place = np.empty(most, np.uint32), np.empty(most, np.uint32)
    every, everywhere = np.empty(most, np.uint32), np.empty(most, np.uint32)
    values, lines, alpha = np.empty(most * shells), np.empty(6 * LANES), np.empty(pixels)
    canvas, sums = np.empty(canvas_size(grid, pixels)), np.empty(2 * LANES)
    list_rows(np.ones(pixels), grid, every, everywhere)
    farthest = max(grid.shell_prices[shells - 1], 1e-300)
    for b in range(first, last):
        rows = list_rows(mass[b], grid, pixel, place)
        linear = 0.0
        psi[b], iterations[b], converged[b] = 1.0, 0, False
        for i in range(pixels):
            beta[b, i], alpha[i] = 0.0, -np.inf
        while True:
            # The best α makes the rows exact; then the plan sums to 1, and the dual objective costs nothing more.
            if iterations[b] == 0:
                paint(canvas, beta[b], grid, -1.0, np.inf)
                soft_moves(values, place, rows, canvas, 1.0, grid)
            sums[:] = 0.0
            for tile in range(0, rows, LANES):
                weigh(values[tile // LANES * shells * LANES :], psi[b], grid, lines)
                for lane in range(min(LANES, rows - tile)):
                    i = pixel[tile + lane]
                    alpha[i] = np.log(mass[b, i]) + 1 - lines[lane]
                    sums[lane] += alpha[i] * mass[b, i]
            before = objective[b]
            objective[b] = fold(sums[:LANES]) + linear - psi[b] * budget[b] - 1
            if iterations[b] > 0:
                change, allowed = abs(objective[b] - before), tol + tol * abs(before)
                converged[b] = change <= allowed
                if not change > allowed:  # which is so too where it is not a number
                    break
            if iterations[b] == max_iterations or not budget[b] > 0:
                break
            iterations[b] += 1
            # The best β has target − γβ = Πᵀ1.
            paint(canvas, alpha, grid, -1.0, np.inf)
            soft_moves(values, everywhere, pixels, canvas, 1.0, grid)
            sums[:] = 0.0
            for tile in range(0, pixels, LANES):
                weigh(values[tile // LANES * shells * LANES :], psi[b], grid, lines)
                for lane in range(min(LANES, pixels - tile)):
                    i, aim = tile + lane, target[b, tile + lane] / gamma
                    beta[b, i] = aim - wright_omega(aim + (lines[lane] - 1) - np.log(gamma))
                    sums[lane] += beta[b, i] * target[b, i] - gamma / 2 * (beta[b, i] * beta[b, i])
            linear = fold(sums[:LANES])
            # A Newton step for ψ on what the plan spends that stays on its side of the solution.
            paint(canvas, beta[b], grid, -1.0, np.inf)
            soft_moves(values, place, rows, canvas, 1.0, grid)
            sums[:] = 0.0
            for tile in range(0, rows, LANES):
                weigh(values[tile // LANES * shells * LANES :], psi[b], grid, lines)
                for lane in range(min(LANES, rows - tile)):
                    sent = np.exp(alpha[pixel[tile + lane]] + lines[lane] - 1)
                    sums[lane] += sent * lines[LANES + lane]
                    sums[LANES + lane] += sent * lines[2 * LANES + lane]
            spent, slope = fold(sums[:LANES]), fold(sums[LANES:])
            if spent > budget[b]:
                psi[b] += (np.log(spent) - np.log(budget[b])) * spent / slope
            else:
                psi[b] -= np.log1p(farthest * (budget[b] - spent) / slope) / farthest
            psi[b] = 0.0 if psi[b] < 0 else psi[b]
