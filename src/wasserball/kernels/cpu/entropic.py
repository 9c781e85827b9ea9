"""The entropic linear oracle for a range of samples, in float64."""

import numpy as np

from wasserball.kernels.cpu.exact import shrink, still_from
from wasserball.kernels.cpu.layout import (
    LANES,
    Array,
    Grid,
    canvas_size,
    compiled,
    fold,
    inner,
    list_rows,
    paint,
    unpaint,
)
from wasserball.kernels.cpu.search import (
    GO_ON,
    HIGH,
    IN_BAND,
    LAM,
    LOW,
    MAX_EVALUATIONS,
    NARROW,
    begin_search,
    next_lam,
)

# Of exp(r) = Σ r^n / n!, for |r| ≤ log(2)/2 to the last digit.
TAYLOR = tuple(1 / float(np.prod(np.arange(1.0, n + 1))) for n in range(13, -1, -1))
LOG2_HIGH = 0.693145751953125
LOG2_LOW = float(np.longdouble("0.693147180559945309417232121458") - np.longdouble(LOG2_HIGH))


@inner
def exponentials(values: Array, power: Array, bits: Array) -> None:
    """``exp`` of ``LANES`` numbers ≤ 0 in place, as vector instructions; ``bits`` is ``power`` seen as integers."""
    for lane in range(LANES):
        x = max(values[lane], -708.0)
        n = np.rint(x * 1.4426950408889634)
        r = (x - n * LOG2_HIGH) - n * LOG2_LOW
        e = TAYLOR[0]
        for term in TAYLOR[1:]:
            e = e * r + term
        bits[lane] = (np.int64(n) + 1023) << 52
        values[lane] = e if values[lane] > -708.0 else 0.0
    for lane in range(LANES):
        values[lane] *= power[lane]


