"""One step of the search for the dual variable of the budget, for one sample."""

import math

import numpy as np

from wasserball.kernels.cpu.layout import Array, inner

MAX_EVALUATIONS = 60
# What a search knows: the next λ, its bracket with the spending at both ends, and how far the last one was off.
LAM, LOW, HIGH, SPENT_LOW, SPENT_HIGH, MISS = range(6)
# How it stands: to go on, done, or with no λ left between the ends of the bracket.
GO_ON, IN_BAND, NARROW = range(3)


@inner
def begin_search(search: Array, start: float, upper: float) -> None:
    """The state of :func:`wasserball.operators.dual.spend_budget` before the first evaluation."""
    search[LAM], search[LOW], search[HIGH] = min(start, upper), 0.0, upper
    search[SPENT_LOW], search[SPENT_HIGH], search[MISS] = np.inf, 0.0, np.inf


@inner
def next_lam(search: Array, spent: float, slope: float, budget: float, tol: float, narrow: float) -> int:
    """One step of :func:`wasserball.operators.dual.spend_budget`: take in an evaluation, choose the next λ."""
    aim, most, least = budget * (1 - tol / 2), budget * (1 - tol / 8), budget * (1 - tol)
    at = search[LAM]
    if spent > most:
        search[LOW], search[SPENT_LOW] = at, spent
    else:
        search[HIGH], search[SPENT_HIGH] = at, spent
        if spent >= least or at == 0:
            return IN_BAND
    low, high, miss = search[LOW], search[HIGH], abs(spent - aim)
    newton = at - (2 * (spent - math.sqrt(spent * aim)) if spent > 2 * aim else spent - aim) / slope
    halved, search[MISS] = miss <= search[MISS] / 2, miss
    if search[SPENT_LOW] == np.inf and not newton > 0:
        search[LAM] = 0.0
        return GO_ON
    wide = high > 16 * low
    middle = (math.sqrt(low * high) if low > 0 else high / 16) if wide else (low + high) / 2
    step = newton
    if not low < newton < high:
        step = low + (high - low) * ((search[SPENT_LOW] - aim) / (search[SPENT_LOW] - search[SPENT_HIGH]))
    if not halved or not low < step < high:
        step = middle
    search[LAM] = step
    return GO_ON if low < step < high and high - low > narrow * high else NARROW
