"""The paper's Table 1: what an iteration of each algorithm costs as images and windows grow, beside its O(·).

An iteration is one pass over a plan: an update of all duals in projected Sinkhorn, one value of λ in the dual methods.
Times are fitted by a power of the number of pixels n, with n moves a pixel (dense) and with k² of them (local), and by
a power of k² for a given n. Small sizes are dominated by what does not grow, and only large ones are fitted.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import wasserball as wb
from experiments._lab import Experiment, Ledger, Setting, markdown
from wasserball.operators import (
    Solution,
    bisection_projection,
    entropic_bisection_oracle,
    linear_minimizer,
    project,
    sinkhorn,
)

EPS, GAMMA = 0.1, 1e-3
REPEATS = 5
BATCH = 4
SIDES = {"dense": (16, 20, 26, 32), "local": (64, 96, 144, 200)}
WINDOW = 5
WINDOWS = (5, 7, 9, 11)
WINDOW_SIDE = 96
QUICK = {"dense": (8, 12), "local": (32, 48)}
PAPER = {
    "projected Sinkhorn": ("n²", "n k²"),
    "the paper's projection": ("n² log n", "n k² log k"),
    "the paper's oracle": ("n²", "n k²"),
    "projection (ours)": ("–", "–"),
    "exact oracle (ours)": ("–", "–"),
}
"""What the paper says of its own: dense, local. Ours search a row without sorting it."""


def solver(method: str, side: int, cost: wb.Cost, setting: Setting) -> Callable[[], Solution]:
    """A random problem of a size, for one method."""
    generator = torch.Generator().manual_seed(setting.options.seed)
    shape = (BATCH, side * side) if isinstance(cost, wb.DenseCost) else (BATCH, 1, side, side)
    mass, noise = torch.rand((2, *shape), generator=generator).to(setting.device)
    budget = EPS * mass.double().flatten(1).sum(1)
    plan = cost.identity(mass) + 0.1 * cost.gather(noise)
    problem = noise, mass, budget, cost
    return {
        "projected Sinkhorn": partial(sinkhorn, *problem, gamma=GAMMA, max_iterations=20, backend="torch"),
        "the paper's projection": partial(bisection_projection, plan, *problem[1:]),
        "the paper's oracle": partial(entropic_bisection_oracle, *problem, gamma=GAMMA),
        "projection (ours)": partial(project, plan, *problem[1:]),
        "exact oracle (ours)": partial(linear_minimizer, *problem),
    }[method]


def milliseconds(method: str, side: int, cost: wb.Cost, setting: Setting) -> dict[str, Any]:
    """The best of some times for one iteration of one sample."""
    solve = solver(method, side, cost, setting)
    solve()
    best = math.inf
    for _ in range(REPEATS):
        started = time.perf_counter()
        found = solve()
        if setting.device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - started) / float(found.iterations.sum()))
    return dict(milliseconds=1000 * best, samples=BATCH)


def grid(side: int) -> wb.DenseCost:
    pixels = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    return wb.DenseCost(torch.cdist(pixels, pixels))


def measure(setting: Setting, ledger: Ledger) -> None:
    sides = QUICK if setting.quick else SIDES
    jobs: list[tuple[str, int, int | None, wb.Cost]] = [
        *(("dense", side, None, grid(side)) for side in sides["dense"]),
        *(("local", side, WINDOW, wb.LocalCost(WINDOW)) for side in sides["local"]),
        *(("window", sides["local"][1], window, wb.LocalCost(window)) for window in WINDOWS),
    ]
    for method in PAPER:
        for kind, side, window, cost in jobs:
            key = dict(method=method, kind=kind, pixels=side * side, window=window)
            ledger.row(key, partial(milliseconds, method, side, cost, setting))
            setting.console.print(f"[dim]{method}, {kind}, {side}×{side}, window {window}")


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of the best line through the logarithms."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (sizes, times))
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def table(ledger: Ledger) -> str:
    def slope(method: str, kind: str) -> str:
        rows = ledger.find(method=method, kind=kind)
        sizes = [row["window"] ** 2 if kind == "window" else row["pixels"] for row in rows]
        return f"{exponent(sizes, [row['milliseconds'] for row in rows]):.2f}"

    def last(method: str) -> str:
        row = ledger.find(method=method, kind="local")[-1]
        return f"{row['milliseconds']:.2f} ms"

    largest = math.isqrt(ledger.find(kind="local")[-1]["pixels"])
    return markdown(
        [
            "an iteration of",
            "paper, dense",
            "measured n^…",
            "paper, local",
            "measured n^…",
            "(k²)^…",
            f"{largest}×{largest}, 5×5",
        ],
        [
            [
                method,
                dense,
                slope(method, "dense"),
                local,
                slope(method, "local"),
                slope(method, "window"),
                last(method),
            ]
            for method, (dense, local) in PAPER.items()
        ],
    )


EXPERIMENT = Experiment(
    name="table1",
    summary="Table 1: how the cost of an iteration grows with the number of pixels and the window.",
    measure=measure,
    table=table,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
