"""``wasserball report``: the page of a run, or of several side by side."""

from pathlib import Path
from typing import Annotated

import typer

from wasserball.cli.app import app, clear_errors


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Where to put the page; by default report.html in the folder.")
    ] = None,
) -> None:
    """Write the page of a run anew, or one that compares several.

    Examples: `wasserball report runs/first`, `wasserball report runs/a runs/b --out comparison.html`
    """
    from wasserball.evaluate.report import write_report
    from wasserball.evaluate.store import Run

    if len(folders) > 1 and out is None:
        raise typer.BadParameter("must say where to put a comparison", param_hint="--out")
    path = out or folders[0] / "report.html"
    with clear_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_report([Run.open(folder) for folder in folders], path)
    typer.echo(path)
