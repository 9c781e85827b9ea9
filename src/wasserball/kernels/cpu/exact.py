"""The exact linear oracle for a range of samples: each pixel goes to the best of a few candidates."""

import numpy as np

from wasserball.kernels.cpu.layout import (
    LANES,
    Array,
    Grid,
    canvas_size,
    clear,
    compiled,
    fold,
    inner,
    list_rows,
    paint,
    unpaint,
)
from wasserball.kernels.cpu.search import MAX_EVALUATIONS


@inner
def best_moves(values: Array, mass: Array, gradient: Array, grid: Grid, choices: Array) -> None:
    """The smallest gradient of each shell, ``(tile, shell, lane)``, and the first of the moves that lead to it.

    A line of the image at a time, black pixels and all, since that needs no look where each one lies; those with mass
    are then packed. Choices are numbers as wide as what they are chosen by: vector instructions do not mix widths well.
    """
    shells, width, line = len(grid.shell_prices), grid.width, grid.width + 2 * grid.reach
    value, choice = np.empty(width, gradient.dtype), np.empty(width, gradient.dtype)
    rows, begin = 0, 0
    for channel in range(len(mass) // (grid.height * width)):
        for row in range(grid.height):
            corner = gradient[(channel * (grid.height + 2 * grid.reach) + row) * line :]
            held = mass[begin:][:width]
            begin += width
            for shell in range(shells):
                there = corner[grid.shifts[grid.shells[shell]] :]
                for column in range(width):
                    value[column] = there[column]
                    choice[column] = grid.moves[grid.shells[shell]]
                for move in range(grid.shells[shell] + 1, grid.shells[shell + 1]):
                    there, name = corner[grid.shifts[move] :], gradient.dtype.type(grid.moves[move])
                    for column in range(width):
                        better = there[column] < value[column]
                        choice[column] = name if better else choice[column]
                        value[column] = there[column] if better else value[column]
                packed = rows
                for column in range(width):
                    at = (packed // LANES * shells + shell) * LANES + packed % LANES
                    values[at], choices[at] = value[column], choice[column]
                    packed += held[column] > 0
            rows = packed
    for row in range(rows, -(-rows // LANES) * LANES):
        for shell in range(shells):
            at = (row // LANES * shells + shell) * LANES + row % LANES
            values[at], choices[at] = values[shell * LANES], choices[shell * LANES]


@inner
def still_from(values: Array, mass: Array, rows: int, grid: Grid, extra: float) -> float:
    """The smallest λ with ``value + λ·price ≥ home + extra`` wherever mass could move (Prop. 5 and 8, sharper)."""
    shells = len(grid.shell_prices)
    lam = np.zeros(LANES)
    for first in range(0, rows, LANES):
        tile = values[first // LANES * shells * LANES :]
        for shell in range(1, shells):
            price = grid.shell_prices[shell]
            for lane in range(LANES):
                # Nothing goes where there is no pixel: (home − inf) / price < 0.
                enough = (np.float64(tile[lane]) + extra - np.float64(tile[shell * LANES + lane])) / price
                lam[lane] = max(lam[lane], enough if mass[first + lane] > 0 else 0.0)
    upper = 0.0
    for lane in range(LANES):
        upper = max(upper, lam[lane])
    return upper


@inner
def vertex(
    values: Array, mass: Array, rows: int, lam: float, grid: Grid, best: Array, choice: Array
) -> tuple[float, float]:
    """The cheapest of the plans that minimise ``<Π, H + λC>``: the shell of each row, and their value and spending."""
    shells = len(grid.shell_prices)
    total = np.zeros(2 * LANES)
    for first in range(0, rows, LANES):
        tile, shell_of, held = values[first // LANES * shells * LANES :], choice[first:], mass[first:]
        for lane in range(LANES):
            best[lane] = best[LANES + lane] = tile[lane]
            best[2 * LANES + lane] = 0.0
            shell_of[lane] = 0.0
        for shell in range(1, shells):
            price, value = grid.shell_prices[shell], tile[shell * LANES :]
            for lane in range(LANES):
                priced = np.float64(value[lane]) + lam * price
                better = priced < best[lane]
                best[lane] = priced if better else best[lane]
                best[LANES + lane] = np.float64(value[lane]) if better else best[LANES + lane]
                best[2 * LANES + lane] = price if better else best[2 * LANES + lane]
                shell_of[lane] = float(shell) if better else shell_of[lane]
        for lane in range(LANES):
            total[lane] += held[lane] * best[LANES + lane]
            total[LANES + lane] += held[lane] * best[2 * LANES + lane]
    return fold(total[:LANES]), fold(total[LANES:])


@compiled
def minimize(
    first: int,
    last: int,
    gradient: Array,
    mass: Array,
    budget: Array,
    accuracy: float,
    grid: Grid,
    image: Array,
    lam: Array,
    spent: Array,
    iterations: Array,
    converged: Array,
    gap: Array,
    low_end: Array,
    high_end: Array,
    share: Array,
) -> None:
    """:func:`wasserball.operators.oracle._exact` for some samples; the ends are the moves of both vertices."""
    pixels, shells = mass.shape[1], len(grid.shell_prices)
    most = -(-pixels // LANES) * LANES + 1
    pixel, place = np.empty(most, np.uint32), np.empty(most, np.uint32)
    values, moves = np.empty(most * shells, mass.dtype), np.empty(most * shells, mass.dtype)
    held, best, choice = np.empty(most), np.empty(3 * LANES), np.empty(most)
    canvas, arrived = np.empty(canvas_size(grid, pixels), mass.dtype), np.empty(canvas_size(grid, pixels))
    for b in range(first, last):
        rows = list_rows(mass[b], grid, pixel, place)
        paint(canvas, gradient[b], grid, 1.0, np.inf)
        best_moves(values, mass[b], canvas, grid, moves)
        home_value, noise = 0.0, 0.0
        for row in range(-(-rows // LANES) * LANES):
            held[row] = mass[b, pixel[row]] if row < rows else 0.0
            stays = held[row] * gradient[b, pixel[row]]
            home_value += stays
            noise += 1e-14 * abs(stays)
        low_lam, high_lam = 0.0, still_from(values, held, rows, grid, 0.0)
        high_value, high_spent, moving = home_value, 0.0, False
        low_value, low_spent = vertex(values, held, rows, 0.0, grid, best, choice)
        free = low_spent <= budget[b]
        at, dual, count, done = 0.0, low_value, 1, free
        while not done and count < MAX_EVALUATIONS:
            # The Lagrangians of both ends, value + λ·spent, cross where no vertex was seen yet, or at the optimum.
            at = min(max((high_value - low_value) / (low_spent - high_spent), low_lam), high_lam)
            value, cost = vertex(values, held, rows, at, grid, best, choice)
            count += 1
            dual = value + at * (cost - budget[b])
            mixed = high_value + (budget[b] - high_spent) / (low_spent - high_spent) * (low_value - high_value)
            done = low_value + at * low_spent - (value + at * cost) <= noise + 1e-14 * at * low_spent
            done = done or mixed - dual <= accuracy * (home_value - mixed)
            if not done and cost > budget[b]:
                low_lam, low_value, low_spent = at, value, cost
            elif not done:
                high_lam, high_value, high_spent, moving = at, value, cost, True
        # A trace below the exact share, so that rounding does not exceed the budget.
        part = 1.0 if free else (budget[b] - high_spent) / (low_spent - high_spent) * (1 - 1e-15)
        for place_ in range(len(arrived)):
            arrived[place_] = 0.0
        for end in range(2):
            goal, weight = (low_end[b], part) if end == 0 else (high_end[b], 1 - part)
            vertex(values, held, rows, low_lam if end == 0 else high_lam, grid, best, choice)
            for row in range(rows):
                shell = int(choice[row]) if end == 0 or moving else 0
                move = int(moves[(row // LANES * shells + shell) * LANES + row % LANES])
                goal[pixel[row]] = move
                shift = move // (2 * grid.reach + 1) * (grid.width + 2 * grid.reach) + move % (2 * grid.reach + 1)
                arrived[place[row] + shift] += weight * held[row]
        unpaint(arrived, image[b], grid)
        share[b], lam[b], iterations[b], converged[b] = part, at, count, done
        spent[b] = high_spent + part * (low_spent - high_spent)
        gap[b] = max(high_value + part * (low_value - high_value) - dual, 0.0)


@inner
def shrink(plan: Array, keep: float) -> None:
    """``keep · plan``, exactly empty for ``keep = 0`` and exactly itself for ``keep = 1``."""
    if keep == 0:
        clear(plan)
    elif keep != 1:
        for move in range(plan.shape[0]):
            for pixel in range(plan.shape[1]):
                plan[move, pixel] = keep * plan[move, pixel]


@compiled
def blend(
    first: int,
    last: int,
    plan: Array,
    keep: Array,
    share: Array,
    mass: Array,
    low_end: Array,
    high_end: Array,
    part: Array,
) -> None:
    """``plan ← keep · plan + share · (the mixture of two vertices)``."""
    for b in range(first, last):
        shrink(plan[b], keep[b])
        for pixel in range(mass.shape[1]):
            if mass[b, pixel] > 0 and share[b] > 0:
                moved = share[b] * mass[b, pixel]
                if low_end[b, pixel] == high_end[b, pixel]:
                    plan[b, low_end[b, pixel], pixel] += moved
                else:
                    plan[b, low_end[b, pixel], pixel] += part[b] * moved
                    plan[b, high_end[b, pixel], pixel] += (1 - part[b]) * moved
