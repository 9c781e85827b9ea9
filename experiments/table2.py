"""The paper's Table 2: does a projection onto the Wasserstein ball end where it should?

Two random images a and b have mass 1, and b is projected onto the balls around a of radius 0.5 and 1.0. The distance
from a to the projection p̂ is known, min(eps, W(a, b)). W is the transport within the window, solved exactly and by code
of its own, not the operators'.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

import wasserball as wb
from wasserball import plot
from wasserball.solvers import Objective

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 3577
"""A draw with the paper's W(a, b) = 0.797."""
RADII = (0.5, 1.0)
GAMMAS = (1e-3, 2e-4, 1e-4, 5e-5)
STEPS = 4_000
"""Of Frank-Wolfe: three digits take about 3,200 at radius 0.5 and 2,500 at 1.0."""

CALLS = 3
"""Of the objective in a step of Frank-Wolfe: its gradient, and two values in the line search."""


def brief(number: float) -> str:
    """One digit, such as 2e-4."""
    return f"{number:.0e}".replace("e-0", "e-")


PGD, FRANK_WOLFE = "PGD", "Frank-Wolfe"
SINKHORN = {gamma: f"projected Sinkhorn, γ={brief(gamma)}" for gamma in GAMMAS}
PAPER: dict[str, tuple[tuple[float, int | None], ...]] = {
    SINKHORN[1e-3]: ((0.267, 28), (0.356, 21)),
    SINKHORN[2e-4]: ((0.402, 44), (0.498, 111)),
    SINKHORN[1e-4]: ((0.437, 205), (0.555, 197)),
    PGD: ((0.500, None), (0.797, None)),
    FRANK_WOLFE: ((0.500, None), (0.797, None)),
}
"""The paper's distances and iterations at each radius; at γ=5e-5 it met numerical issues."""


@dataclass(frozen=True)
class Toy:
    """The problem, with both radii as one batch: ``clean`` is a, a and ``target`` is b, b."""

    clean: Tensor
    target: Tensor
    eps: Tensor
    cost: wb.LocalCost

    @classmethod
    def draw(cls, seed: int, size: int) -> Self:
        """Pixels uniform in [0, 1], then scaled to mass 1."""
        generator = torch.Generator().manual_seed(seed)
        images = torch.rand((2, 1, 1, size, size), generator=generator, dtype=torch.float64)
        clean, target = (images / images.sum((-1, -2), keepdim=True)).repeat(1, len(RADII), 1, 1, 1)
        return cls(clean, target, torch.tensor(RADII, dtype=torch.float64), wb.LocalCost(5))

    @cached_property
    def window(self) -> wb.DenseCost:
        """The price between any two pixels, infinite beyond the window."""
        pixels = torch.cartesian_prod(*(torch.arange(length) for length in self.clean.shape[2:]))
        offset = (pixels[:, None] - pixels).double()
        outside = offset.abs().amax(-1) > self.cost.window // 2
        return wb.DenseCost(offset.norm(dim=-1).masked_fill(outside, torch.inf))

    def certify(self, images: Tensor) -> wb.Certificate:
        """The certificate from the images alone, whose distance is W."""
        return wb.verify(self.clean.flatten(2), images.flatten(2), eps=self.eps, cost=self.window)

    @cached_property
    def truth(self) -> Tensor:
        """How far from a the projections are."""
        return torch.minimum(self.eps, self.certify(self.target).distance)

    def objective(self, images: Tensor) -> Tensor:
        """``½‖p̂ − b‖²``"""
        return (images - self.target).square().flatten(1).sum(1) / 2

    def gap(self, images: Tensor) -> Tensor:
        """``max <p̂ − b, p̂ − s>`` over the ball: nothing in it has an objective that is lower by more than this."""
        gradient = images - self.target
        best = wb.operators.linear_minimizer(gradient, self.clean, self.eps, self.cost).image
        return (gradient * (images - best)).flatten(1).sum(1)


@dataclass(frozen=True)
class Answer:
    """Where a method ended."""

    method: str
    images: Tensor
    plan: wb.TransportPlan | None
    iterations: Tensor
    seconds: float


@dataclass(frozen=True)
class Row:
    """What the table says about a method, for each radius."""

    method: str
    distance: list[float]
    iterations: list[int]
    gap: list[float]
    valid: list[bool]
    seconds: float


def methods(toy: Toy, objective: Objective, steps: int) -> dict[str, Callable[[], wb.operators.Solution | wb.Minimum]]:
    sinkhorn = partial(wb.operators.sinkhorn, toy.target, toy.clean, toy.eps, toy.cost)
    minimize = partial(wb.minimize, objective, toy.clean, eps=toy.eps, cost=toy.cost)
    return {
        **{method: partial(sinkhorn, gamma=gamma) for gamma, method in SINKHORN.items()},
        PGD: partial(minimize, method="pgd", steps=2000, tol=1e-9),
        FRANK_WOLFE: partial(minimize, method="frank-wolfe", steps=steps, tol=1e-9, return_plan=False),
    }


def solve(toy: Toy, steps: int, progress: Progress) -> Iterator[Answer]:
    task = progress.add_task("")

    def objective(images: Tensor) -> Tensor:
        progress.advance(task)
        return toy.objective(images)

    for method, project in methods(toy, objective, steps).items():
        progress.reset(task, description=method, total=CALLS * steps if method == FRANK_WOLFE else None)
        start = time.perf_counter()
        found = project()
        seconds = time.perf_counter() - start
        plan = None if found.plan is None else wb.TransportPlan(found.plan, toy.cost)
        yield Answer(method, found.image, plan, found.iterations, seconds)


