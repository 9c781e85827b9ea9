"""Projections onto the ball, steps in ball and box, and step sizes, for a range of samples."""

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
from wasserball.kernels.cpu.rows import (
    SIZE,
    empty_rows,
    entries,
    evaluate,
    fill_and_evaluate,
    fill_tiles,
    keep_moving,
    pour,
    project_tiles,
    put,
    tile_size,
)
from wasserball.kernels.cpu.search import (
    GO_ON,
    HIGH,
    IN_BAND,
    LAM,
    LOW,
    MAX_EVALUATIONS,
    NARROW,
    SPENT_HIGH,
    begin_search,
    next_lam,
)

# The constants of the reference, which lies a layer above; a test compares them.
LEAST_CURVATURE = 0.7
LEAPS = 8


@compiled
def project(
    first: int,
    last: int,
    plan: Array,
    gradient: Array,
    step: Array,
    mass: Array,
    budget: Array,
    start: Array,
    tol: float,
    grid: Grid,
    out: Array,
    image: Array,
    lam: Array,
    spent: Array,
    iterations: Array,
    converged: Array,
    gap: Array,
) -> None:
    """:func:`wasserball.operators.projection._project_chunk` for some samples."""
    pixels = mass.shape[1]
    most = -(-pixels // LANES) * LANES + 1
    pixel, place = np.empty(most, np.uint32), np.empty(most, np.uint32)
    tiles = np.empty(most // LANES * tile_size(grid), mass.dtype)
    change, canvas = np.empty(canvas_size(grid, pixels), mass.dtype), np.empty(canvas_size(grid, pixels))
    high, low = np.empty(len(grid.prices), mass.dtype), np.empty(len(grid.prices), mass.dtype)
    sums, exact, search = np.empty(4 * LANES, mass.dtype), np.empty(2 * LANES), np.empty(6)
    narrow = 0.5 * float(np.finfo(mass.dtype).eps)
    for b in range(first, last):
        rows = list_rows(mass[b], grid, pixel, place)
        paint(change, gradient[b], grid, step[b], -np.inf)
        upper, cost, slope = fill_and_evaluate(
            *(tiles, True, pixel, place, rows, plan[b], mass[b], change, start[b], grid, high, low, sums, exact)
        )
        begin_search(search, start[b], upper)
        at, last_lam, count, state = search[LAM], start[b], 1, GO_ON
        fresh = at == start[b]  # else it is the bound
        answer, home = out[b], out[b, grid.moves[0]]
        clear(answer)
        for i in range(pixels):
            home[i] = mass[b, i]
        mixing, share, rest = 0.0, 0.0, 1.0
        if budget[b] == 0:
            search[LAM], rows, rest = upper, 0, 0.0
            state = IN_BAND
        while rest > 0:
            if not fresh:
                cost, slope = evaluate(tiles, rows, at, last_lam, grid, high, low, sums, exact)
            fresh, last_lam = False, at
            if state == GO_ON:
                state = next_lam(search, cost, slope, budget[b], tol, narrow)
                if state == GO_ON and count < MAX_EVALUATIONS:
                    count += 1
                    if search[LOW] == at:
                        rows = keep_moving(tiles, pixel, place, rows, at, grid)
                    at = search[LAM]
                    continue
                for row in range(rows):
                    home[pixel[row]] = 0
                if state != IN_BAND:
                    # No λ spends the budget: mix the plans at both ends of the bracket.
                    state, at = NARROW, search[LOW]
                    continue
                share = 1.0
            elif at == search[LOW]:
                # The share of the low end, clear of the budget as elsewhere.
                under = search[SPENT_HIGH]
                share = (budget[b] * (1 - tol / 8) - under) / (cost - under) if cost > under else 0.0
                share = min(max(share, 0.0), 1.0)
                mixing = (search[HIGH] - at) * share * max(cost - budget[b], 0.0)
                search[LAM] = at = search[HIGH]
            else:
                share = rest
            pour(tiles, pixel, rows, share, grid, high, low, sums, answer)
            rest -= share
            if rest > 0 and at == upper:
                for row in range(rows):  # by Prop. 2 nothing moves, whatever rounding says
                    home[pixel[row]] += rest * mass[b, pixel[row]]
                rest = 0.0
        spent[b] = settle(answer, pixel, place, rows, budget[b], grid, canvas, image[b])
        lam[b], iterations[b] = search[LAM], count
        converged[b] = state == IN_BAND or search[HIGH] - search[LOW] <= 2 * narrow * search[HIGH]
        gap[b] = search[LAM] * (budget[b] - spent[b]) + mixing


@inner
def settle(
    plan: Array, pixel: Array, place: Array, rows: int, budget: float, grid: Grid, canvas: Array, image: Array
) -> float:
    """Column sums of a plan of which only the listed rows move, and what it spends, at most the budget.

    Where rounding spends more, a trace stays home.
    """
    home = plan[grid.moves[0]]
    keep_less = 1 - 2 * float(np.finfo(plan.dtype).eps)
    spent = 0.0
    for attempt in range(60):
        spent = 0.0
        paint(canvas, home, grid, 1.0, 0.0)
        for move in range(1, len(grid.moves)):
            held, there = plan[grid.moves[move]], canvas[grid.shifts[move] :]
            moved = 0.0
            for row in range(rows):
                if held[pixel[row]] > 0:
                    moved += held[pixel[row]]
                    there[place[row]] += held[pixel[row]]
            spent += grid.prices[(move - 1) // 4] * moved
        if spent <= budget:
            break
        # A plan of the smallest numbers that there are cannot be scaled down: it goes home.
        keep = budget / spent * keep_less if attempt < 58 else 0.0
        for row in range(rows):
            back = 0.0
            for move in range(1, len(grid.moves)):
                before = plan[grid.moves[move], pixel[row]]
                after = plan.dtype.type(keep * before)
                plan[grid.moves[move], pixel[row]] = after
                back += np.float64(before) - np.float64(after)
            home[pixel[row]] += back
    unpaint(canvas, image, grid)
    return spent


@compiled
def box_step(
    first: int,
    last: int,
    plan: Array,
    gradient: Array,
    step: Array,
    mass: Array,
    budget: Array,
    start: Array,
    start_mu: Array,
    capacity: float,
    rounds: int,
    grid: Grid,
    out: Array,
    image: Array,
    lam: Array,
    mu: Array,
    spent: Array,
    converged: Array,
) -> None:
    """:func:`wasserball.operators.box_step._step_chunk` for some samples."""
    pixels = mass.shape[1]
    most = -(-pixels // LANES) * LANES + 1
    pixel, place = np.empty(most, np.uint32), np.empty(most, np.uint32)
    tile, total = np.empty(tile_size(grid), mass.dtype), np.empty(2 * LANES)
    change, arrived = np.empty(canvas_size(grid, pixels), mass.dtype), np.empty(canvas_size(grid, pixels))
    shared, charge = np.empty(canvas_size(grid, pixels)), np.empty(pixels)
    high, low = np.empty(len(grid.prices), mass.dtype), np.empty(len(grid.prices), mass.dtype)
    sums, exact, net = np.empty(4 * LANES, mass.dtype), np.empty(2 * LANES), np.empty(pixels)
    curvature, held = np.empty(pixels), np.empty(pixels)
    cheapest = grid.prices[0] if len(grid.prices) > 0 else np.inf
    for b in range(first, last):
        rows = list_rows(mass[b], grid, pixel, place)
        at, still = start[b], 0.0
        for i in range(pixels):
            charge[i] = max(np.float64(start_mu[b, i]), 0.0)
            still = max(still, (2 * abs(step[b] * gradient[b, i]) + 2 * mass[b, i]) / cheapest)
        for update in range(rounds + 1):
            for i in range(pixels):
                net[i] = step[b] * gradient[b, i] - charge[i]
            paint(change, net, grid, 1.0, -np.inf)
            for i in range(len(arrived)):
                arrived[i] = shared[i] = 0.0
            total[:] = 0.0
            # A tile at a time, from the targets to where they arrive, while it is in the nearest cache. The plan of the
            # last round may take the place of the given one: of these rows there is no further need.
            for some in range(0, rows, LANES):
                source, target, count = pixel[some:], place[some:], min(LANES, rows - some)
                fill_tiles(tile, source, target, count, plan[b], mass[b], change, grid)
                project_tiles(tile, count, at, np.nan, grid, high, low, sums, exact, total)
                arrive(tile, target, count, grid, high, low, sums, arrived, shared)
                if update == rounds:
                    put(tile, source, count, grid, high, low, sums, out[b])
            spent[b], slope = fold(total[:LANES]), -fold(total[LANES:])
            unpaint(arrived, held, grid)
            if update < rounds:
                newton = (spent[b] - budget[b]) / -slope
                newton = 0.0 if newton != newton else newton
                at = min(max(at + newton, at / 8), 8 * at + still / 16)
                unpaint(shared, curvature, grid)
                for i in range(pixels):
                    charge[i] = max(charge[i] + (held[i] - capacity) / max(curvature[i], LEAST_CURVATURE), 0.0)
        overflow = -np.inf
        for i in range(pixels):
            image[b, i], mu[b, i] = held[i], charge[i]
            overflow = max(overflow, held[i] - capacity)
        empty_rows(out[b], mass[b])
        lam[b] = at
        converged[b] = overflow <= 1e-3 * capacity and spent[b] <= (1 + 1e-3) * budget[b]


@inner
def arrive(
    tiles: Array,
    place: Array,
    rows: int,
    grid: Grid,
    high: Array,
    low: Array,
    sums: Array,
    arrived: Array,
    shared: Array,
) -> None:
    """Add up columns of the rows where they were last evaluated, and how much of a change each active entry keeps."""
    size = tile_size(grid)
    zero, one = tiles.dtype.type(0), tiles.dtype.type(1)
    for first in range(0, rows, LANES):
        tile = tiles[first // LANES * size :][:size]
        target, kept = place[first:], sums[LANES:]
        for lane in range(LANES):
            kept[lane] = one - one / tile[SIZE + lane]
        for move in range(len(grid.moves)):
            if entries(tile, move, grid, high, low, sums) == 0:
                continue
            there, also = arrived[grid.shifts[move] :], shared[grid.shifts[move] :]
            for lane in range(min(LANES, rows - first)):
                if sums[lane] > zero:
                    there[target[lane]] += sums[lane]
                    also[target[lane]] += kept[lane]


@compiled
def step_that_spends(
    first: int,
    last: int,
    gradient: Array,
    mass: Array,
    wanted: Array,
    share: float,
    grid: Grid,
    step: Array,
) -> None:
    """:func:`wasserball.operators.leap._solve` for some samples, in float64."""
    pixels = mass.shape[1]
    most = -(-pixels // LANES) * LANES + 1
    pixel, place = np.empty(most, np.uint32), np.empty(most, np.uint32)
    tile, change = np.empty(tile_size(grid), mass.dtype), np.empty(canvas_size(grid, pixels), mass.dtype)
    high, low = np.empty(len(grid.prices), mass.dtype), np.empty(len(grid.prices), mass.dtype)
    sums, exact = np.empty(4 * LANES, mass.dtype), np.empty(2 * LANES)
    home = np.empty((0, 0), mass.dtype)
    for b in range(first, last):
        rows = list_rows(mass[b], grid, pixel, place)
        largest = 0.0
        for i in range(pixels):
            largest = max(largest, mass[b, i])
        at, goal = 1e6 * largest, wanted[b]
        for update in range(LEAPS + 1):
            paint(change, gradient[b], grid, at, -np.inf)
            _, spent, _ = fill_and_evaluate(
                *(tile, False, pixel, place, rows, home, mass[b], change, 0.0, grid, high, low, sums, exact)
            )
            if update == 0:
                at, goal = 1e-6 * largest, min(goal, share * spent)
            else:
                at *= goal / spent
                at = at if at < np.inf else 0.0  # also where it is NaN
        step[b] = at
