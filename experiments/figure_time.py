"""The paper's Figure 4 and App. F: the time of a dual iteration and of a whole step, plain and ours, at three sizes.

A step is one answer of projected Sinkhorn, of the projection or of the linear oracle, for a batch of images; an
iteration is one pass over its plans. "Plain" are the paper's algorithms and projected Sinkhorn in torch, "ours" is what
attacks call. The digits are real, other images are drawn at random: their time does not depend on what they show.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

import wasserball as wb
from experiments._lab import Experiment, Ledger, Setting, markdown, whole_number
from wasserball import plot, zoo
from wasserball.operators import (
    Solution,
    bisection_projection,
    entropic_bisection_oracle,
    linear_minimizer,
    project_step,
    sinkhorn,
)
from wasserball.operators.sinkhorn import _wright_omega

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COST = wb.LocalCost(5)
REPEATS = 5


class Size(NamedTuple):
    """Images as those of a data set, and what the paper does with them."""

    shape: tuple[int, int, int]
    batch: int
    eps: float
    step: float
    gamma: float
    """Of projected Sinkhorn."""


SIZES = {
    "mnist": Size((1, 28, 28), 100, 0.1, 0.1, 1 / 1000),
    "cifar": Size((3, 32, 32), 100, 0.003, 0.01, 1 / 3000),
    "imagenet": Size((3, 224, 224), 50, 0.003, 0.01, 1 / 100_000),
}
PAPER = {
    "projected Sinkhorn": (18.6, 27.3, 368.0),
    "projection": (2.4, 6.7, 152.0),
    "linear oracle": (1.0, 2.1, 44.6),
}
"""Milliseconds of an iteration on a P100."""
LAMBERT = {"mnist": 26, "cifar": 28, "imagenet": 32}
"""% of an iteration of projected Sinkhorn that the paper found to be in the Lambert function, on an RTX 2080 Ti."""


def problem(size: Size, batch: int, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Images, a gradient whose largest entry is 1, and budgets."""
    generator = torch.Generator().manual_seed(setting.options.seed)
    images = torch.rand(batch, *size.shape, generator=generator)
    if size.shape == (1, 28, 28):
        images = zoo.load_sample()[0][:batch]
    gradient = torch.randn(images.shape, generator=generator)
    gradient /= gradient.abs().amax((1, 2, 3), keepdim=True)
    images, gradient = images.to(setting.device), gradient.to(setting.device)
    return images, gradient, size.eps * images.double().sum((1, 2, 3))


def solvers(size: Size, batch: int, setting: Setting) -> dict[tuple[str, str], Callable[[], Solution]]:
    """By what they solve, and how."""
    mass, gradient, budget = problem(size, batch, setting)
    target = mass + 0.1 * gradient.sign()
    plan = COST.identity(mass)

    def plain_projection() -> Solution:
        return bisection_projection(plan + size.step * COST.gather(gradient), mass, budget, COST)

    ours = partial(project_step, plan, gradient, size.step, mass, budget, COST)
    oracle = partial(linear_minimizer, -gradient, mass, budget, COST)
    entropic = partial(sinkhorn, target, mass, budget, COST, gamma=size.gamma, max_iterations=50)
    return {
        ("projected Sinkhorn", "plain"): partial(entropic, backend="torch"),
        ("projected Sinkhorn", "ours"): entropic,
        ("projection", "plain"): plain_projection,
        ("projection", "ours"): ours,
        ("linear oracle", "plain"): partial(entropic_bisection_oracle, -gradient, mass, budget, COST, gamma=1e-3),
        ("linear oracle", "ours"): oracle,
    }


