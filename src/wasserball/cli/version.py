"""``wasserball version``: what to put into a bug report."""

import sys

import torch
import typer

from wasserball import __version__
from wasserball.cli.app import app, pick_device
from wasserball.hardware import hardware_name


@app.command()
def version() -> None:
    """Show the version of wasserball, of Python and torch, and the device that would be used.

    Example: `wasserball version`
    """
    python = ".".join(str(part) for part in sys.version_info[:3])
    where = hardware_name(pick_device(None))
    typer.echo(f"wasserball {__version__}, Python {python}, torch {torch.__version__}, {where}")
