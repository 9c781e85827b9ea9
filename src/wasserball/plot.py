"""Pictures of moved mass: clean, moved and difference side by side, and the transport itself as arrows.

A figure is returned, never shown, and knows nothing of pyplot; each is put together from the panels at the end, which
draw into axes of the caller's. Matplotlib is imported where it is used.
"""

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
CHANGE = "RdBu_r"
"""Red where mass arrived, blue where it left."""


def moved(
    images: Tensor,
    adversarial: Tensor,
    *,
    samples: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
    bounds: tuple[float, float] | None = (0, 1),
) -> "Figure":
    """Clean | moved | difference, a row for each of ``samples`` (the first four), ``titles`` beside the rows.

    Grey or RGB images; ``bounds=None`` scales the brightness to the brightest pixel. The difference is the change in
    mass of a pixel, all channels together, on one symmetric scale for the whole figure.
    """
    check_floating("images", images)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images must have shape (B, 1, H, W) or (B, 3, H, W), got {tuple(images.shape)}")
    check_shape("adversarial", check_floating("adversarial", adversarial), images.shape)
    for name, tensor in (("images", images), ("adversarial", adversarial)):
        check_range(name, tensor)
    chosen = list(range(min(4, len(images))) if samples is None else samples)
    check_count("len(samples)", len(chosen))
    for sample in chosen:
        _check_index("samples", sample, len(images))
    if titles is not None and len(titles) != len(chosen):
        raise ValueError(f"titles must hold one for each of {len(chosen)} samples, got {len(titles)}")
    clean, dirty = images[chosen].detach().cpu(), adversarial[chosen].detach().cpu()
    high = float(torch.maximum(clean, dirty).max()) if bounds is None else check_bounds(bounds)
    change = (dirty - clean).sum(1)
    limit = float(change.abs().max())

    side = 2.4
    height = side * images.shape[2] / images.shape[3]
    figure = blank_figure(3 * side + 1.2, len(chosen) * height + 0.5)
    axes = figure.subplots(len(chosen), 3, squeeze=False)
    for row, (before, after, difference) in enumerate(zip(clean, dirty, change, strict=True)):
        image_panel(axes[row, 0], before, high=high)
        image_panel(axes[row, 1], after, high=high)
        drawn = change_panel(axes[row, 2], difference, limit=limit)
        if titles is not None:
            axes[row, 0].set_ylabel(titles[row], color=FADED, fontsize=10)
    for axis, title in zip(axes[0], ("clean", "moved", "difference"), strict=True):
        caption(axis, title)
    change_scale(figure, drawn, list(axes[:, 2]))
    return figure


def arrows(
    plan: TransportPlan, sample: int = 0, channel: int = 0, *, count: int = 200, title: str | None = None
) -> "Figure":
    """One channel of the clean image in grey, and the ``count`` largest moves of its mass as arrows."""
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
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    return figure


def caption(axes: "Axes", title: str, remark: str = "") -> None:
    """A title above a panel and a remark below it."""
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.set_xlabel(remark, loc="left", color=FADED, fontsize=10)


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


def change_scale(figure: "Figure", drawn: "AxesImage", axes: "Sequence[Axes]") -> None:
    """The colour bar of :func:`change_panel`, beside ``axes``."""
    bar = figure.colorbar(drawn, ax=axes, fraction=0.05, pad=0.03, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, labelcolor=INK, color=FRAME)


def arrow_panel(axes: "Axes", plan: TransportPlan, sample: int, channel: int, *, count: int) -> None:
    """What :func:`arrows` draws. The more mass, the wider and the darker an arrow."""
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
    # Light greys only, so that arrows are read against black and white pixels alike.
    white = float(clean.max()) or 1.0
    axes.imshow(clean.numpy(), cmap="gray", vmin=-2 * white, vmax=white)
    mass, order = entries.flatten().topk(min(count, entries.numel()))
    moves = torch.stack(torch.unravel_index(order, entries.shape), 1)
    # Smallest first, so that the largest lie on top.
    for amount, (k, row, column) in zip(mass.flip(0).tolist(), moves.flip(0).tolist(), strict=True):
        if amount == 0:
            continue
        share = amount / float(mass[0])
        down, right = cost.offsets[k]
        arrow = FancyArrowPatch(
            (column, row),
            (column + right, row + down),
            arrowstyle="-|>",
            mutation_scale=3 + 4 * share,
            linewidth=0.4 + 1.2 * share,
            shrinkA=0,
            shrinkB=0,
            color=ACCENT,
            alpha=0.25 + 0.75 * share,
        )
        axes.add_patch(arrow)


def _frame(axes: "Axes") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(FRAME)


def _check_index(name: str, index: int, length: int) -> None:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < length:
        raise ValueError(f"{name} must be from 0 to {length - 1}, got {index!r}")
