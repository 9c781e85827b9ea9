"""The paper's App. D: what goes wrong when the linear oracle is read off its dual, and what does not.

Without entropy the dual of the linear oracle has one number λ. Given the best λ, each pixel sends its mass to where
``H + λC`` is least: but at the best λ, as a rule, two destinations of some pixel are equally good, and which of them is
taken decides whether the plan spends too little, or more than there is. The paper therefore adds entropy; the exact
oracle here mixes the plans on both sides instead.
"""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import wasserball as wb
from experiments._lab import Experiment, Ledger, Setting, markdown
from wasserball.operators import Solution, entropic_bisection_oracle, linear_minimizer

TWO = wb.DenseCost(torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
"""Two pixels, one unit apart; the first holds all the mass, and every unit that gets to the second is worth 2."""
BUDGET = 0.5
TILT = 1e-9
"""A rounding error in the gradient."""
SIZE, EPS = 12, 0.1
DRAWS = 200


def naive(gradient: Tensor, mass: Tensor, lam: Tensor, cost: wb.Cost, last: bool) -> Tensor:
    """Plans ``argmin <Π, H + λC>`` over the rows alone; of two destinations that are equally good the first or last."""
    price, allowed = cost.entries(mass)
    shape = (-1, *(1 for _ in mass.shape[1:]))
    score = torch.where(allowed, cost.gather(gradient) + lam.view(shape).unsqueeze(cost.axis) * price, torch.inf)
    best = score.amin(cost.axis, keepdim=True)
    tied = score <= best + 1e-12 * best.abs().clamp(min=1)
    order = tied.long().cumsum(cost.axis)
    chosen = tied & (order == (order.amax(cost.axis, keepdim=True) if last else 1))
    return chosen * mass.unsqueeze(cost.axis)


def example(gradient: Tensor, plan: Tensor) -> dict[str, Any]:
    """What a plan on the two pixels is worth, and spends."""
    value, spent = float((plan * gradient.unsqueeze(1)).sum()), float(plan[0, 0, 1])
    return dict(plan=plan[0].tolist(), value=value, spent=spent, feasible=spent <= BUDGET * (1 + 1e-9))


def two_pixels(ledger: Ledger) -> None:
    gradient, mass = torch.tensor([[[1.0, -1.0]], [[1.0, 0.0]]], dtype=torch.float64)
    exact = linear_minimizer(gradient, mass, BUDGET, TWO, return_plan=True)
    soft = entropic_bisection_oracle(gradient, mass, BUDGET, TWO, gamma=1e-3)
    tilted = gradient + torch.tensor([TILT, -TILT], dtype=torch.float64)
    plans = {
        "read off the dual, ties to the first": naive(gradient, mass, exact.lam, TWO, last=False),
        "read off the dual, ties to the last": naive(gradient, mass, exact.lam, TWO, last=True),
        f"read off the dual, gradient off by {TILT:g}": naive(tilted, mass, exact.lam, TWO, last=False),
        "the paper's, γ=1e-3": _plan(soft),
        "exact": _plan(exact),
    }
    for method, plan in plans.items():
        ledger.row(dict(problem="two pixels", method=method), partial(example, gradient, plan))


def images(setting: Setting, ledger: Ledger) -> None:
    """The same on random images, where gradients have no ties: then λ decides between one side and the other."""
    draws = 20 if setting.quick else DRAWS
    generator = torch.Generator().manual_seed(setting.options.seed)
    mass = torch.rand(draws, 1, SIZE, SIZE, generator=generator, dtype=torch.float64)
    gradient = torch.randn(draws, 1, SIZE, SIZE, generator=generator, dtype=torch.float64)
    budget, cost = EPS * mass.flatten(1).sum(1), wb.LocalCost(5)
    exact = linear_minimizer(gradient, mass, budget, cost, return_plan=True)
    soft = entropic_bisection_oracle(gradient, mass, budget, cost, gamma=1e-3)
    stays = (gradient * mass).flatten(1).sum(1)
    best = stays - (gradient * exact.image).flatten(1).sum(1)

    def judged(plan: Tensor) -> Mapping[str, Any]:
        gained = stays - (gradient * cost.scatter(plan)).flatten(1).sum(1)
        spent = cost.spent(plan, mass) / budget
        return dict(
            samples=draws,
            spent=[float(spent.min()), float(spent.max())],
            gained=[float((gained / best).min()), float((gained / best).max())],
            infeasible=int((spent > 1 + 1e-9).sum()),
        )

    for method, plan in {
        "read off the dual, λ 1e-9 too small": naive(gradient, mass, exact.lam * (1 - TILT), cost, last=False),
        "read off the dual, λ 1e-9 too large": naive(gradient, mass, exact.lam * (1 + TILT), cost, last=False),
        "the paper's, γ=1e-3": _plan(soft),
        "exact": _plan(exact),
    }.items():
        ledger.row(dict(problem="images", method=method), partial(judged, plan))


def measure(setting: Setting, ledger: Ledger) -> None:
    two_pixels(ledger)
    images(setting, ledger)


def table(ledger: Ledger) -> str:
    first = [
        [row["method"], _entries(row["plan"]), f"{row['value']:.3f}", f"{row['spent']:.3f}", _verdict(row["feasible"])]
        for row in ledger.find(problem="two pixels")
    ]
    second = [
        [row["method"], _range(row["spent"]), _range(row["gained"]), f"{row['infeasible']} of {row['samples']}"]
        for row in ledger.find(problem="images")
    ]
    budget = f"{BUDGET:g}"
    return "\n\n".join(
        [
            f"The paper's example, two pixels and a budget of {budget} (the best value is 0):",
            markdown(["plan", "first row", "value", "spent", f"within {budget}"], first),
            f"Random images of {SIZE}×{SIZE} pixels, 5×5 window, eps {EPS:g}, budget and best gain as 100%:",
            markdown(["plan", "spends", "gains", "over budget"], second),
        ]
    )


def _plan(solution: Solution) -> Tensor:
    assert solution.plan is not None
    return solution.plan


def _entries(plan: list[list[float]]) -> str:
    return ", ".join(f"{entry:.3g}" for entry in plan[0])


def _verdict(feasible: bool) -> str:
    return "yes" if feasible else "**no**"


def _range(ends: list[float]) -> str:
    return f"{100 * ends[0]:.2f} … {100 * ends[1]:.2f}%"


EXPERIMENT = Experiment(
    name="toy-lmo",
    summary="App. D: reading the linear oracle off its dual, the entropic oracle, and the exact one.",
    measure=measure,
    table=table,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
