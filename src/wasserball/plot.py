"""Pictures of moved mass: clean and adversarial images with their difference, and the transport itself as arrows.

A figure is returned, never shown, and knows nothing of pyplot; each is put together from the panels at the end, which
draw into axes of the caller's. Matplotlib is imported where it is used.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wasserball.checks import check_bounds, check_count, check_floating, check_range, check_shape
from wasserball.plan import TransportPlan
from wasserball.threat import LocalCost

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

INK = "#1f2933"
FADED = "#616e7c"
FRAME = "#cbd2d9"
ACCENT = "#c2255c"
ARROW = "#ffb224"
CHANGE = "RdBu_r"
"""Red where mass arrived, blue where it left."""
CHARACTERS = 9
"""Of a heading, that fit in an inch."""


def moved(
    images: Tensor,
    adversarial: Tensor,
    *,
    labels: Tensor | Sequence[int] | None = None,
    predictions: Tensor | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    samples: Sequence[int] | None = None,
    bounds: tuple[float, float] | None = (0, 1),
) -> "Figure":
    """Clean, adversarial and what moved, one below the other, for each of ``samples`` (the first eight) side by side.

    Grey or RGB images; ``bounds=None`` scales the brightness to the brightest pixel. What moved is the change in mass
    of a pixel, all channels together, on one symmetric scale for the whole figure. ``labels`` and ``predictions``,
    ``(B,)`` each, stand above the clean and the adversarial images, by their ``names`` where there are some.

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> result = wb.PGD(eps=0.3, steps=20)(model, images, labels)
    >>> figure = wb.plot.moved(images, result.adversarial, labels=labels, predictions=result.prediction)
    >>> figure.savefig("moved.png")
    """
    check_floating("images", images)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images must have shape (B, 1, H, W) or (B, 3, H, W), got {tuple(images.shape)}")
    check_shape("adversarial", check_floating("adversarial", adversarial), images.shape)
    for name, tensor in (("images", images), ("adversarial", adversarial)):
        check_range(name, tensor)
    chosen = list(range(min(8, len(images))) if samples is None else samples)
    check_count("len(samples)", len(chosen))
    for sample in chosen:
        _check_index("samples", sample, len(images))
    side = min(2.4, 9 / len(chosen))
    characters = max(1, int(CHARACTERS * side))
    above = [
        [textwrap.fill(word, characters) for word in _class_names(name, classes, names, len(images), chosen)]
        for name, classes in (("labels", labels), ("predictions", predictions))
    ]
    clean, dirty = images[chosen].detach().cpu(), adversarial[chosen].detach().cpu()
    high = float(torch.maximum(clean, dirty).max()) if bounds is None else check_bounds(bounds)

    height = side * images.shape[2] / images.shape[3]
    lines = sum(max(word.count("\n") + 1 for word in words) for words in above if words)
    figure = blank_figure(len(chosen) * side + 1.6, 3 * height + 0.18 * lines + 0.1)
    axes = figure.subplots(3, len(chosen), squeeze=False)
    moved_panels(axes.tolist(), clean, dirty, labels=above[0], predictions=above[1], high=high)
    figure.draw_without_rendering()  # the layout is iterative, and one more turn makes it exact
    return figure


def arrows(
    plan: TransportPlan, sample: int = 0, channel: int = 0, *, count: int = 200, title: str | None = None
) -> "Figure":
    """One channel of the clean image in grey, and the ``count`` largest moves of its mass as arrows.

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> result = wb.PGD(eps=0.3, steps=20, return_plan=True)(model, images, labels)
    >>> wb.plot.arrows(result.plan, sample=2, title="A one").savefig("arrows.png")
    """
    figure = blank_figure(5.0, 5.0 if title is None else 5.3)
    axes = figure.subplots()
    arrow_panel(axes, plan, sample, channel, count=count)
    if title is not None:
        caption(axes, title)
    return figure


def blank_figure(width: float, height: float) -> "Figure":
    """An opaque white figure, in inches, that arranges what is drawn into it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    return figure


def caption(axes: "Axes", title: str, remark: str = "") -> None:
    """A title above a panel and a remark below it."""
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.set_xlabel(remark, loc="left", color=FADED, fontsize=10)


