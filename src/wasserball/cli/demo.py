"""``wasserball demo``: the main job on what is bundled."""

from pathlib import Path
from typing import Annotated

import typer

from wasserball.cli.app import app, clear_errors


@app.command()
def demo(
    eps: Annotated[float, typer.Option(help="The radius, relative to the ink of a digit.")] = 0.1,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many digits.")] = 100,
    steps: Annotated[int, typer.Option(min=1, help="Of each attack.")] = 30,
    out: Annotated[Path, typer.Option(file_okay=False, help="Where to put demo.png.")] = Path("out"),
) -> None:
    """Attack the bundled model on the bundled digits, and draw what moved.

    Example: `wasserball demo --eps .2`
    """
    from rich.console import Console

    from wasserball.demo import run

    if not 0 < eps < float("inf"):
        raise typer.BadParameter(f"must be a finite number > 0, got {eps}", param_hint="--eps")
    with clear_errors():
        run(eps, limit, steps, out, Console())