@inner
def soft_moves(values: Array, place: Array, rows: int, gradient: Array, gamma: float, grid: Grid) -> None:
    """The soft minimum ``−γ log Σ exp(−gradient/γ)`` of each shell, ``(tile, shell, lane)``."""
    shells = len(grid.shell_prices)
    weight, power, total = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    bits = power.view(np.int64)
    for first in range(0, rows, LANES):
        target = place[first:]
        for shell in range(shells):
            value = values[(first // LANES * shells + shell) * LANES :]
            for lane in range(LANES):
                value[lane], total[lane] = np.inf, 0.0
            for move in range(grid.shells[shell], grid.shells[shell + 1]):
                there = gradient[grid.shifts[move] :]
                for lane in range(LANES):
                    value[lane] = min(value[lane], there[target[lane]])
            for move in range(grid.shells[shell], grid.shells[shell + 1]):
                there = gradient[grid.shifts[move] :]
                for lane in range(LANES):
                    outside = there[target[lane]] == np.inf
                    weight[lane] = -np.inf if outside else (value[lane] - there[target[lane]]) / gamma
                exponentials(weight, power, bits)
                for lane in range(LANES):
                    total[lane] += weight[lane]
            for lane in range(LANES):
                value[lane] -= gamma * np.log(total[lane])


@inner
def soften(values: Array, prices: Array, lam: float, gamma: float, weights: Array, scratch: Array, bits: Array) -> None:
    """The softmin of ``values + λ·prices`` over lines of ``LANES`` values; ``bits`` is ``scratch`` seen as integers."""
    lowest, total = scratch[LANES:], scratch[2 * LANES :]
    for lane in range(LANES):
        lowest[lane], total[lane] = np.inf, 0.0
    for line in range(len(prices)):
        value, charge = values[line * LANES :], lam * prices[line]
        for lane in range(LANES):
            lowest[lane] = min(lowest[lane], value[lane] + charge)
    for line in range(len(prices)):
        value, charge, weight = values[line * LANES :], lam * prices[line], weights[line * LANES :]
        for lane in range(LANES):
            weight[lane] = (lowest[lane] - (value[lane] + charge)) / gamma
        exponentials(weight, scratch, bits)
        for lane in range(LANES):
            total[lane] += weight[lane]
    for line in range(len(prices)):
        weight = weights[line * LANES :]
        for lane in range(LANES):
            weight[lane] /= total[lane]


@inner
def soft_spending(
    values: Array, mass: Array, rows: int, lam: float, gamma: float, grid: Grid, weights: Array, scratch: Array
) -> tuple[float, float]:
    """What the softmin of ``H + λC`` spends, and its slope in λ."""
    shells = len(grid.shell_prices)
    bits, mean = scratch.view(np.int64), scratch[LANES:]
    sums = np.zeros(2 * LANES)
    for first in range(0, rows, LANES):
        held = mass[first:]
        soften(values[first // LANES * shells * LANES :], grid.shell_prices, lam, gamma, weights, scratch, bits)
        for lane in range(LANES):
            mean[lane] = 0.0
        for shell in range(1, shells):
            price, weight = grid.shell_prices[shell], weights[shell * LANES :]
            for lane in range(LANES):
                mean[lane] += weight[lane] * price
        for lane in range(LANES):
            sums[lane] += held[lane] * mean[lane]
        for shell in range(shells):
            price, weight = grid.shell_prices[shell], weights[shell * LANES :]
            for lane in range(LANES):
                away = price - mean[lane]
                sums[LANES + lane] += held[lane] * (weight[lane] * (away * away))
    return fold(sums[:LANES]), -fold(sums[LANES:]) / gamma


@inner
def soft_rows(
    place: Array,
    gradient: Array,
    lam: float,
    low_lam: float,
    part: float,
    gamma: float,
    grid: Grid,
    scratch: Array,
    rows: Array,
) -> None:
    """The rows of one tile of the entropic answer, each with the sum 1, as lines of ``LANES`` for each move."""
    count = len(grid.moves)
    weights, values, other = rows[: count * LANES], rows[count * LANES :], rows[2 * count * LANES :]
    prices, bits = rows[3 * count * LANES :][:count], scratch.view(np.int64)
    for move in range(count):
        there, value = gradient[grid.shifts[move] :], values[move * LANES :]
        prices[move] = grid.prices[(move - 1) // 4] if move > 0 else 0.0
        for lane in range(LANES):
            value[lane] = there[place[lane]]
    soften(values, prices, lam, gamma, weights, scratch, bits)
    if part > 0:
        soften(values, prices, low_lam, gamma, other, scratch, bits)
        for i in range(count * LANES):
            weights[i] += part * (other[i] - weights[i])


@compiled
def minimize(
    first: int,
    last: int,
    gradient: Array,
    mass: Array,
    budget: Array,
    gamma: float,
    tol: float,
    grid: Grid,
    image: Array,
    lam: Array,
    spent: Array,
    iterations: Array,
    converged: Array,
    gap: Array,
    low_lam: Array,
    part: Array,
) -> None:
    """:func:`wasserball.operators.oracle._entropic` for some samples, less its plan."""
    pixels, shells = mass.shape[1], len(grid.shell_prices)
    most = -(-pixels // LANES) * LANES + 1
    pixel, place = np.empty(most, np.uint32), np.empty(most, np.uint32)
    values, held = np.empty(most * shells), np.empty(most)
    canvas, weights = np.empty(canvas_size(grid, pixels)), np.empty(shells * LANES)
    scratch, search, lines = np.empty(3 * LANES), np.empty(6), np.empty((3 * LANES + 1) * len(grid.moves))
    arrived = np.empty(canvas_size(grid, pixels))
    for b in range(first, last):
        rows = list_rows(mass[b], grid, pixel, place)
        paint(canvas, gradient[b], grid, 1.0, np.inf)
        soft_moves(values, place, rows, canvas, gamma, grid)
        everything = 0.0
        for row in range(-(-rows // LANES) * LANES):
            held[row] = mass[b, pixel[row]] if row < rows else 0.0
            for shell in range(shells):
                if values[(row // LANES * shells + shell) * LANES + row % LANES] < np.inf:
                    everything += grid.shell_prices[shell] * held[row]
        # A budget of 0 needs an infinite λ; one that no plan can exceed needs none.
        extra = gamma * np.log(everything / budget[b]) if everything > 0 and budget[b] > 0 else 0.0
        upper = still_from(values, held, rows, grid, extra)
        begin_search(search, 0.0, upper)
        low_lam[b], part[b], gap[b], spent[b], count, state = upper, 0.0, 0.0, 0.0, 1, GO_ON
        if budget[b] == 0:
            search[LAM], state = upper, IN_BAND
        at, mixing = search[LAM], budget[b] == 0
        while not mixing:
            cost, slope = soft_spending(values, held, rows, at, gamma, grid, weights, scratch)
            if state == GO_ON:
                state = next_lam(search, cost, slope, budget[b], tol, 2.0**-50)
                at = search[LAM]
                if state == GO_ON and count < MAX_EVALUATIONS:
                    count += 1
                elif state == IN_BAND:
                    spent[b], gap[b] = cost, at * (budget[b] - cost)
                    break
                else:
                    # γ is so small that no λ spends the budget: mix both sides of the jump as in the exact oracle.
                    state, at, search[LAM] = NARROW, search[HIGH], search[HIGH]
            elif at == search[HIGH]:
                spent[b], at = cost, search[LOW]
            else:
                mixing, low_lam[b] = True, at
                if cost > spent[b]:
                    part[b] = min(max((budget[b] - spent[b]) / (cost - spent[b]), 0.0), 1.0)
                spent[b] += part[b] * (cost - spent[b])
                gap[b] = search[LAM] * (budget[b] - spent[b])
                gap[b] += (search[LAM] - at) * part[b] * max(cost - budget[b], 0.0)
        lam[b], iterations[b] = search[LAM], count
        converged[b] = state == IN_BAND or search[LAM] - low_lam[b] <= 1e-12 * search[LAM]
        if budget[b] == 0:
            rows = 0
            paint(arrived, mass[b], grid, 1.0, 0.0)
        else:
            for i in range(len(arrived)):
                arrived[i] = 0.0
        for tile in range(0, rows, LANES):
            target, here = place[tile:], held[tile:]
            soft_rows(target, canvas, lam[b], low_lam[b], part[b], gamma, grid, scratch, lines)
            for move in range(len(grid.moves)):
                weight, there = lines[move * LANES :], arrived[grid.shifts[move] :]
                for lane in range(min(LANES, rows - tile)):
                    there[target[lane]] += here[lane] * weight[lane]
        unpaint(arrived, image[b], grid)


@compiled
def blend(
    first: int,
    last: int,
    plan: Array,
    keep: Array,
    share: Array,
    gradient: Array,
    mass: Array,
    budget: Array,
    gamma: float,
    grid: Grid,
    lam: Array,
    low_lam: Array,
    part: Array,
) -> None:
    """``plan ← keep · plan + share · (the entropic answer)``."""
    pixels = mass.shape[1]
    most = -(-pixels // LANES) * LANES + 1
    pixel, place = np.empty(most, np.uint32), np.empty(most, np.uint32)
    canvas, scratch = np.empty(canvas_size(grid, pixels)), np.empty(3 * LANES)
    lines = np.empty((3 * LANES + 1) * len(grid.moves))
    for b in range(first, last):
        shrink(plan[b], keep[b])
        if share[b] == 0:
            continue
        if budget[b] == 0:
            for i in range(pixels):
                plan[b, grid.moves[0], i] += share[b] * mass[b, i]
            continue
        rows = list_rows(mass[b], grid, pixel, place)
        paint(canvas, gradient[b], grid, 1.0, np.inf)
        for tile in range(0, rows, LANES):
            source = pixel[tile:]
            soft_rows(place[tile:], canvas, lam[b], low_lam[b], part[b], gamma, grid, scratch, lines)
            for move in range(len(grid.moves)):
                weight, entries = lines[move * LANES :], plan[b, grid.moves[move]]
                for lane in range(min(LANES, rows - tile)):
                    entries[source[lane]] += share[b] * mass[b, source[lane]] * weight[lane]
