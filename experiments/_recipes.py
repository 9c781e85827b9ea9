"""What the recipes of `wasserball train` reached: the table of docs/training.md, from docs/results/recipes.json.

The figures are written down by hand from what trainings and evaluations print, since a training is no experiment that
can be done again in minutes. A row ``none`` has the clean images, a row ``Auto`` those that hold under it.
"""

from experiments._lab import Ledger, Row, markdown
from wasserball.evaluate.summary import confidence_interval

HEADINGS = ("recipe", "clean", "under `Auto`", "trained on")
ALL = 10_000


def table(ledger: Ledger) -> str:
    """A line for each recipe; 95% intervals in brackets."""
    lines = [
        [f"`{row['recipe']}`", clean(ledger, row["recipe"]), under_attack(ledger, row["recipe"]), trained(ledger, row)]
        for row in ledger.find(method="training")
    ]
    origin = "*seed 0 · [commands, commits and numbers](results/recipes.json)*"
    return f"{markdown(HEADINGS, lines, numbers=False)}\n\n{origin}"


def clean(ledger: Ledger, recipe: str) -> str:
    """Of the first images, and of all where that is known."""
    [first] = ledger.find(recipe=recipe, method="none", samples=1000)
    words = f"{100 * first['held'] / 1000:.1f}%"
    for whole in ledger.find(recipe=recipe, method="none", samples=ALL):
        share = f"{100 * whole['held'] / ALL:.2f}" if "held" in whole else f"{whole['accuracy']:.1f}"
        rounded = ", with weights rounded to float16," if whole["half"] and not first["half"] else ""
        words += f" (of all {ALL:,}{rounded} {share}%)"
    return words


def under_attack(ledger: Ledger, recipe: str) -> str:
    rows = ledger.find(recipe=recipe, method="Auto")
    shares = " / ".join(f"{100 * row['held'] / row['samples']:.1f}" for row in rows)
    radii = " / ".join(f"{row['eps']:g}" for row in rows)
    return f"{shares}% at {radii} ({', '.join(map(interval, rows))})"


def interval(row: Row) -> str:
    low, high = (100 * end for end in confidence_interval(row["held"], row["samples"]))
    return f"{low:.1f}–{high:.1f}"


def trained(ledger: Ledger, row: Row) -> str:
    """Where, how long, and which epoch was the best."""
    beside = f" that had {row['beside']} as well" if row["beside"] else ""
    [first] = ledger.find(recipe=row["recipe"], method="none", samples=1000)
    rounded = "; weights rounded to float16" if first["half"] else ""
    hardware = ledger.runs[row["run"]]["hardware"]
    return f"{hardware}{beside}, {row['minutes']:g} minutes; best of {row['epochs']} epochs: {row['best']}{rounded}"
