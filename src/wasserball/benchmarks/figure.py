"""What was measured as one picture: how much faster than the paper's algorithms, and how time grows."""

from typing import TYPE_CHECKING

from wasserball.benchmarks.report import Record, short
from wasserball.benchmarks.scaling import ScalingRow
from wasserball.plot import ACCENT, FADED, FRAME, INK, blank_figure, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f6f8b", ACCENT, "#e8a317", "#5c7f3a", "#6b4e9b")
AXES = {"pixels": "pixels of an image", "window": "side of the window", "batch": "images in the batch"}


def draw(record: Record) -> "Figure":
    """Bars for the ratios to the left, lines for the scaling to the right; what was not measured is left out."""
    count = len(record.operators) + len(record.steps)
    groups = [[row for row in record.scaling if row.axis == axis] for axis in AXES]
    groups = [group for group in groups if group]
    figure = blank_figure(12.0 if count and groups else 7.0, max(4.0, 0.24 * count + 1.2, 2.8 * len(groups)))
    grid = figure.add_gridspec(max(1, len(groups)), 2 if count and groups else 1)
    if count:
        _bars(figure.add_subplot(grid[:, 0]), record)
    for index, group in enumerate(groups):
        _lines(figure.add_subplot(grid[index, -1]), group)
    return figure


def _bars(axes: "Axes", record: Record) -> None:
    bars = [(row.data, row.operator, row.batch, row.ratio) for row in record.operators]
    bars += [(row.model, f"step of {row.attack}", row.batch, row.ratio) for row in record.steps]
    kinds = list(dict.fromkeys(kind for kind, *_ in bars))
    for index, kind in enumerate(kinds):
        own = [(place, ratio) for place, (name, _, _, ratio) in enumerate(bars) if name == kind]
        drawn = axes.barh(*zip(*own, strict=True), color=COLOURS[index % len(COLOURS)], label=kind)
        axes.bar_label(drawn, [f"{short(ratio)}×" for _, ratio in own], padding=3, fontsize=8, color=INK)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    ratios = [ratio for *_, ratio in bars]
    axes.set_xlim(min(0.5, min(ratios) / 2), 4 * max(1.0, *ratios))
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(bars)), [f"{name}, {batch} images" for _, name, batch, _ in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    caption(axes, "Times faster than the paper's algorithm")
    _tidy(axes)
    axes.grid(visible=False, axis="y")
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.35, -0.05), ncols=4)


def _lines(axes: "Axes", rows: list[ScalingRow]) -> None:
    for row, colour in zip(rows, COLOURS, strict=False):
        label = f"{row.operator}: slope {row.slope:.2f}"
        axes.plot(row.sizes, row.milliseconds, "o-", color=colour, markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(rows[0].sizes, [f"{size:,}" for size in rows[0].sizes])
    axes.minorticks_off()
    caption(axes, f"ms over {AXES[rows[0].axis]}", rows[0].where)
    _tidy(axes)
    axes.legend(fontsize=8, frameon=False)


def _tidy(axes: "Axes") -> None:
    axes.tick_params(labelsize=8, labelcolor=INK, color=FADED)
    for name, spine in axes.spines.items():
        spine.set_color(FRAME)
        spine.set_visible(name in ("left", "bottom"))
    axes.grid(color=FRAME, linewidth=0.5)
    axes.set_axisbelow(True)
