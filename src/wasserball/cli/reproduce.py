"""``wasserball reproduce``: the experiments of the paper, from a clone of the repository."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from wasserball.cli.app import app

EXPERIMENTS = Path(__file__).parents[3] / "experiments"


# What follows a name, --help too, is for the experiment.
@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def reproduce(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which experiment; its own options follow.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show what there is.")] = False,
) -> None:
    """Run an experiment of the paper. The experiments are files of the repository, not of the installed package.

    Examples: `wasserball reproduce --list`, `wasserball reproduce table2`
    """
    if name == "--help":
        typer.echo(context.get_help())
        return
    known = {path.stem.replace("_", "-"): path for path in sorted(EXPERIMENTS.glob("[a-z]*.py"))}
    if not known:
        typer.secho(
            "Error: the experiments are in a clone of the repository, installed with pip install -e .", err=True
        )
        raise typer.Exit(1)
    if show or name is None:
        for stem, path in known.items():
            summary = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
            typer.echo(f"{stem:25}{summary}")
        return
    if name not in known:
        raise typer.BadParameter(f"must be among {', '.join(known)}, got {name!r}", param_hint="NAME")
    # A process of its own: an experiment is a script, with its own options, threads and exit code.
    search = os.pathsep.join([str(EXPERIMENTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", f"experiments.{known[name].stem}", *context.args]
    done = subprocess.run(command, check=False, env=os.environ | {"PYTHONPATH": search})
    raise typer.Exit(done.returncode)
