"""A figure of docs/algorithms.md: what a plan spends as λ rises, and the λ that Newton's method and bisection try.

The problem is the projection of one large step of PGD for a bundled digit, as PGD's own first steps are: 3 along the
normalised gradient of the cross entropy of the bundled model, from the clean image. Both searches are the library's,
the paper's bisection beginning at the bound of its Prop. 2.
"""

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

import wasserball as wb
from experiments._lab import Experiment, Ledger, Setting, markdown
from wasserball import plot, zoo
from wasserball.kernels.reference import project_rows
from wasserball.operators import bisection_projection, project_step
from wasserball.operators.dual import spend_budget
from wasserball.operators.projection import upper_bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLE, EPS, STEP = 6, 0.1, 3.0
TOLERANCE = 1e-6
SHOWN = 1.0
"""The largest λ in the picture."""
COST = wb.LocalCost(5)
NEWTON, BISECTION, CURVE = "Newton", "the paper's bisection", "curve"


class Problem:
    """The target of a projection, in float64, and what the plan at a λ spends, as a share of the budget."""

    def __init__(self) -> None:
        images, labels = (column[SAMPLE : SAMPLE + 1] for column in zoo.load_sample())
        leaf = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(zoo.load_model("mnist-standard")(leaf), labels), leaf)
        self.mass = images.double()
        self.direction = gradient.double() / gradient.abs().max()
        self.budget = wb.WassersteinBall(self.mass, EPS).budget
        self.target = COST.identity(self.mass) + STEP * COST.gather(self.direction)
        self.upper = upper_bound(self.target, self.mass, COST)

    def evaluate(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The spending and its slope at each of some λ, by the formulas of the page."""
        price, allowed = COST.entries(self.mass)
        rows = project_rows(self.target - lam.view(-1, 1, 1, 1, 1) * price, self.mass, allowed, COST.axis)
        active = rows.active * price
        spread = active.square().sum(1) - active.sum(1).square() / rows.size
        return (rows.plan * price).sum((1, 2, 3, 4)), -spread.sum((1, 2, 3))

    def newton(self) -> dict[str, Any]:
        """The λ that the library's search tries, one after the other, and what their plans spend."""
        tried: list[tuple[float, float]] = []

        def watched(lam: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            spent, slope = self.evaluate(lam)
            tried.append((float(lam), float(spent / self.budget)))
            return spent, slope

        spend_budget(watched, self.budget, self.upper, torch.zeros_like(self.budget), TOLERANCE)
        found = project_step(COST.identity(self.mass), self.direction, STEP, self.mass, self.budget, COST)
        assert abs(float(found.lam) - tried[-1][0]) < 1e-6 * tried[-1][0], "the library goes another way"
        return _columns(tried)

    def bisection(self) -> dict[str, Any]:
        """The upper ends of the paper's bracket, whose plans are returned after so many iterations."""
        tried = []
        for turns in range(1, 16):
            found = bisection_projection(self.target, self.mass, self.budget, COST, iterations=turns)
            tried.append((float(found.lam), float(found.spent / self.budget)))
        return _columns(tried)

    def curve(self) -> dict[str, Any]:
        """What is spent at some λ, evenly spaced."""
        lam = torch.linspace(0, SHOWN, 101, dtype=torch.float64)
        spent = (self.evaluate(value[None])[0] / self.budget for value in lam)
        return dict(lam=lam.tolist(), spent=[round(float(value), 6) for value in spent])


def _columns(tried: list[tuple[float, float]]) -> dict[str, Any]:
    lam, spent = zip(*tried, strict=True)
    return dict(lam=list(lam), spent=list(spent), evaluations=len(tried))


def measure(_: Setting, ledger: Ledger) -> None:
    problem = Problem()
    for method, trace in ((CURVE, problem.curve), (NEWTON, problem.newton), (BISECTION, problem.bisection)):
        ledger.row(dict(method=method, sample=SAMPLE, eps=EPS, step=STEP), trace)


def table(ledger: Ledger) -> str:
    def line(method: str) -> list[str]:
        [row] = ledger.find(method=method)
        return [method, str(row["evaluations"]), f"{row['lam'][-1]:.6f}", f"{1 - row['spent'][-1]:.0e}"]

    return markdown(["search", "evaluations", "λ", "unspent"], [line(NEWTON), line(BISECTION)])


def picture(ledger: Ledger) -> "Figure":
    figure = plot.blank_figure(7.0, 3.2)
    left, right = figure.subplots(1, 2)
    [curve], [newton], [bisection] = (ledger.find(method=method) for method in (CURVE, NEWTON, BISECTION))
    left.plot(curve["lam"], curve["spent"], color=plot.FADED, linewidth=1.2)
    left.axhline(1, color=plot.FRAME, linewidth=1)
    left.plot(newton["lam"], newton["spent"], "o", color=plot.ACCENT, markersize=5)
    for number, place in enumerate(zip(newton["lam"][:2], newton["spent"][:2], strict=True), start=1):
        left.annotate(str(number), place, (6, 3), textcoords="offset points", fontsize=9, color=plot.ACCENT)
    last = newton["lam"][-1], newton["spent"][-1]
    words = f"3 to {newton['evaluations']}"
    left.annotate(words, last, (7, 5), textcoords="offset points", fontsize=9, color=plot.ACCENT)
    left.set(ylabel="spent / budget", ylim=(0, None))
    for row, name, colour in ((bisection, "bisection", plot.ARROW), (newton, "Newton", plot.ACCENT)):
        misses = [max(abs(1 - spent), 1e-16) for spent in row["spent"]]
        right.plot(range(1, len(misses) + 1), misses, "o-", color=colour, markersize=4, linewidth=1.2, label=name)
    right.axhline(TOLERANCE, color=plot.FRAME, linewidth=1)
    right.set(ylabel="|spent / budget − 1|", yscale="log")
    right.legend(frameon=False, fontsize=8)
    plot.caption(left, "what a plan spends", "against λ; numbered: Newton's tries")
    plot.caption(right, "how far from the budget", "against evaluations; grey: tolerance")
    return figure


EXPERIMENT = Experiment(
    name="figure-newton",
    summary="A figure of docs/algorithms.md: spending against λ, and the λ that Newton's method and bisection try.",
    measure=measure,
    table=table,
    picture=picture,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
