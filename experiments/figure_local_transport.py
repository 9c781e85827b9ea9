"""The figure of docs/threat-model.md: where a pixel's mass may go and at what price, and what an attack makes of it.

wasserball reproduce figure-local-transport [--out docs/images/local-transport.png]
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import wasserball as wb
from wasserball import plot, zoo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPS, SAMPLE = 0.1, 6
BUDGET = "#ffb224"


def price_panel(axes: "Axes", cost: wb.LocalCost) -> None:
    """The window around one pixel, each cell with its price for a unit of mass."""
    from matplotlib.patches import FancyArrowPatch, Rectangle

    reach = cost.window // 2 + 1
    axes.set_xlim(-reach - 0.5, reach + 0.5)
    axes.set_ylim(reach + 0.5, -reach - 0.5)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for row in range(-reach, reach + 1):
        for column in range(-reach, reach + 1):
            inside = max(abs(row), abs(column)) < reach
            price = cost.price(row, column) if inside else 0.0
            shade = f"{0.97 - 0.2 * price / cost.price(reach - 1, reach - 1):.2f}" if inside else "#ffffff"
            colour = BUDGET if (row, column) == (0, 0) else shade
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor=plot.FRAME, linewidth=0.8)
            )
            words = f"{price:.2f}".rstrip("0").rstrip(".") if inside else "–"
            axes.text(
                column,
                row + 0.05,
                words,
                ha="center",
                va="center",
                fontsize=8.5,
                color=plot.INK if inside else plot.FADED,
            )
    axes.add_patch(Rectangle((0.5 - reach, 0.5 - reach), 2 * reach - 1, 2 * reach - 1, fill=False, linewidth=1.6))
    for row, column in ((-1, 2), (1, -1)):
        arrow = FancyArrowPatch(
            (0.25 * column, 0.25 * row),
            (0.72 * column, 0.72 * row),
            arrowstyle="-|>",
            mutation_scale=11,
            color=plot.ACCENT,
            linewidth=1.4,
            shrinkA=0,
            shrinkB=0,
        )
        axes.add_patch(arrow)


def draw() -> "Figure":
    images, labels = (column[SAMPLE : SAMPLE + 1] for column in zoo.load_sample())
    result = wb.PGD(eps=EPS, return_plan=True)(zoo.load_model("mnist-standard"), images, labels)
    assert result.plan is not None
    before, after = int(labels[0]), int(result.prediction[0])
    figure = plot.blank_figure(12.4, 3.5)
    panels = figure.subplots(1, 4)
    price_panel(panels[0], wb.LocalCost())
    plot.caption(panels[0], "1  what a move costs", "the price of one unit, in a 5×5 window")
    plot.arrow_panel(panels[1], result.plan, 0, 0, count=200)
    plot.caption(panels[1], f"2  a plan within eps = {EPS:g}", f"<C, Π> / Σx = {float(result.distance[0]):.4f}")
    plot.image_panel(panels[2], result.adversarial[0], high=1.0)
    plot.caption(panels[2], f"3  a {before} that is seen as {after}", "column sums of the plan, all in [0, 1]")
    change = (result.adversarial - images).sum(1)[0]
    drawn = plot.change_panel(panels[3], change, limit=float(change.abs().max()))
    plot.change_scale(panels[3], drawn)
    plot.caption(panels[3], "4  what moved", "red: mass arrived, blue: it left")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/local-transport.png"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw().savefig(options.out)
    print(options.out)


if __name__ == "__main__":
    main()
