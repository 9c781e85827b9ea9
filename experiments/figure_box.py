"""A figure of docs/algorithms.md: what the pixel box does to projected gradient ascent, step by step.

Plain PGD, as the page writes it down: the same fixed steps on the same digits with each step projected onto the ball,
and onto ball and box. What is above the box is measured as it is; accuracies are those of the images that are left when
ball and box are kept to, so that all of them could be returned.
"""

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wasserball as wb
from experiments._lab import Experiment, Ledger, Setting, markdown
from wasserball import plot, zoo
from wasserball.operators import box_step, project_box, project_step
from wasserball.operators.rounding import make_feasible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPS, STEP, STEPS = 0.2, 0.1, 60
COST = wb.LocalCost(5)
JUDGED = (1, 2, 3, 5, 8, 12, 20, 30, 45, 60)
IGNORED, KEPT = "box ignored", "box in the loop"


def direction(model: nn.Module, image: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the cross entropy over its largest entry; the model is shown what a clamp leaves."""
    leaf = image.clamp(0, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), labels, reduction="sum"), leaf)
    return gradient / gradient.abs().amax((1, 2, 3), keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)


def ascend(model: nn.Module, images: Tensor, labels: Tensor, steps: int, inside: bool) -> dict[str, Any]:
    """The walk of one kind: after each step the share of the mass above 1, at some the accuracy on valid images."""
    budget = wb.WassersteinBall(images, EPS).budget
    plan, image, lam, mu = COST.identity(images), images, None, None
    above, accuracy = [], []
    for number in range(1, steps + 1):
        problem = plan, direction(model, image, labels), STEP, images, budget, COST
        found = box_step(*problem, lam=lam, mu=mu) if inside else project_step(*problem, lam=lam)
        assert found.plan is not None
        plan, image, lam, mu = found.plan, found.image, found.lam, found.mu
        excess = (image - 1).clamp(min=0).sum((1, 2, 3)) / images.sum((1, 2, 3))
        above.append(100 * float(excess.mean()))
        if number in JUDGED:
            accuracy.append(100 * valid_accuracy(model, images, labels, plan, budget, repair=not inside))
    return dict(
        samples=len(images),
        above=above,
        judged=[number for number in JUDGED if number <= steps],
        accuracy=accuracy,
    )


def valid_accuracy(
    model: nn.Module, images: Tensor, labels: Tensor, plan: Tensor, budget: Tensor, *, repair: bool
) -> float:
    """The accuracy on what is left of a plan in ball and box, by the paper's repair (App. G) or ours alone."""
    if repair:
        repaired = project_box(plan, images, budget, COST).plan
        assert repaired is not None
        plan = repaired
    answer, image, _ = make_feasible(plan, images, budget, COST, 1.0)
    assert wb.verify(images, image, eps=EPS, plan=answer).valid.all()
    with torch.no_grad():
        return float((model(image).argmax(1) == labels).double().mean())


def measure(setting: Setting, ledger: Ledger) -> None:
    samples, steps = (10, 5) if setting.quick else (200, STEPS)
    model = zoo.load_model("mnist-standard")
    images, labels = (column[:samples] for column in zoo.load_sample())
    for method in (IGNORED, KEPT):
        key = dict(method=method, model="mnist-standard", eps=EPS, step=STEP)
        ledger.row(key, partial(ascend, model, images, labels, steps, method == KEPT))


def table(ledger: Ledger) -> str:
    def line(row: dict[str, Any]) -> list[str]:
        return [row["method"], f"{max(row['above']):.2g}", *(f"{value:.1f}" for value in row["accuracy"])]

    judged = [f"step {number}" for number in ledger.rows[0]["judged"]]
    return markdown(["PGD", "most above 1, %", *judged], map(line, ledger.rows))


def picture(ledger: Ledger) -> "Figure":
    figure = plot.blank_figure(7.0, 3.2)
    left, right = figure.subplots(1, 2)
    for method, colour in ((IGNORED, plot.FADED), (KEPT, plot.ACCENT)):
        [row] = ledger.find(method=method)
        left.plot(range(1, len(row["above"]) + 1), row["above"], color=colour, label=method)
        name = f"{method}, repaired" if method == IGNORED else method
        right.plot(row["judged"], row["accuracy"], "o-", color=colour, markersize=3, linewidth=1.2, label=name)
    left.set(ylabel="% of the mass", ylim=(0, None))
    right.set(ylabel="accuracy in %", ylim=(0, 100))
    plot.caption(left, "mass above 1", "against steps; before any repair")
    plot.caption(right, "accuracy on valid images", f"against steps of {STEP:g}; eps = {EPS:g}")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
        axes.grid(color=plot.FRAME, linewidth=0.5)
    return figure


EXPERIMENT = Experiment(
    name="figure-box",
    summary="A figure of docs/algorithms.md: PGD with the box ignored and with the box in the loop, step by step.",
    measure=measure,
    table=table,
    picture=picture,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
