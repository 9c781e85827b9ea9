"""``wasserball evaluate``: from a model and images to a verdict."""

from pathlib import Path
from typing import Annotated, Any

import typer

from wasserball.cli import app as shared
from wasserball.cli.app import app
from wasserball.evaluate import evaluate as run_evaluation
from wasserball.evaluate.store import Run
from wasserball.zoo import model_name

LIGHTS = {"pass": "[green]●[/] pass", "warn": "[yellow]●[/] warn", "fail": "[red]●[/] fail"}


@app.command()
def evaluate(
    out: Annotated[Path, typer.Option(file_okay=False, help="The run folder: a new one, or with --resume an old one.")],
    model: shared.Model = "mnist-standard",
    weights: shared.Weights = None,
    normalize: shared.Normalize = None,
    data: shared.DataSource = "mnist-sample",
    split: shared.Split = "test",
    size: shared.Size = None,
    attack: Annotated[str, typer.Option(help="Of pgd, fw, auto, radius, sinkhorn, with commas.")] = "pgd,fw,auto",
    eps: Annotated[str, typer.Option(help="Radii relative to the mass of an image, with commas.")] = "0.1",
    limit: shared.Limit = None,
    steps: shared.Steps = None,
    window: shared.Window = None,
    seed: shared.Seed = 0,
    batch_size: shared.BatchSize = None,
    device: shared.Device = None,
    probes: Annotated[int, typer.Option(min=0, help="Samples that the health checks attack once more; 0: none.")] = 32,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it stopped.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where a health check fails.")] = False,
) -> None:
    """Attack a model on many images and write a run folder with rows, images, certificates, verdict and report.

    Examples:

    - `wasserball evaluate --eps .05,.1 --limit 50 --out runs/first`
    - `wasserball evaluate --model weights.safetensors --data mnist/ --eps .1,.2 --limit 1000 --out runs/mnist`
    - `torchrun --nproc-per-node=4 -m wasserball evaluate --model net.py:build --data val/ --size 224 --out runs/net`
    """
    place = shared.pick_own_device(device)
    attacks = shared.make_attacks(attack, steps=steps, window=window, seed=seed)
    radii = shared.parse_numbers(eps, "--eps")
    with shared.clear_errors(f"What is finished is in {out}; the same command with --resume goes on from there."):
        run = run_evaluation(
            shared.open_model(model, weights, normalize, place),
            shared.open_data(data, split, size),
            attacks=attacks,
            eps=radii,
            out=out,
            limit=limit,
            batch_size=batch_size,
            device=place,
            resume=resume,
            probes=probes,
            progress=True,
            name=model_name(model, weights),
            command=shared.command_line(),
        )
        if shared.leads():
            show(run)
        if strict and any(finding["status"] == "fail" for finding in run.summary["health"]):
            raise typer.Exit(1)


def show(run: Run) -> None:
    """The verdict on the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    summary, console = run.summary, Console()
    title = f"{escape(summary['model'])} on {summary['samples']} images of {escape(summary['data'])}"
    grid = Table(title=title, caption=f"clean accuracy {summary['clean_accuracy']:.1%}; distance: of images that moved")
    for heading in ("attack", "eps"):
        grid.add_column(heading)
    for heading in ("accuracy", "95% interval", "valid", "distance", "seconds"):
        grid.add_column(heading, justify="right")
    for row in summary["results"]:
        grid.add_row(*_cells(row), end_section=row["eps"] == run.setting.eps[-1])
    for row in summary.get("worst_case", ()):
        grid.add_row(*_cells(row | dict(attack="worst case")))
    console.print(grid)
    lights = Table(box=None, show_header=False, padding=(0, 1))
    for finding in summary["health"]:
        lights.add_row(LIGHTS[finding["status"]], escape(finding["check"]), escape(finding["detail"]))
    console.print(lights)
    console.print(f"Report: {run.folder / 'report.html'}", soft_wrap=True)


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["confidence_interval"]
    cells = [
        row["attack"],
        f"{row['eps']:g}",
        f"[bold]{row['robust_accuracy']:.1%}",
        f"{100 * low:.1f}–{100 * high:.1f}",
    ]
    if "seconds" in row:
        distance = row["mean_distance"]
        cells += [
            f"{row['valid_fraction']:.1%}",
            "–" if distance is None else f"{distance:.3g}",
            f"{row['seconds']:.1f}",
        ]
    return cells
