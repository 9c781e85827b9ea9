"""The paper's App. C: how far the iterates of Dykstra's algorithm are from the ball, beside the dual projection.

A random coupling of 10×10 pixels is projected onto the plans that belong to a random image and spend at most 1. One
iteration of each method projects all rows onto simplices once. Dykstra's iterates are feasible for one of the two
constraints each, and it is the other that is violated.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import wasserball as wb
from experiments._lab import Experiment, Ledger, Setting, markdown
from wasserball import plot
from wasserball.operators import bisection_projection, dykstra, project

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 10
BUDGET = 1.0
ITERATIONS = 2000
SHOWN = (1, 3, 10, 30, 100, 300, 1000)
TOLERANCES = tuple(10.0**-power for power in range(1, 13))
DYKSTRA, BISECTION, NEWTON = "Dykstra", "dual projection, the paper's bisection", "dual projection, Newton (ours)"


def problem(seed: int) -> tuple[Tensor, Tensor, wb.DenseCost]:
    """The coupling, the image, both of mass 1, and the distances of all pixels."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).double()
    mass = torch.rand(1, SIDE * SIDE, generator=generator, dtype=torch.float64)
    target = torch.rand(1, SIDE * SIDE, SIDE * SIDE, generator=generator, dtype=torch.float64)
    return target / target.sum(), mass / mass.sum(), wb.DenseCost(torch.cdist(pixels, pixels))


def trace_dykstra(target: Tensor, mass: Tensor, cost: wb.DenseCost, iterations: int) -> dict[str, Any]:
    """Violations of both constraints, each by the iterate that is feasible for the other."""
    simplex: list[float] = []
    halfspace: list[float] = []

    def see(_: int, rows: Tensor, half: Tensor) -> None:
        short = (half.sum(-1) - mass).abs().sum() + half.clamp(max=0).abs().sum()
        simplex.append(float(short))
        halfspace.append(max(0.0, float((rows * cost.matrix).sum()) - BUDGET))

    dykstra(target, mass, BUDGET, cost, tol=1e-15, max_iterations=iterations, callback=see)
    return dict(iteration=list(range(1, iterations + 1)), halfspace=halfspace, simplex=simplex)


def trace_bisection(target: Tensor, mass: Tensor, cost: wb.DenseCost) -> dict[str, Any]:
    """What is left of the budget: the iterate on the feasible side is taken, as the paper does."""
    solutions = [bisection_projection(target, mass, BUDGET, cost, iterations=turns) for turns in range(1, 41)]
    return dict(iteration=list(range(1, 41)), unspent=[BUDGET - float(found.spent) for found in solutions])


def trace_newton(target: Tensor, mass: Tensor, cost: wb.DenseCost) -> dict[str, Any]:
    solutions = [project(target, mass, BUDGET, cost, tol=tol) for tol in TOLERANCES]
    return dict(
        iteration=[int(found.iterations) for found in solutions],
        unspent=[BUDGET - float(found.spent) for found in solutions],
    )


def measure(setting: Setting, ledger: Ledger) -> None:
    target, mass, cost = problem(setting.options.seed)
    iterations = 200 if setting.quick else ITERATIONS
    ledger.row(dict(method=DYKSTRA), partial(trace_dykstra, target, mass, cost, iterations))
    ledger.row(dict(method=BISECTION), partial(trace_bisection, target, mass, cost))
    ledger.row(dict(method=NEWTON), partial(trace_newton, target, mass, cost))


def table(ledger: Ledger) -> str:
    def line(method: str, column: str, name: str) -> list[str]:
        [row] = ledger.find(method=method)
        return [name, *(_reached(row["iteration"], row[column], turns) for turns in SHOWN)]

    return markdown(
        ["off by, after so many iterations", *map(str, SHOWN)],
        [
            line(DYKSTRA, "halfspace", "Dykstra, over budget"),
            line(DYKSTRA, "simplex", "Dykstra, off the simplices"),
            line(BISECTION, "unspent", f"{BISECTION}, under budget"),
            line(NEWTON, "unspent", f"{NEWTON}, under budget"),
        ],
    )


def picture(ledger: Ledger) -> "Figure":
    figure = plot.blank_figure(6.4, 3.9)
    axes = figure.subplots()
    for method, column, name, style in (
        (DYKSTRA, "halfspace", "Dykstra: over budget", dict(color=plot.FADED)),
        (DYKSTRA, "simplex", "Dykstra: off the simplices", dict(color=plot.FADED, linestyle="--")),
        (BISECTION, "unspent", "dual, bisection: under budget", dict(color=plot.ARROW)),
        (NEWTON, "unspent", "dual, Newton: under budget", dict(color=plot.ACCENT, marker="o", markersize=3)),
    ):
        [row] = ledger.find(method=method)
        axes.plot(row["iteration"], [max(value, 1e-16) for value in row[column]], label=name, **style)
    axes.set(xscale="log", yscale="log", xlabel="projections of all rows", ylabel="violation", ylim=(1e-14, None))
    axes.legend(frameon=False, fontsize=8)
    axes.grid(color=plot.FRAME, linewidth=0.5)
    return figure


def _reached(iterations: Sequence[int], values: Sequence[float], turns: int) -> str:
    """The value after as many iterations, or where the method had ended before."""
    seen = [value for turn, value in zip(iterations, values, strict=True) if turn <= turns]
    return f"{seen[-1]:.0e}" if seen else "–"


EXPERIMENT = Experiment(
    name="figure-dykstra",
    summary="App. C: constraint violation against iterations, Dykstra's algorithm and the dual projection.",
    measure=measure,
    table=table,
    picture=picture,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
