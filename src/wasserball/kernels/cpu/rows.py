"""Rows of a plan, projected onto their simplices a tile at a time."""

import numpy as np

from wasserball.kernels.cpu.layout import LANES, Array, Grid, fold, inner

# The fields of a tile: mass of the rows; the maximum of their scores; the threshold relative to it, and what is left to
# add to it; how many entries are active, and their mean price; the λ from which on the row stays home; the target at
# home. Then the best target of each four moves, then the targets of the moves.
MASS, TOP, LEVEL, REST, SIZE, DRIFT, STILL, HOME, FIELDS = (LANES * field for field in range(9))
# What an evaluation adds up for each lane of a tile, in the dtype of the data and in float64.
COUNT, PRICES, SQUARES, LEAST = (LANES * field for field in range(4))
SUM, COST = 0, LANES


@inner
def tile_size(grid: Grid) -> int:
    """Of numbers."""
    return FIELDS + 5 * len(grid.prices) * LANES


@inner
def fill_tiles(
    tiles: Array, pixel: Array, place: Array, rows: int, plan: Array, mass: Array, change: Array, grid: Grid
) -> float:
    """Targets ``plan + change[destination]``, −inf outside; the identity for a plan of no size. Returns λ's bound.

    The bound is that of :func:`wasserball.operators.projection.upper_bound`: from there on nothing moves.
    """
    size, groups = tile_size(grid), len(grid.prices)
    zero = mass.dtype.type(0)
    upper = 0.0
    for first in range(0, rows, LANES):
        tile = tiles[first // LANES * size :][:size]
        source, target = pixel[first:][:LANES], place[first:][:LANES]
        for lane in range(LANES):
            tile[MASS + lane] = mass[source[lane]] if first + lane < rows else zero
            tile[STILL + lane] = zero
        for move in range(len(grid.moves)):
            there = change[grid.shifts[move] :]
            field = tile[HOME:] if move == 0 else tile[FIELDS + (groups + move - 1) * LANES :]
            if plan.shape[0] > 0:
                held = plan[grid.moves[move]]
                for lane in range(LANES):
                    field[lane] = held[source[lane]] + there[target[lane]]
            else:
                for lane in range(LANES):
                    field[lane] = (tile[MASS + lane] if move == 0 else zero) + there[target[lane]]
        for group in range(groups):
            best, four = tile[FIELDS + group * LANES :], tile[FIELDS + (groups + 4 * group) * LANES :]
            price = mass.dtype.type(grid.prices[group])
            for lane in range(LANES):
                one, other = max(four[lane], four[LANES + lane]), max(four[2 * LANES + lane], four[3 * LANES + lane])
                best[lane] = max(one, other)
                still = ((best[lane] - tile[HOME + lane]) + tile[MASS + lane]) / price
                tile[STILL + lane] = max(tile[STILL + lane], still if tile[MASS + lane] > zero else zero)
        for lane in range(LANES):
            upper = max(upper, tile[STILL + lane])
    return upper


@inner
def keep_moving(tiles: Array, pixel: Array, place: Array, rows: int, lam: float, grid: Grid) -> int:
    """Drop the rows that stay home from this λ on, where that is more than half of them. Returns how many are left."""
    size = tile_size(grid)
    lam *= 1 - 1e-5  # clear of the rounding of STILL, so that no dropped row would move at λ itself
    moving = 0
    for row in range(rows):
        moving += tiles[row // LANES * size + STILL + row % LANES] > lam
    if 2 * moving > rows:
        return rows
    kept = 0
    for row in range(rows):
        old = tiles[row // LANES * size :][row % LANES :]
        if old[STILL] > lam:
            new = tiles[kept // LANES * size :][kept % LANES :]
            for field in range(0, size, LANES):
                new[field] = old[field]
            pixel[kept], place[kept] = pixel[row], place[row]
            kept += 1
    for row in range(kept, -(-kept // LANES) * LANES):
        tiles[row // LANES * size + MASS + row % LANES] = 0
        pixel[row], place[row] = 0, 0
    return kept


@inner
def split_prices(lam: float, grid: Grid, high: Array, low: Array) -> None:
    """``λC`` in two parts: to the last digit of float32 alone, λ would move the spending by more than the tolerance."""
    for group in range(len(grid.prices)):
        exact = lam * grid.prices[group]
        high[group] = exact
        low[group] = exact - np.float64(high[group])


@inner
def evaluate(
    tiles: Array, rows: int, lam: float, last_lam: float, grid: Grid, high: Array, low: Array, sums: Array, exact: Array
) -> tuple[float, float]:
    """Project the rows of ``target − λC`` onto their simplices. Returns what they spend, and its slope in λ."""
    total = np.zeros(2 * LANES)
    project_tiles(tiles, rows, lam, last_lam, grid, high, low, sums, exact, total)
    return fold(total[:LANES]), -fold(total[LANES:])


@inner
def fill_and_evaluate(
    tiles: Array,
    kept: bool,
    pixel: Array,
    place: Array,
    rows: int,
    plan: Array,
    mass: Array,
    change: Array,
    lam: float,
    grid: Grid,
    high: Array,
    low: Array,
    sums: Array,
    exact: Array,
) -> tuple[float, float, float]:
    """:func:`fill_tiles` and :func:`evaluate` a tile at a time, while it is in the nearest cache: returns λ's bound,
    what is spent, and its slope. Tiles that are not ``kept`` all lie in the same place."""
    size = tile_size(grid)
    total, upper = np.zeros(2 * LANES), 0.0
    for first in range(0, rows, LANES):
        tile, count = tiles[first // LANES * size if kept else 0 :][:size], min(LANES, rows - first)
        bound = fill_tiles(tile, pixel[first:], place[first:], count, plan, mass, change, grid)
        project_tiles(tile, count, lam, np.nan, grid, high, low, sums, exact, total)
        upper = max(upper, bound)
    return upper, fold(total[:LANES]), -fold(total[LANES:])


@inner
def project_tiles(
    tiles: Array,
    rows: int,
    lam: float,
    last_lam: float,
    grid: Grid,
    high: Array,
    low: Array,
    sums: Array,
    exact: Array,
    total: Array,
) -> None:
    """Project the rows of ``target − λC`` onto their simplices; add what they spend, and its slope in λ, to ``total``.

    Thresholds are found as in :func:`wasserball.kernels.reference.project_rows`. They start from that of the active
    set at ``last_lam`` (NaN if there is none): for any set it is a lower bound of the true one.
    """
    size, groups = tile_size(grid), len(grid.prices)
    zero, one, infinite = tiles.dtype.type(0), tiles.dtype.type(1), tiles.dtype.type(np.inf)
    slack, share = tiles.dtype.type(4 * np.finfo(tiles.dtype).eps), tiles.dtype.type(0.5 / len(grid.moves))
    split_prices(lam, grid, high, low)
    cold, leap = last_lam != last_lam, tiles.dtype.type(lam - last_lam)
    for first in range(0, rows, LANES):
        tile = tiles[first // LANES * size :][:size]
        top = sums[:LANES]
        for lane in range(LANES):
            top[lane] = tile[HOME + lane]
        for group in range(groups):
            best, h, l = tile[FIELDS + group * LANES :], high[group], low[group]
            for lane in range(LANES):
                top[lane] = max(top[lane], (best[lane] - h) - l)
        for lane in range(LANES):
            mass, drift = tile[MASS + lane], leap * tile[DRIFT + lane]
            guess = (tile[TOP + lane] - top[lane]) + (tile[LEVEL + lane] + tile[REST + lane]) - drift
            guess -= slack * (abs(tile[TOP + lane]) + abs(top[lane]) + abs(drift) + mass)
            tile[LEVEL + lane] = -mass if cold else max(-mass, min(guess, -share * mass))
            tile[TOP + lane] = top[lane]
        # Each pass that is not the last one drops an active entry, but for rounding.
        for _ in range(len(grid.moves) + 8):
            for lane in range(LANES):
                above = (tile[HOME + lane] - tile[TOP + lane]) - tile[LEVEL + lane]
                active = above > zero
                sums[COUNT + lane] = one if active else zero
                sums[LEAST + lane] = above if active else infinite
                sums[PRICES + lane] = zero
                sums[SQUARES + lane] = zero
                exact[SUM + lane] = above if active else zero
                exact[COST + lane] = 0.0
            for group in range(groups):
                four, h, l = tile[FIELDS + (groups + 4 * group) * LANES :], high[group], low[group]
                price = grid.prices[group]
                c, cc = tiles.dtype.type(price), tiles.dtype.type(price * price)
                for lane in range(LANES):
                    top_, level = tile[TOP + lane], tile[LEVEL + lane]
                    e0 = (((four[lane] - h) - l) - top_) - level
                    e1 = (((four[LANES + lane] - h) - l) - top_) - level
                    e2 = (((four[2 * LANES + lane] - h) - l) - top_) - level
                    e3 = (((four[3 * LANES + lane] - h) - l) - top_) - level
                    a0, a1, a2, a3 = e0 > zero, e1 > zero, e2 > zero, e3 > zero
                    few = (one if a0 else zero) + (one if a1 else zero)
                    few += (one if a2 else zero) + (one if a3 else zero)
                    sums[COUNT + lane] += few
                    sums[PRICES + lane] += c * few
                    sums[SQUARES + lane] += cc * few
                    left = min(e0 if a0 else infinite, e1 if a1 else infinite)
                    right = min(e2 if a2 else infinite, e3 if a3 else infinite)
                    sums[LEAST + lane] = min(sums[LEAST + lane], left, right)
                    held = (e0 if a0 else zero) + (e1 if a1 else zero)
                    held += (e2 if a2 else zero) + (e3 if a3 else zero)
                    exact[SUM + lane] += np.float64(held)
                    exact[COST + lane] += price * np.float64(held)
            rising = 0
            for lane in range(LANES):
                sums[COUNT + lane] = max(sums[COUNT + lane], one)
                rest = tiles.dtype.type((exact[SUM + lane] - tile[MASS + lane]) / sums[COUNT + lane])
                rises = rest > sums[LEAST + lane]
                tile[LEVEL + lane] += rest if rises else zero
                tile[REST + lane] = rest
                rising += rises
            if rising == 0:
                break
        for lane in range(LANES):
            prices, count = sums[PRICES + lane], sums[COUNT + lane]
            total[lane] += exact[COST + lane] - np.float64(tile[REST + lane]) * prices
            total[LANES + lane] += max(sums[SQUARES + lane] - prices * prices / count, zero)
            tile[SIZE + lane], tile[DRIFT + lane] = count, prices / count


@inner
def entries(tile: Array, move: int, grid: Grid, high: Array, low: Array, into: Array) -> int:
    """The entries of one move for the rows of a tile, where they were last evaluated. Returns how many are positive."""
    zero = tile.dtype.type(0)
    groups, group = len(grid.prices), (move - 1) // 4
    home = move == 0
    field = tile[HOME:] if home else tile[FIELDS + (groups + move - 1) * LANES :]
    h, l = (zero, zero) if home else (high[group], low[group])
    positive = 0
    for lane in range(LANES):
        above = (((field[lane] - h) - l) - tile[TOP + lane]) - tile[LEVEL + lane]
        into[lane] = max(above - tile[REST + lane], zero) if above > zero else zero
        positive += into[lane] > zero
    return positive


@inner
def pour(
    tiles: Array,
    pixel: Array,
    rows: int,
    weight: float,
    grid: Grid,
    high: Array,
    low: Array,
    sums: Array,
    plan: Array,
) -> None:
    """Add ``weight`` times the rows, where they were last evaluated, to a plan."""
    size = tile_size(grid)
    for first in range(0, rows, LANES):
        tile = tiles[first // LANES * size :][:size]
        source = pixel[first:]
        for move in range(len(grid.moves)):
            if entries(tile, move, grid, high, low, sums) == 0:
                continue
            held = plan[grid.moves[move]]
            for lane in range(min(LANES, rows - first)):
                if sums[lane] > 0:
                    held[source[lane]] += weight * sums[lane]


@inner
def put(tile: Array, pixel: Array, rows: int, grid: Grid, high: Array, low: Array, sums: Array, plan: Array) -> None:
    """Write the rows of one tile, where they were last evaluated, into a plan."""
    for move in range(len(grid.moves)):
        entries(tile, move, grid, high, low, sums)
        held = plan[grid.moves[move]]
        for lane in range(rows):
            held[pixel[lane]] = sums[lane]


@inner
def empty_rows(plan: Array, mass: Array) -> None:
    """Nothing leaves a pixel without mass."""
    for move in range(plan.shape[0]):
        for pixel in range(plan.shape[1]):
            plan[move, pixel] = plan[move, pixel] if mass[pixel] > 0 else 0
