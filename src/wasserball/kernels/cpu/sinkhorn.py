"""The dual of projected Sinkhorn for a range of samples whose masses sum to 1, in float64.

A sum of ``exp(potential_j − ψC_ij)`` over a window would overflow, and its logarithm takes an exponential for every
entry of a plan. Here the exponential of a potential is taken once for each pixel and kept as ``fraction · 2^exponent``:
sums over a window then shift exponents, multiply and add, whatever the size of the potentials.
"""

import numpy as np

from wasserball.kernels.cpu.entropic import LOG2_HIGH, LOG2_LOW, TAYLOR, exponentials
from wasserball.kernels.cpu.layout import LANES, Array, Grid, canvas_size, compiled, fold, inner, list_rows

LOG2 = LOG2_HIGH + LOG2_LOW
NOTHING = -(1 << 40)
"""The exponent where there is no mass: far below that of any potential."""
SMALLEST = -1023
"""The exponent of 0 in float64; what is smaller beside the largest of a sum is 0 as well."""
# Of log((1 + s) / (1 − s)) = 2 Σ s^(2n + 1) / (2n + 1), for fractions from √½ to √2 to the last digit.
ODD = tuple(2 / (2.0 * n + 1) for n in range(11, -1, -1))


@inner
def split_exponentials(values: Array, fraction: Array, exponent: Array) -> None:
    """``exp(values) = fraction · 2^exponent`` of ``LANES`` numbers."""
    for lane in range(LANES):
        n = np.rint(values[lane] * 1.4426950408889634)
        r = (values[lane] - n * LOG2_HIGH) - n * LOG2_LOW
        e = TAYLOR[0]
        for term in TAYLOR[1:]:
            e = e * r + term
        fraction[lane], exponent[lane] = e, np.int64(n)


@inner
def logarithms(values: Array, power: Array, bits: Array) -> None:
    """``log`` of ``LANES`` numbers in place, as vector instructions; of 0 it is below −700."""
    for lane in range(LANES):
        power[lane] = values[lane]
    for lane in range(LANES):
        # Half way between √½ and √2, so that the fraction is as near to 1 as can be.
        shifted = bits[lane] - 0x3FE6A09E667F3BCD
        n = shifted >> 52
        bits[lane] -= n << 52
        values[lane] = n + 0 * values[lane]  # which is not a number where the value is none
    for lane in range(LANES):
        s = (power[lane] - 1) / (power[lane] + 1)
        square = s * s
        e = ODD[0]
        for term in ODD[1:]:
            e = e * square + term
        values[lane] = values[lane] * LOG2_HIGH + (values[lane] * LOG2_LOW + s * e)


@inner
def wright_omega(u: Array, lines: Array) -> None:
    """``y > 0`` such that ``y + log y = u`` for ``LANES`` numbers in place, by Newton's method for ``log y`` from
    above."""
    v, y, power = lines[:LANES], lines[LANES : 2 * LANES], lines[2 * LANES : 3 * LANES]
    bits = power.view(np.int64)
    for lane in range(LANES):
        u[lane] = max(u[lane], -800.0)
        v[lane] = max(u[lane], 1.0)
    logarithms(v, power, bits)
    for lane in range(LANES):
        v[lane] = min(v[lane] if u[lane] > 1 else u[lane], (u[lane] - 1) / 2)
    for _ in range(5):
        for lane in range(LANES):
            y[lane] = v[lane]
        exponentials(y, power, bits)
        for lane in range(LANES):
            v[lane] -= (y[lane] + v[lane] - u[lane]) / (y[lane] + 1)
    for lane in range(LANES):
        u[lane] = v[lane]
    exponentials(u, power, bits)


@inner
def add_shells(
    fraction: Array, exponent: Array, place: Array, packed: bool, grid: Grid, sums: Array, tops: Array, power: Array
) -> None:
    """The sums of a tile's rows over each shell, as fractions and exponents; rows that are not ``packed`` lie one after
    the other on the canvas, which is much faster to read."""
    bits = power.view(np.int64)
    for shell in range(len(grid.shell_prices)):
        total, top = sums[shell * LANES :][:LANES], tops[shell * LANES :][:LANES]
        for lane in range(LANES):
            total[lane], top[lane] = 0.0, NOTHING
        for move in range(grid.shells[shell], grid.shells[shell + 1]):
            if packed:
                there = exponent[grid.shifts[move] :]
                for lane in range(LANES):
                    top[lane] = max(top[lane], there[place[lane]])
            else:
                there = exponent[grid.shifts[move] + place[0] :][:LANES]
                for lane in range(LANES):
                    top[lane] = max(top[lane], there[lane])
        for move in range(grid.shells[shell], grid.shells[shell + 1]):
            if packed:
                there, share = exponent[grid.shifts[move] :], fraction[grid.shifts[move] :]
                for lane in range(LANES):
                    bits[lane] = (max(there[place[lane]] - top[lane], SMALLEST) - SMALLEST) << 52
                for lane in range(LANES):
                    total[lane] += share[place[lane]] * power[lane]
            else:
                start = grid.shifts[move] + place[0]
                there, share = exponent[start:][:LANES], fraction[start:][:LANES]
                for lane in range(LANES):
                    bits[lane] = (max(there[lane] - top[lane], SMALLEST) - SMALLEST) << 52
                for lane in range(LANES):
                    total[lane] += share[lane] * power[lane]