def clocked(call: Callable[[], Any], device: torch.device) -> float:
    """The best of some times, in milliseconds."""
    best = math.inf
    for turn in range(REPEATS + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if turn:  # the first is for compiling
            best = min(best, time.perf_counter() - started)
    return 1000 * best


def timed(solve: Callable[[], Solution], batch: int, device: torch.device) -> dict[str, Any]:
    iterations = int(solve().iterations.max())  # of the slowest sample, for which all have to wait
    step = clocked(solve, device)
    return dict(samples=batch, iterations=iterations, step=step, iteration=step / iterations)


def lambert_share(size: Size, batch: int, setting: Setting, iteration: float) -> dict[str, Any]:
    """Of an iteration in torch."""
    values = problem(size, batch, setting)[1].double() * 100
    share = clocked(lambda: _wright_omega(values), setting.device) / iteration
    return dict(samples=batch, share=share)


def measure(setting: Setting, ledger: Ledger) -> None:
    where = dict(device=setting.device.type)
    for name in setting.options.only or SIZES:
        size = SIZES[name]
        batch = setting.options.batch_size or (2 if setting.quick else size.batch)
        for (what, how), solve in solvers(size, batch, setting).items():
            setting.console.print(f"[dim]{name}: {what}, {how}")
            key = where | dict(data=name, what=what, how=how)
            row = ledger.row(key, partial(timed, solve, batch, setting.device))
            if (what, how) == ("projected Sinkhorn", "plain"):
                share = partial(lambert_share, size, batch, setting, row["iteration"])
                ledger.row(where | dict(data=name, what="Lambert function"), share)


def table(ledger: Ledger) -> str:
    parts = []
    for device in dict.fromkeys(row["device"] for row in ledger.rows):
        names = [name for name in SIZES if ledger.find(device=device, data=name, what="projection")]
        lines = []
        for what, theirs in PAPER.items():
            for how in ("plain", "ours"):
                cells = [f"{what}, {how}"]
                for name in names:
                    [row] = ledger.find(device=device, data=name, what=what, how=how)
                    paper = dict(zip(SIZES, theirs, strict=True))[name] if how == "plain" else None
                    cells += [_number(row["iteration"]), _number(paper), _number(row["step"])]
                lines.append(cells)
        words = ("an iteration", "paper, P100", "a step")
        headings = ["milliseconds", *(f"{name}, {word}" for name in names for word in words)]
        shares = ", ".join(
            f"{100 * ledger.find(device=device, data=name, what='Lambert function')[0]['share']:.0f}% on {name} images "
            f"(paper: {LAMBERT[name]}%)"
            for name in names
        )
        run = ledger.runs[ledger.find(device=device)[0]["run"]]["hardware"]
        parts += [f"{run}:", markdown(headings, lines), f"The Lambert function takes {shares} of Sinkhorn's iteration."]
    return "\n\n".join(parts)


def picture(ledger: Ledger) -> "Figure":
    devices = list(dict.fromkeys(row["device"] for row in ledger.rows))
    figure = plot.blank_figure(9, 2.9 * len(devices))
    axes = figure.subplots(len(devices), len(SIZES), squeeze=False)
    for panels, device in zip(axes, devices, strict=True):
        for panel, name in zip(panels, SIZES, strict=True):
            rows = ledger.find(device=device, data=name)
            bars = [row for row in rows if "step" in row]
            names = [f"{row['what']}\n{row['how']}" for row in bars]
            colours = [plot.ACCENT if row["how"] == "ours" else plot.FADED for row in bars]
            panel.barh(names, [row["step"] for row in bars], color=colours)
            panel.set_xscale("log")
            panel.invert_yaxis()
            panel.tick_params(labelsize=7)
            plot.caption(panel, f"{name}, {'GPU' if device == 'cuda' else 'CPU'}", "ms a step")
    return figure


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=list(SIZES), help="some of the sizes")
    parser.add_argument("--batch-size", type=whole_number, help="images at a time, the paper's number if not given")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


EXPERIMENT = Experiment(
    name="figure-time",
    summary="Figure 4: the time of a dual iteration and of a whole step, plain and ours.",
    measure=measure,
    table=table,
    picture=picture,
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
