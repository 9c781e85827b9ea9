"""The command line: ``wasserball bench``."""

from pathlib import Path
from typing import Annotated

import typer

from wasserball import __version__
from wasserball.benchmarks import Part, check_device, run

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wasserball {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """How robust is an image classifier when an adversary may move pixel mass?"""


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="Where to measure: cpu or cuda.")] = "cpu",
    part: Annotated[
        list[Part] | None, typer.Option(help="What to measure; may be given several times. All of it by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Everything in seconds, at meaningless sizes.")] = False,
    out: Annotated[Path, typer.Option(file_okay=False, help="Where to put bench.md, bench.json, bench.png.")] = Path(
        "out"
    ),
) -> None:
    """Time the operators and the steps of the attacks beside the paper's algorithms. Ctrl-C keeps what there is."""
    try:
        check_device(device)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error
    record = run(device, part or list(Part), quick=quick, out=out, say=lambda line: typer.echo(line, err=True))
    typer.echo(record.markdown())
    if not record.complete:
        raise typer.Exit(130)