@inner
def weigh(sums: Array, tops: Array, falls: Array, drops: Array, grid: Grid, lines: Array, top: Array) -> None:
    """A tile's rows over all shells, with ``exp(−ψ·price) = fall · 2^drop``: three lines of sums of 1, of the price and
    of its square, with their exponent ``top``."""
    total, cost, square = lines[:LANES], lines[LANES : 2 * LANES], lines[2 * LANES : 3 * LANES]
    power = lines[3 * LANES : 4 * LANES]
    bits = power.view(np.int64)
    for lane in range(LANES):
        total[lane], cost[lane], square[lane], top[lane] = 0.0, 0.0, 0.0, 2 * NOTHING
    for shell in range(len(grid.shell_prices)):
        highest, drop = tops[shell * LANES :][:LANES], drops[shell]
        for lane in range(LANES):
            top[lane] = max(top[lane], highest[lane] + drop)
    for shell in range(len(grid.shell_prices)):
        highest, drop, some = tops[shell * LANES :][:LANES], drops[shell], sums[shell * LANES :][:LANES]
        fall, price = falls[shell], grid.shell_prices[shell]
        for lane in range(LANES):
            bits[lane] = (max(highest[lane] + drop - top[lane], SMALLEST) - SMALLEST) << 52
        for lane in range(LANES):
            weight = some[lane] * fall * power[lane]
            total[lane] += weight
            cost[lane] += weight * price
            square[lane] += weight * (price * price)


