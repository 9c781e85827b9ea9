"""``wasserball bench``: operators and attack steps beside the paper's algorithms."""

from pathlib import Path
from typing import Annotated

import typer

from wasserball.benchmarks import USUAL, Part, check_device, run
from wasserball.cli.app import app, clear_errors


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="Where to measure: cpu or cuda.")] = "cpu",
    part: Annotated[
        list[Part] | None, typer.Option(help="What to measure; may be given several times. All but art by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Everything in seconds, at meaningless sizes.")] = False,
    out: Annotated[Path, typer.Option(file_okay=False, help="Where to put bench.md, bench.json, bench.png.")] = Path(
        "out"
    ),
) -> None:
    """Time the operators and the steps of the attacks beside the paper's algorithms. Ctrl-C keeps what there is.

    Example: `wasserball bench --part operators`
    """
    try:
        check_device(device)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error
    with clear_errors():
        record = run(device, part or USUAL, quick=quick, out=out, say=lambda line: typer.echo(line, err=True))
    typer.echo(record.markdown())
    if not record.complete:
        raise typer.Exit(130)
