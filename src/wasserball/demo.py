"""What ``make demo`` runs: the bundled model before and after an adversary may move the ink of its digits.

Three attacks work on the first hundred of the bundled digits, and each image that they return is certified. The picture
shows some of those that fool the model, and of one of them where its ink went.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import wasserball as wb
from wasserball import plot, zoo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 6
"""Of the picture."""
ARROWS = 200
STEPS = 30
"""A third of what the attacks do by themselves, to be done in about two minutes."""


def attack(model: nn.Module, images: Tensor, labels: Tensor, eps: float, steps: int) -> dict[str, wb.AttackResult]:
    attacks = {
        "PGD": wb.PGD(eps=eps, steps=steps, progress=True, return_plan=True),
        "Frank-Wolfe": wb.FrankWolfe(eps=eps, steps=steps, progress=True),
        "Auto": wb.Auto(eps=eps, steps=steps, progress=True),
    }
    return {name: attack(model, images, labels) for name, attack in attacks.items()}


def table(clean: float, results: dict[str, wb.AttackResult], eps: float) -> Table:
    grid = Table(
        title=f"mnist-standard under attack, eps = {eps:g}",
        caption="distance: of the images that fool the model; valid: inside ball and box, mass kept",
    )
    grid.add_column("attack")
    for heading in ("accuracy", "mean distance", "valid", "seconds"):
        grid.add_column(heading, justify="right")
    grid.add_row("none", f"{clean:.1%}", *("[dim]–",) * 3, end_section=True)
    for name, result in results.items():
        distance = result.distance[result.success]
        grid.add_row(
            name,
            f"[bold]{result.robust_accuracy():.1%}",
            f"{distance.mean():.4f}" if len(distance) else "[dim]–",
            f"{result.valid.double().mean():.0%}",
            f"{result.seconds:.1f}",
        )
    return grid


def worth_showing(result: wb.AttackResult) -> list[int]:
    """Samples that were moved and fool the model: one of each label first, then more of them."""
    fooled = (result.success & (result.distance > 0)).nonzero().flatten().tolist()
    labels = result.labels.tolist()
    first = {labels[sample]: sample for sample in reversed(fooled)}.values()
    return sorted([*sorted(first), *(sample for sample in fooled if sample not in first)][:COLUMNS])


def picture(result: wb.AttackResult, samples: Sequence[int]) -> "Figure":
    assert result.plan is not None
    chosen = list(samples)
    labels, predictions = (
        [str(word) for word in words[chosen].tolist()] for words in (result.labels, result.prediction)
    )
    figure = plot.blank_figure(len(chosen) + 5.2, 3.65)
    grid = figure.add_gridspec(3, len(chosen) + 1, width_ratios=[*(1.0 for _ in chosen), 3.75])
    panels = [[figure.add_subplot(grid[row, column]) for column in range(len(chosen))] for row in range(3)]
    images = result.images[chosen], result.adversarial[chosen]
    plot.moved_panels(panels, *images, labels=labels, predictions=predictions, high=1.0)
    transport = figure.add_subplot(grid[:, -1])
    plot.arrow_panel(transport, result.plan, sample=chosen[0], channel=0, count=ARROWS)
    plot.caption(transport, f"how a {labels[0]} becomes a {predictions[0]}")
    return figure


def run(eps: float, limit: int, steps: int, out: Path, console: Console) -> None:
    torch.set_num_threads(1)  # the tensors are small: on a busy machine threads would mostly wait for each other
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    model = zoo.load_model("mnist-standard")
    images, labels = (column[:limit] for column in zoo.load_sample())
    with torch.inference_mode():
        clean = float((model(images).argmax(1) == labels).double().mean())
    results = attack(model, images, labels, eps, steps)
    console.print(table(clean, results, eps))
    shown = worth_showing(results["PGD"])
    if shown:
        picture(results["PGD"], shown).savefig(out / "demo.png")
    written = f"written to {out / 'demo.png'}" if shown else "nothing to draw: PGD fooled the model on none of them"
    console.print(f"{len(labels)} digits, {time.perf_counter() - start:.0f} s, {written}", soft_wrap=True)


def radius(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number > 0, got {text}")
    return value


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Attack the bundled model on the bundled digits.")
    parser.add_argument("--eps", type=radius, default=0.1, help="radius relative to the ink (default: %(default)s)")
    parser.add_argument(
        "--limit", type=positive, default=100, metavar="N", help="digits, at most 200 (default: %(default)s)"
    )
    parser.add_argument("--steps", type=positive, default=STEPS, help="of each attack (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        run(options.eps, options.limit, options.steps, options.out, console)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