@inner
def split_prices(psi: float, grid: Grid, falls: Array, drops: Array) -> None:
    """``exp(−ψ·price) = fall · 2^drop`` for each shell."""
    for shell in range(len(grid.shell_prices)):
        charge = psi * grid.shell_prices[shell]
        n = np.rint(min(charge, 1e11) * 1.4426950408889634)
        falls[shell] = np.exp(-((charge - n * LOG2_HIGH) - n * LOG2_LOW)) if charge < 1e11 else 0 * charge + 1
        drops[shell] = -np.int64(n)


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
    room, home = canvas_size(grid, pixels) + LANES, grid.shifts[0]
    pixel, place = np.empty(pixels + LANES, np.uint32), np.empty(pixels + LANES, np.uint32)
    every, everywhere = np.empty(pixels + LANES, np.uint32), np.empty(pixels + LANES, np.uint32)
    list_rows(np.ones(pixels), grid, every, everywhere)
    # All places from the first pixel to the last, the margins at the ends of their lines among them.
    places = -(-(everywhere[pixels - 1] + 1) // LANES) * LANES
    scan, inside = np.arange(places).astype(np.uint32), np.zeros(places, np.bool_)
    aim, potential = np.zeros(places), np.zeros(places)
    for i in range(pixels):
        inside[everywhere[i]] = True
    sums, tops = np.empty(places * shells), np.empty(places * shells, np.int64)
    held, share, shift = np.empty(places), np.empty(places), np.empty(places, np.int64)
    lines, top, scratch = np.empty(4 * LANES), np.empty(LANES, np.int64), np.empty(3 * LANES)
    falls, drops, added = np.empty(shells), np.empty(shells, np.int64), np.empty(2 * LANES)
    sender, sender_exponent = np.empty(room), np.empty(room, np.int64)
    receiver, receiver_exponent = np.empty(room), np.empty(room, np.int64)
    bits, bound = scratch.view(np.int64), np.log(gamma)
    for b in range(first, last):
        count = list_rows(mass[b], grid, pixel, place)
        packed = 3 * count < places
        rows, where = (-(-count // LANES) * LANES, place) if packed else (places, scan)
        held[:] = 0.0
        for i in range(count):
            held[i if packed else place[i]] = mass[b, pixel[i]]
        for i in range(pixels):
            aim[everywhere[i]] = target[b, i] / gamma
        sender[:], sender_exponent[:], receiver[:], receiver_exponent[:] = 0.0, NOTHING, 0.0, NOTHING
        for i in range(places):
            if inside[i]:
                potential[i], receiver[home + i], receiver_exponent[home + i] = 0.0, 1.0, 0
        linear, entropy = 0.0, 0.0
        for i in range(rows):
            entropy += held[i] * np.log(held[i]) if held[i] > 0 else 0.0
        psi[b], iterations[b], converged[b] = 1.0, 0, False
        split_prices(psi[b], grid, falls, drops)
        while True:
            # The best α makes the rows exact, e^α = mass·e / Σ; then the plan sums to 1, and the dual objective costs
            # nothing more.
            added[:] = 0.0
            for tile in range(0, rows, LANES):
                line = slice(tile * shells, (tile + LANES) * shells)
                if iterations[b] == 0:
                    add_shells(receiver, receiver_exponent, where[tile:], packed, grid, sums[line], tops[line], scratch)
                weigh(sums[line], tops[line], falls, drops, grid, lines, top)
                some, parts, shifts, total = held[tile:], share[tile:], shift[tile:], lines[:LANES]
                for lane in range(LANES):
                    parts[lane] = some[lane] / total[lane] if some[lane] > 0 else 0.0
                    shifts[lane] = -top[lane] if some[lane] > 0 else NOTHING
                for lane in range(LANES):
                    if some[lane] > 0:
                        sender[home + where[tile + lane]] = parts[lane]
                        sender_exponent[home + where[tile + lane]] = shifts[lane]
                logarithms(total, scratch, bits)
                for lane in range(LANES):
                    added[lane] += some[lane] * (total[lane] + top[lane] * LOG2) if some[lane] > 0 else 0.0
            before = objective[b]
            objective[b] = entropy - fold(added[:LANES]) + linear - psi[b] * budget[b]
            if iterations[b] > 0:
                change, allowed = abs(objective[b] - before), tol + tol * abs(before)
                converged[b] = change <= allowed
                if not change > allowed:  # which is so too where it is not a number
                    break
            if iterations[b] == max_iterations or not budget[b] > 0:
                break
            iterations[b] += 1
            # The best β has target − γβ = Πᵀ1.
            added[:] = 0.0
            for tile in range(0, places, LANES):
                line = slice(tile * shells, (tile + LANES) * shells)
                add_shells(sender, sender_exponent, scan[tile:], False, grid, sums[line], tops[line], scratch)
                weigh(sums[line], tops[line], falls, drops, grid, lines, top)
                total, wanted, found = lines[:LANES], aim[tile:], potential[tile:]
                logarithms(total, scratch, bits)
                for lane in range(LANES):
                    total[lane] = wanted[lane] + (total[lane] + top[lane] * LOG2) - bound
                wright_omega(total, scratch)
                for lane in range(LANES):
                    found[lane] = wanted[lane] - total[lane] if inside[tile + lane] else 0.0
                    added[lane] += gamma * (found[lane] * wanted[lane] - found[lane] * found[lane] / 2)
                split_exponentials(found, receiver[home + tile :], receiver_exponent[home + tile :])
                for lane in range(LANES):
                    if not inside[tile + lane]:
                        receiver[home + tile + lane], receiver_exponent[home + tile + lane] = 0.0, NOTHING
            linear = fold(added[:LANES])
            # A Newton step for ψ on what the plan spends that stays on its side of the solution.
            added[:] = 0.0
            for tile in range(0, rows, LANES):
                line = slice(tile * shells, (tile + LANES) * shells)
                add_shells(receiver, receiver_exponent, where[tile:], packed, grid, sums[line], tops[line], scratch)
                weigh(sums[line], tops[line], falls, drops, grid, lines, top)
                parts, shifts = share[tile:], shift[tile:]
                for lane in range(LANES):
                    bits[lane] = (min(max(top[lane] + shifts[lane], SMALLEST), 1024) - SMALLEST) << 52
                for lane in range(LANES):
                    sent = parts[lane] * scratch[lane] if parts[lane] > 0 else 0.0
                    added[lane] += sent * lines[LANES + lane]
                    added[LANES + lane] += sent * lines[2 * LANES + lane]
            spent, slope = fold(added[:LANES]), fold(added[LANES:])
            if spent > budget[b]:
                psi[b] += (np.log(spent) - np.log(budget[b])) * spent / slope
            else:
                farthest = max(grid.shell_prices[shells - 1], 1e-300)
                psi[b] -= np.log1p(farthest * (budget[b] - spent) / slope) / farthest
            psi[b] = 0.0 if psi[b] < 0 else psi[b]
            split_prices(psi[b], grid, falls, drops)
        for i in range(pixels):
            beta[b, i] = potential[everywhere[i]]
