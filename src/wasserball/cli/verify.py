"""``wasserball verify``: a second look at a finished run."""

from pathlib import Path
from typing import Annotated

import typer

from wasserball.cli.app import app, clear_errors

SHOWN = 20
"""Problems, at most: the first few tell what is wrong."""


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    exact: Annotated[
        bool, typer.Option("--exact", help="Solve optimal transport anew instead of checking the stored plans.")
    ] = False,
) -> None:
    """Check the certificates, rows and summary of a run from its files alone, without model or attack.

    Example: `wasserball verify runs/first`
    """
    from rich.console import Console
    from rich.progress import track

    from wasserball.evaluate.recheck import recheck, recheck_summary
    from wasserball.evaluate.store import Run

    with clear_errors():
        run = Run.open(folder)
        units = run.done()
        checks = track(
            recheck(run, exact=exact), "Checking", total=len(units), console=Console(stderr=True), transient=True
        )
        images = certified = 0
        problems: list[str] = []
        for check in checks:
            images, certified = images + check.images, certified + check.certified
            problems += check.problems
        left = len(list(run.setting.units())) - len(units)
        problems += [f"the run is not finished: {left} batches are missing"] if left else recheck_summary(run)
    for problem in problems[:SHOWN]:
        typer.secho(problem, err=True, fg=typer.colors.RED)
    if len(problems) > SHOWN:
        typer.secho(f"… and {len(problems) - SHOWN} more", err=True)
    typer.echo(
        f"{certified} of {images} adversarial images are inside ball and box with their mass kept; "
        f"{len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}"
    )
    if problems:
        raise typer.Exit(1)
