"""``python -m wasserball``: the command line."""

from wasserball.cli import app

app(prog_name="wasserball")
