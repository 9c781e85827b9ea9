"""Figures are made of what was asked for, on an opaque white ground, and bad input is named."""

import io
import subprocess
import sys

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
    figure = plot.moved(clean, clean.flip(-1), samples=[4, 1], titles=["seven", "one"])
    panels = figure.axes[:6]
    assert len(figure.axes) == 7  # and the colour bar
    assert [panel.get_title("left") for panel in panels[:3]] == ["clean", "moved", "difference"]
    assert [panel.get_ylabel() for panel in panels[::3]] == ["seven", "one"]
    for row, sample in enumerate((4, 1)):
        before, after, difference = panels[3 * row : 3 * row + 3]
        pixels = clean[sample].permute(1, 2, 0).expand(-1, -1, 3).double()
        torch.testing.assert_close(shown(before), pixels)
        torch.testing.assert_close(shown(after), pixels.flip(1))
        change = (clean.flip(-1) - clean)[[4, 1]].sum(1)
        torch.testing.assert_close(shown(difference), change[row].double())
        limit = float(change.abs().max())
        assert difference.images[0].get_clim() == (-limit, limit)


def test_moved_shows_four_samples_unless_told() -> None:
    assert len(plot.moved(images(6, 1, 4, 4), images(6, 1, 4, 4)).axes) == 4 * 3 + 1
    assert len(plot.moved(images(2, 1, 4, 4), images(2, 1, 4, 4)).axes) == 2 * 3 + 1


def test_figures_are_opaque_and_white_at_the_edge() -> None:
    black = torch.zeros(1, 1, 4, 4)
    for figure in (plot.moved(black, black, bounds=None), plot.arrows(shifted(black), title="nothing")):
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
        ("titles", GOOD, GOOD, dict(titles=["one"])),
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
