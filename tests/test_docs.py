"""What the docs show is so: their one-liners read a run, their commands are commands, their links lead somewhere."""

import re
import shlex
from pathlib import Path

import duckdb
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import wasserball as wb
from tests.victims import grey_images, network, predictions
from wasserball import cli
from wasserball.evaluate.health import OF_THE_MODEL, OF_THE_SEARCH, examine
from wasserball.evaluate.outcomes import read_outcomes
from wasserball.evaluate.summary import confidence_interval

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
COMMANDS = [
    (page.name, line.strip().partition("   #")[0])
    for page in PAGES
    for line in TEXT[page.name].splitlines()
    if re.match(r"    (torchrun .* -m )?wasserball ", line)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wb.Run:
    model, images = network(), grey_images(6)
    data = images, predictions(model, images)
    attacks = [wb.PGD(eps=0, steps=3), wb.FrankWolfe(eps=0, steps=3)]
    out = tmp_path_factory.mktemp("runs") / "first"
    return wb.evaluate(model, data, attacks=attacks, eps=[0.1, 0.3], out=out, batch_size=4, probes=0)


def shown(pattern: str) -> str:
    """What the quickstart says, with the one run that there is here."""
    [found] = re.findall(pattern, TEXT["quickstart.md"])
    return str(found)


def test_pandas_reads_the_rows_in_one_line(run: wb.Run) -> None:
    line = shown(r"rows = (pd\.read_parquet\(.*\))").replace("runs/first", str(run.folder))
    rows = eval(line, {"pd": pd})
    assert len(rows) == 24
    accuracy = 1 - rows.groupby(["attack", "eps"]).success.mean()
    for row in run.summary["results"]:
        assert accuracy[row["attack"], row["eps"]] == pytest.approx(row["robust_accuracy"])
    columns = shown(r"Columns: `([^`]*)`").split(", ")
    assert sorted(rows.columns) == sorted([*columns, "queries", "certificate"])


def test_duckdb_reads_the_rows_in_one_line(run: wb.Run) -> None:
    query = shown(r"duckdb -c \"(.*)\"").replace("runs/first", str(run.folder))
    answer = duckdb.sql(query)
    assert answer is not None
    fooled = {(attack, eps): share for attack, eps, share in answer.fetchall()}
    assert fooled == {
        (row["attack"], row["eps"]): pytest.approx(1 - row["robust_accuracy"]) for row in run.summary["results"]
    }


def test_the_python_of_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = [block for block in re.findall(r"```python\n(.*?)```", TEXT["quickstart.md"], re.S) if "wb." in block]
    monkeypatch.chdir(tmp_path)
    exec(code.replace("limit=20", "limit=2"), {})
    assert wb.Run.open(tmp_path / "runs" / "python").summary["samples"] == 2


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_every_command_in_the_docs_is_one(page: str, line: str) -> None:
    words = shlex.split(line.replace("…", ""))
    words = words[words.index("wasserball") + 1 :]
    help_text = CliRunner().invoke(cli.app, [words[0], "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for option in (word for word in words if word.startswith("--")):
        assert f"{option.partition('=')[0]} " in help_text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT[page.name]):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_intervals_that_are_quoted_are_so() -> None:
    for total, words in ((1000, "27.2 to 32.9"), (100, "21.9 to 39.6")):
        low, high = confidence_interval(round(0.3 * total), total)
        assert words == f"{100 * low:.1f} to {100 * high:.1f}"
        assert words in TEXT["evaluating.md"]


def test_every_health_check_is_explained(run: wb.Run) -> None:
    model, images = network(), grey_images(6)
    data = wb.zoo.load_data((images, predictions(model, images)))
    found = examine(
        read_outcomes(run), model, data, {"pgd": wb.PGD(eps=0), "fw": wb.FrankWolfe(eps=0)}, torch.device("cpu"), 0
    )
    for name in (*OF_THE_MODEL, *OF_THE_SEARCH, *(finding.check for finding in found)):
        assert re.search(rf"^\|.*\b{re.escape(name)}\b.*\|", TEXT["evaluating.md"], re.M), name
