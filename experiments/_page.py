"""The tables of attacks in docs/reproduction.md and the README, the picture of both, and what trainings reached, from
what is in docs/results.

    python -m experiments._page

Each table stands between two comments that say which one it is. A test sees to it that none is out of date.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import (
    _recipes,
    figure_convergence,
    figure_time,
    table3_cifar,
    table3_imagenet,
    table3_mnist,
    table_advtrained,
)
from experiments._lab import ROOT, Experiment, Ledger, Row, markdown
from experiments._table3 import IGNORED_PGD, OURS, REPAIRED_PGD, Plan, accuracy, count, sinkhorn_name
from wasserball import plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = ROOT / "docs" / "results"
PAGES = (
    ROOT / "docs" / "reproduction.md",
    ROOT / "docs" / "training.md",
    ROOT / "docs" / "index.md",
    ROOT / "README.md",
)
PICTURE = ROOT / "docs" / "images" / "headline.png"
HEADLINES: tuple[tuple[str, str, Plan, tuple[float, ...]], ...] = (
    ("MNIST, the paper's standard model", "table3-mnist", table3_mnist.STANDARD, (0.1, 0.2, 0.3)),
    ("MNIST, the paper's robust model", "table-advtrained", table_advtrained.FRANK_WOLFE_TRAINED, (0.3, 0.5)),
    ("MNIST, our `mnist-robust`", "table-advtrained", table_advtrained.ROBUST, (0.3, 0.5)),
    ("CIFAR-10, a ResNet-18 of ours", "table3-cifar", table3_cifar.RESNET18, (0.001, 0.002)),
    ("ImageNet, ResNet-50", "table3-imagenet", table3_imagenet.RESNET50, (0.001, 0.005)),
)
CURVES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (sinkhorn_name(1 / 1000), "paper: projected Sinkhorn, invalid", dict(color=plot.FRAME)),
    (REPAIRED_PGD, "paper: PGD, valid", dict(color=plot.FADED)),
    (IGNORED_PGD, "paper: PGD, box ignored, invalid", dict(color=plot.FADED, linestyle="--")),
    ("PGD", "wasserball: PGD, valid", dict(color=plot.ARROW)),
    ("Auto", "wasserball: Auto, valid", dict(color=plot.ACCENT)),
)


def results(name: str) -> Ledger:
    """What there is of an experiment."""
    return Ledger.open(RESULTS / f"{name}.json", {})


def judged(name: str, plan: Plan) -> list[Row]:
    """What attacks left of a model."""
    return [row for row in results(name).find(model=plan.victim.model) if "held" in row and "eps" in row]


def section(experiment: Experiment) -> str:
    """What an experiment came to, and where that is from."""
    ledger = results(experiment.name)
    return f"{experiment.table(ledger)}\n\n{origin(ledger, experiment.name)}"


def origin(ledger: Ledger, name: str) -> str:
    """The runs of an experiment, in a line."""
    hardware, seeds, commits = (
        ", ".join(dict.fromkeys(str(run[column]) for run in ledger.runs)) for column in ("hardware", "seed", "commit")
    )
    words = f"`wasserball reproduce {name}` · {hardware} · seed {seeds} · commit {commits}"
    return f"*{words} · [numbers](results/{name}.json)*"


def headlines() -> str:
    """One line for each model: the paper's figures, the paper's PGD as it comes out here, and ours."""
    lines = []
    for words, name, plan, radii in HEADLINES:
        rows = judged(name, plan)
        found = [here(rows, method, radii) for method in (REPAIRED_PGD, *OURS)]
        paper = [published(plan, method, radii) for method in (REPAIRED_PGD, IGNORED_PGD)]
        images = count([row for row in rows if row["method"] == "PGD"])
        lines.append([words, images, " / ".join(f"{eps:g}" for eps in radii), *paper, *found])
    headings = ["model", "images", "eps", "paper, valid", "paper, box ignored", "its PGD here, valid"]
    return markdown([*headings, *(f"`{method}`" for method in OURS)], lines)


def here(rows: list[Row], method: str, radii: tuple[float, ...]) -> str:
    """Accuracies at some radii; fewer images than for our PGD are told."""
    mine = [row for row in rows if row["method"] == method and row["eps"] in radii]
    if {row["eps"] for row in mine} != set(radii):
        return "–"
    figures = " / ".join(accuracy([row for row in mine if row["eps"] == eps]) for eps in radii)
    images = count(mine)
    return figures if images == count([row for row in rows if row["method"] == "PGD"]) else f"{figures} (of {images})"


def published(plan: Plan, method: str, radii: tuple[float, ...]) -> str:
    figures = dict(zip(plan.victim.eps, plan.published.get(method, ()), strict=False))
    return " / ".join(f"{figures[eps]:.1f}" for eps in radii) if figures else "–"


BLOCKS: Mapping[str, Callable[[], str]] = {
    "headlines": headlines,
    "recipes": lambda: _recipes.table(results("recipes")),
    **{
        experiment.name: partial(section, experiment)
        for experiment in (
            table3_mnist.EXPERIMENT,
            table3_cifar.EXPERIMENT,
            table3_imagenet.EXPERIMENT,
            table_advtrained.EXPERIMENT,
            figure_convergence.EXPERIMENT,
            figure_time.EXPERIMENT,
        )
    },
}


def picture() -> "Figure":
    """What is left of the paper's two MNIST models, radius by radius: as the paper says, and under our attacks."""
    figure = plot.blank_figure(8.6, 3.3)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (words, name, plan, _) in zip(panels, HEADLINES[:2], strict=True):
        rows = judged(name, plan)
        for method, label, style in CURVES:
            if label.startswith("paper"):
                values = [None if value is None else float(value) for value in plan.published[method]]
                points = [(eps, value) for eps, value in zip(plan.victim.eps, values, strict=True) if value is not None]
            else:
                mine = [row for row in rows if row["method"] == method]
                points = [
                    (eps, float(accuracy([row for row in mine if row["eps"] == eps])))
                    for eps in sorted({row["eps"] for row in mine})
                ]
            panel.plot(*zip(*points, strict=True), label=label, marker="o", markersize=3, **style)
        plot.caption(panel, words)
        panel.set(xlabel="eps: pixels that a unit of mass may move, on average", ylim=(-2, 102))
        panel.set_xticks(plan.victim.eps)
        panel.grid(color=plot.FRAME, linewidth=0.5)
    panels[0].set_ylabel("accuracy under attack, %")
    panels[1].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def refreshed(text: str) -> str:
    """A page with its tables as the results have them."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n\n{BLOCKS[found[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", block, text, flags=re.S)


def main(pages: tuple[Path, ...] = PAGES) -> None:
    picture().savefig(PICTURE, dpi=110)
    for page in pages:
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
