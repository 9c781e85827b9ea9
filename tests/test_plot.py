"""Figures are made of what was asked for, on an opaque white ground, and bad input is named."""

import io
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from torch import Tensor

import wasserball as wb
from wasserball import plot


def images(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def shifted(mass: Tensor) -> wb.TransportPlan:
    """Half of pixel (0, 0) goes one to the right, a quarter of it two down."""
    cost = wb.LocalCost(5)
    plan = cost.identity(mass)
    for share, offset in ((0.5, (0, 1)), (0.25, (2, 0))):
        plan[:, cost.offsets.index(offset), :, 0, 0] = share * mass[:, :, 0, 0]
    plan[:, cost.offsets.index((0, 0)), :, 0, 0] *= 0.25
    return wb.TransportPlan(plan, cost)


def render(figure: Figure) -> Tensor:
    """The pixels of the figure, as saved with no options."""
    from matplotlib.image import imread

    file = io.BytesIO()
    figure.savefig(file)
    file.seek(0)
    return torch.from_numpy(np.asarray(imread(file)))


def shown(panel: Axes) -> Tensor:
    """The array that a panel shows."""
    array = panel.images[0].get_array()
    assert array is not None
    return torch.from_numpy(np.ma.getdata(array))


def test_importing_plot_needs_no_matplotlib() -> None:
    code = "import sys, wasserball.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_moved_has_three_panels_for_each_sample(channels: int) -> None:
    clean = images(6, channels, 5, 7)
    figure = plot.moved(clean, clean.flip(-1), samples=[4, 1])
    panels = figure.axes
    assert len(panels) == 6
    assert [panel.get_ylabel() for panel in panels] == ["clean", "", "adversarial", "", "what moved", ""]
    assert not any(panel.get_title() for panel in panels)
    for column, sample in enumerate((4, 1)):
        before, after, difference = panels[column::2]
        pixels = clean[sample].permute(1, 2, 0).expand(-1, -1, 3).double()
        torch.testing.assert_close(shown(before), pixels)
        torch.testing.assert_close(shown(after), pixels.flip(1))
        change = (clean.flip(-1) - clean)[[4, 1]].sum(1)
        torch.testing.assert_close(shown(difference), change[column].double())
        limit = float(change.abs().max())
        assert difference.images[0].get_clim() == (-limit, limit)
        assert len(difference.child_axes) == column  # the colour bar, at the last one


def test_moved_shows_eight_samples_unless_told() -> None:
    assert len(plot.moved(images(9, 1, 4, 4), images(9, 1, 4, 4)).axes) == 8 * 3
    assert len(plot.moved(images(2, 1, 4, 4), images(2, 1, 4, 4)).axes) == 2 * 3


NAMES = ["zero", "one", "a word that is long", "three"]


@pytest.mark.parametrize(
    ("names", "before", "after"),
    [(None, ["0", "1", "2"], ["3", "1", "0"]), (NAMES, NAMES[:3], ["three", "one", "zero"])],
)
def test_moved_says_what_was_and_what_is_seen(names: list[str] | None, before: list[str], after: list[str]) -> None:
    clean = images(4, 1, 4, 4)
    labels, predictions = torch.tensor([3, 0, 1, 2]), [0, 3, 1, 0]
    figure = plot.moved(clean, clean, labels=labels, predictions=predictions, names=names, samples=[1, 2, 3])
    titles = [panel.title for panel in figure.axes[:9]]
    words = [title.get_text().replace("\n", " ") for title in titles]
    assert words == [*before, *after, "", "", ""]
    assert [title.get_color() for title in titles[:6]] == [*[plot.INK] * 3, plot.ACCENT, plot.INK, plot.ACCENT]


@pytest.mark.parametrize("count", [1, 3, 8])
def test_panels_are_in_line(count: int) -> None:
    clean = images(count, 1, 28, 28)
    figure = plot.moved(clean, clean.flip(-1), labels=range(count))
    render(figure)
    boxes = [panel.get_window_extent() for panel in figure.axes]
    for box, below in zip(boxes, boxes[count:], strict=False):
        assert (box.x0, box.x1) == pytest.approx((below.x0, below.x1), abs=0.5)
    for box, beside in pairwise(boxes[:count]):
        assert (box.y0, box.y1) == pytest.approx((beside.y0, beside.y1), abs=0.5)


def test_headings_keep_to_their_panels() -> None:
    clean = images(8, 1, 28, 28)
    names = ["an extraordinarily long name for a class", "Pneumonoultramicroscopicsilicovolcanoconiosis"] * 4
    figure = plot.moved(clean, clean, labels=range(8), predictions=range(7, -1, -1), names=names)
    render(figure)
    boxes = [panel.title.get_window_extent() for panel in figure.axes[:16]]
    for row in (boxes[:8], boxes[8:]):
        assert all(left.x1 < right.x0 for left, right in pairwise(row))
    pictures = [panel.get_window_extent() for panel in figure.axes[:16]]
    assert all(title.y0 >= picture.y1 for title, picture in zip(boxes, pictures, strict=True))
    assert min(title.y0 for title in boxes[8:]) < max(title.y1 for title in boxes[8:]) < pictures[0].y0
    assert max(title.y1 for title in boxes) < figure.bbox.y1


def test_figures_are_opaque_and_white_at_the_edge() -> None:
    black = torch.zeros(1, 1, 4, 4)
    several = [
        plot.moved(mass, mass.flip(-1)) for mass in (images(1, 1, 28, 28), images(2, 3, 9, 5), images(8, 1, 4, 7))
    ]
    for figure in (*several, plot.moved(black, black, bounds=None), plot.arrows(shifted(black), title="nothing")):
        pixels = render(figure)
        assert (pixels[..., 3] == 1).all()
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert (edge == 1).all()


def test_arrows_follow_the_largest_moves() -> None:
    mass = images(2, 3, 6, 6).double() + 0.1
    plan = shifted(mass)
    before = plan.values.clone()
    for count, ends in ((1, [(1, 0)]), (2, [(0, 2), (1, 0)]), (500, [(0, 2), (1, 0)])):
        figure = plot.arrows(plan, sample=1, channel=2, count=count, title="a plan")
        (panel,) = figure.axes
        drawn = [patch for patch in panel.patches if isinstance(patch, FancyArrowPatch)]
        assert [patch._posA_posB for patch in drawn] == [[(0, 0), end] for end in ends]  # type: ignore[attr-defined]
        widths = [patch.get_linewidth() for patch in drawn]
        assert widths == sorted(widths)
        torch.testing.assert_close(shown(panel), mass[1, 2])
    assert torch.equal(plan.values, before)


GOOD = images(2, 1, 4, 4)


@pytest.mark.parametrize(
    ("match", "clean", "adversarial", "options"),
    [
        ("images", images(4, 4), GOOD, {}),
        ("images", images(2, 2, 4, 4), GOOD, {}),
        ("images", GOOD.int(), GOOD, {}),
        ("images", GOOD * torch.nan, GOOD, {}),
        ("adversarial", GOOD, GOOD[:1], {}),
        ("adversarial", GOOD, GOOD / 0, {}),
        ("samples", GOOD, GOOD, dict(samples=[])),
        ("samples", GOOD, GOOD, dict(samples=[2])),
        ("samples", GOOD, GOOD, dict(samples=[-1])),
        ("labels", GOOD, GOOD, dict(labels=[1])),
        ("labels", GOOD, GOOD, dict(labels=torch.tensor([0, -1]), names=NAMES)),
        ("predictions", GOOD, GOOD, dict(predictions=torch.zeros(3, dtype=torch.int64))),
        ("predictions", GOOD, GOOD, dict(predictions=[0, 4], names=NAMES)),
        ("bounds", GOOD, GOOD, dict(bounds=(0.1, 1))),
    ],
)
def test_moved_names_what_is_wrong(match: str, clean: Tensor, adversarial: Tensor, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=match):
        plot.moved(clean, adversarial, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("plan", dict(plan=shifted(GOOD).values)),
        ("plan", dict(plan=wb.TransportPlan.identity(GOOD[0, 0], wb.DenseCost(1 - torch.eye(4))))),
        ("plan", dict(plan=wb.TransportPlan(-shifted(GOOD).values, wb.LocalCost(5)))),
        ("sample", dict(sample=2)),
        ("channel", dict(channel=1)),
        ("channel", dict(channel=-1)),
        ("count", dict(count=0)),
    ],
)
def test_arrows_names_what_is_wrong(match: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=match):
        plot.arrows(**(dict(plan=shifted(GOOD)) | options))  # type: ignore[arg-type]