def measure(toy: Toy, answer: Answer) -> Row:
    certificate = toy.certify(answer.images)
    return Row(
        answer.method,
        distance=certificate.distance.tolist(),
        iterations=answer.iterations.tolist(),
        gap=toy.gap(answer.images).tolist(),
        valid=certificate.valid.tolist(),
        seconds=round(answer.seconds, 3),
    )


def table(toy: Toy, rows: Sequence[Row], seed: int) -> Table:
    distance = toy.certify(toy.target).distance[0]
    grid = Table(
        title=f"Table 2: the projection p̂ of b onto the ball around a\nseed {seed}, W(a, b) = {distance:.6f}",
        caption="gap: nothing in the ball has a ½‖p̂ − b‖² that is lower by more than this",
    )
    grid.add_column("method")
    for heading in ("W(a, p̂)", "iter.", "gap", "paper W", "iter."):
        grid.add_column(heading, justify="right")
    for radius, (eps, truth) in enumerate(zip(RADII, toy.truth.tolist(), strict=True)):
        grid.add_row(f"[bold]eps = {eps}")
        for row in rows:
            paper = PAPER.get(row.method)
            there, turns = paper[radius] if paper else (None, None)
            found = row.distance[radius]
            grid.add_row(
                f"  {row.method}",
                f"[{'green' if abs(found - truth) < 5e-4 else 'yellow'}]{found:.6f}",
                str(row.iterations[radius]),
                brief(row.gap[radius]),
                f"[dim]{there:.3f}" if there else "[dim]–",
                f"[dim]{turns}" if turns else "[dim]–",
            )
        grid.add_row(
            "  ground truth", f"{truth:.6f}", "", "", f"[dim]{PAPER[PGD][radius][0]:.3f}", "", end_section=True
        )
    return grid


def picture(toy: Toy, sinkhorn: Answer, exact: Answer) -> "Figure":
    """What two methods make of the smaller radius, and the mass that the exact projection moves."""
    assert exact.plan is not None
    distances = [float(toy.certify(images).distance[0]) for images in (toy.target, sinkhorn.images, exact.images)]
    white = float(torch.maximum(toy.clean, toy.target).max())
    change = (exact.images - toy.clean)[0, 0]
    figure = plot.blank_figure(9, 6.9)
    (target, entropic, projected), (clean, difference, transport) = figure.subplots(2, 3)
    for panel, images, title, remark in (
        (target, toy.target, "b", f"to be projected, W(a, b) = {distances[0]:.3f}"),
        (entropic, sinkhorn.images, sinkhorn.method, f"W(a, p̂) = {distances[1]:.3f}, not {toy.truth[0]:.3f}"),
        (projected, exact.images, "exact projection", f"W(a, p̂) = {distances[2]:.3f}"),
        (clean, toy.clean, "a", f"the centre of the ball, eps = {RADII[0]}"),
    ):
        plot.image_panel(panel, images[0], high=white)
        plot.caption(panel, title, remark)
    plot.change_panel(difference, change, limit=float(change.abs().max()))
    plot.caption(difference, "what moved", "from blue pixels to red ones")
    plot.arrow_panel(transport, exact.plan, sample=0, channel=0, count=200)
    plot.caption(transport, "how it moved", "the largest entries of the plan")
    return figure


def run(seed: int, size: int, steps: int, out: Path, copy: Path | None, console: Console) -> None:
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    toy = Toy.draw(seed, size)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        answers = {answer.method: answer for answer in solve(toy, steps, progress)}
    rows = [measure(toy, answer) for answer in answers.values()]
    console.print(table(toy, rows, seed))

    exact, cheap = answers[PGD], answers[FRANK_WOLFE]
    witnessed = wb.verify(toy.clean, exact.images, eps=toy.eps, plan=exact.plan, cost=toy.cost)
    console.print(f"PGD, from its plan:              {witnessed}", soft_wrap=True)
    console.print(f"Frank-Wolfe, from images alone:  {toy.certify(cheap.images)}", soft_wrap=True)

    figure = picture(toy, answers[SINKHORN[1e-3]], exact)
    paths = [out / "table2.png", *([copy] if copy else [])]
    for path in paths:
        figure.savefig(path)
    seconds = time.perf_counter() - start
    record = {
        "seed": seed,
        "size": size,
        "steps": steps,
        "eps": RADII,
        "distance": toy.certify(toy.target).distance[0].item(),
        "truth": toy.truth.tolist(),
        "rows": [asdict(row) for row in rows],
        "paper": PAPER,
        "seconds": round(seconds, 3),
        "versions": {
            "python": platform.python_version(),
            "wasserball": wb.__version__,
            **{name: version(name) for name in ("torch", "numpy", "POT")},
        },
    }
    paths.append(out / "table2.json")
    paths[-1].write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"{seconds:.0f} s, written to {', '.join(map(str, paths))}", soft_wrap=True)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The paper's Table 2: projections onto the Wasserstein ball.")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw of a and b (default: %(default)s)")
    parser.add_argument("--size", type=positive, default=20, help="pixels along a side (default: %(default)s)")
    parser.add_argument("--steps", type=positive, default=STEPS, help="of Frank-Wolfe (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("--picture", type=Path, metavar="PATH", help="where to save the picture as well")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        run(options.seed, options.size, options.steps, options.out, options.picture, console)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
