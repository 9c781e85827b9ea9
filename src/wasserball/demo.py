"""What ``wasserball demo`` shows: two bundled models before and after an adversary may move the ink of their digits.

Three attacks work on the first hundred of the bundled digits, the strongest of them also against a model that was
trained to withstand it, and each image that they return is certified. The picture shows some of those that fool the
standard model, and of one of them where its ink went.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wasserball import plot, zoo
from wasserball.attacks import PGD, AttackResult, Auto, FrankWolfe

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

STANDARD, ROBUST = "mnist-standard", "mnist-robust"
COLUMNS = 6
"""Of the picture."""
ARROWS = 200


def attack(name: str, images: Tensor, labels: Tensor, eps: float, steps: int) -> dict[str, AttackResult]:
    """What each attack finds against a bundled model; against the robust one only the strongest tries."""
    model = zoo.load_model(name)
    attacks = {
        "PGD": PGD(eps=eps, steps=steps, progress=True, return_plan=True),
        "Frank-Wolfe": FrankWolfe(eps=eps, steps=steps, progress=True),
        "Auto": Auto(eps=eps, steps=steps, progress=True),
    }
    if name == ROBUST:
        attacks = {"Auto": attacks["Auto"]}
    return {words: attack(model, images, labels) for words, attack in attacks.items()}


def table(results: dict[str, dict[str, AttackResult]], eps: float) -> "Table":
    """The figures of each model, for the terminal."""
    from rich.table import Table

    grid = Table(
        title=f"Under attack, eps = {eps:g}",
        caption="distance: of the images that fool the model; valid: inside ball and box, mass kept",
    )
    grid.add_column("model")
    grid.add_column("attack")
    for heading in ("accuracy", "mean distance", "valid", "seconds"):
        grid.add_column(heading, justify="right")
    for model, found in results.items():
        clean = _accuracy(model, next(iter(found.values())))
        grid.add_row(model, "none", f"{clean:.1%}", *("[dim]–",) * 3)
        for name, result in found.items():
            distance = result.distance[result.success]
            grid.add_row(
                "",
                name,
                f"[bold]{result.robust_accuracy():.1%}",
                f"{distance.mean():.4f}" if len(distance) else "[dim]–",
                f"{result.valid.double().mean():.0%}",
                f"{result.seconds:.1f}",
            )
        grid.add_section()
    return grid


def worth_showing(result: AttackResult) -> list[int]:
    """Samples that were moved and fool the model: one of each label first, then more of them."""
    fooled = (result.success & (result.distance > 0)).nonzero().flatten().tolist()
    labels = result.labels.tolist()
    first = {labels[sample]: sample for sample in reversed(fooled)}.values()
    return sorted([*sorted(first), *(sample for sample in fooled if sample not in first)][:COLUMNS])


def picture(result: AttackResult, samples: Sequence[int]) -> "Figure":
    """Some images that fool the model, and where the ink of the first went."""
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


def run(eps: float, limit: int, steps: int, out: Path, console: "Console") -> None:
    """The whole of it: a table on the console, and demo.png in ``out``."""
    torch.set_num_threads(1)  # the tensors are small: on a busy machine threads would mostly wait for each other
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    images, labels = (column[:limit] for column in zoo.load_sample())
    results = {name: attack(name, images, labels, eps, steps) for name in (STANDARD, ROBUST)}
    console.print(table(results, eps))
    drawn = results[STANDARD]["PGD"]
    shown = worth_showing(drawn)
    if shown:
        picture(drawn, shown).savefig(out / "demo.png")
    written = f"written to {out / 'demo.png'}" if shown else "nothing to draw: PGD fooled the model on none of them"
    console.print(f"{len(labels)} digits, {time.perf_counter() - start:.0f} s, {written}", soft_wrap=True)


@torch.no_grad()
def _accuracy(name: str, result: AttackResult) -> float:
    """On the clean images."""
    return float((zoo.load_model(name)(result.images).argmax(1) == result.labels).double().mean())