def moved_panels(
    axes: "Sequence[Sequence[Axes]]",
    clean: Tensor,
    dirty: Tensor,
    *,
    labels: Sequence[str] = (),
    predictions: Sequence[str] = (),
    high: float,
) -> None:
    """What :func:`moved` draws into three rows of axes, with the words above the images; a new answer is red."""
    change = (dirty - clean).sum(1)
    limit = float(change.abs().max())
    for column, (before, after, difference) in enumerate(zip(clean, dirty, change, strict=True)):
        image_panel(axes[0][column], before, high=high)
        image_panel(axes[1][column], after, high=high)
        drawn = change_panel(axes[2][column], difference, limit=limit)
    for row, words in enumerate((labels, predictions)):
        for column, word in enumerate(words):
            new = row == 1 and labels and word != labels[column]
            axes[row][column].set_title(word, color=ACCENT if new else INK, fontsize=11, pad=4)
    for panels, name in zip(axes, ("clean", "adversarial", "what moved"), strict=True):
        panels[0].set_ylabel(name, rotation=0, ha="right", va="center", color=FADED, fontsize=10)
    change_scale(axes[2][-1], drawn)


def image_panel(axes: "Axes", image: Tensor, *, high: float) -> None:
    """An image ``(1, H, W)`` or ``(3, H, W)`` with ``high`` as white."""
    _frame(axes)
    pixels = (image.detach().cpu().double() / (high or 1.0)).clamp(0, 1)
    axes.imshow(pixels.permute(1, 2, 0).expand(-1, -1, 3).numpy())


def change_panel(axes: "Axes", change: Tensor, *, limit: float) -> "AxesImage":
    """A signed change ``(H, W)`` from ``-limit`` to ``limit``, white where there is none."""
    _frame(axes)
    limit = limit or 1.0
    return axes.imshow(change.detach().cpu().double().numpy(), cmap=CHANGE, vmin=-limit, vmax=limit)


def change_scale(panel: "Axes", drawn: "AxesImage") -> None:
    """The colour bar of :func:`change_panel`, right of a panel and as high."""
    from matplotlib.ticker import MaxNLocator

    # An inset takes no room from its panel, which stays in line with those above it.
    bar = panel.figure.colorbar(drawn, cax=panel.inset_axes((1.07, 0, 0.06, 1)), ticks=MaxNLocator(4))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, labelcolor=INK, color=FRAME)


def arrow_panel(axes: "Axes", plan: TransportPlan, sample: int, channel: int, *, count: int) -> None:
    """What :func:`arrows` draws. The more mass, the wider and the brighter an arrow."""
    from matplotlib.patches import FancyArrowPatch

    cost = plan.cost if isinstance(plan, TransportPlan) else plan
    if not isinstance(cost, LocalCost):
        raise ValueError(f"plan must be a TransportPlan with a LocalCost, got {type(cost).__name__}")
    check_range("plan", plan.values, 0)
    _check_index("sample", sample, plan.values.shape[0])
    _check_index("channel", channel, plan.values.shape[2])
    check_count("count", count)
    clean = plan.row_sums[sample, channel].detach().cpu()
    entries = plan.values[sample, :, channel].detach().cpu().double().clone()
    entries[cost.offsets.index((0, 0))] = 0  # what stays
    _frame(axes)
    # Dark greys only, so that arrows are read against black and white pixels alike.
    white = float(clean.max()) or 1.0
    axes.imshow(clean.numpy(), cmap="gray", vmin=-0.1 * white, vmax=2.1 * white)
    mass, order = entries.flatten().topk(min(count, entries.numel()))
    moves = torch.stack(torch.unravel_index(order, entries.shape), 1)
    # Smallest first, so that the largest lie on top.
    for amount, (k, row, column) in zip(mass.flip(0).tolist(), moves.flip(0).tolist(), strict=True):
        if amount == 0:
            continue
        weight = math.sqrt(amount / float(mass[0]))
        down, right = cost.offsets[k]
        arrow = FancyArrowPatch(
            (column, row),
            (column + right, row + down),
            arrowstyle="-|>",
            mutation_scale=3 + 5 * weight,
            linewidth=0.4 + 1.4 * weight,
            shrinkA=0,
            shrinkB=0,
            color=ARROW,
            alpha=0.3 + 0.7 * weight,
        )
        axes.add_patch(arrow)


def _frame(axes: "Axes") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(FRAME)


def _class_names(
    argument: str, classes: Tensor | Sequence[int] | None, names: Sequence[str] | None, batch: int, samples: list[int]
) -> list[str]:
    if classes is None:
        return []
    if len(classes) != batch:
        raise ValueError(f"{argument} must hold one for each of {batch} images, got {len(classes)}")
    indices = [int(classes[sample]) for sample in samples]
    if names is None:
        return [str(index) for index in indices]
    for index in indices:
        _check_index(argument, index, len(names))
    return [names[index] for index in indices]


def _check_index(name: str, index: int, length: int) -> None:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < length:
        raise ValueError(f"{name} must be from 0 to {length - 1}, got {index!r}")
