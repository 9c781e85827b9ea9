"""The notebooks run from their first cell to their last, and what they show is what they come to."""

import re
from pathlib import Path

import pytest
from nbformat import NotebookNode

from tests.notebooks import METADATA, PATHS, execute, read

BYTES = 1_200_000
"""Of all notebooks together, pictures included."""
EXACT = {"minimize"}
"""No network in it: all that it prints is an optimum, the same on every machine to the digits shown."""
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
PLACE_OR_TIME = re.compile(r"(?<![\w.])(?:~|[A-Z]:|/\w[\w.-]*)[/\\]\w|\d\d:\d\d|\d m?s\b|seconds")

each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: NotebookNode) -> list[tuple[str, ...]]:
    """What a cell shows: streams by their names, all else by its formats."""
    return [(output.output_type, output.get("name", ""), *sorted(output.get("data", ()))) for output in cell.outputs]


def words(cell: NotebookNode) -> str:
    """What a cell prints, or shows as text."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return " ".join("\n".join(texts).split())


def near(ours: str, theirs: str) -> bool:
    """Networks are trained and attacked with other roundings on another machine: a few of a hundred images may fall
    here and hold there, and a distance differ by a quarter."""
    here, there = (float(number.replace(",", "")) for number in (ours, theirs))
    largest = max(abs(here), abs(there))
    return abs(here - there) <= max(largest / 4, 6 if largest >= 1 else 0.02)


def test_there_are_four() -> None:
    assert [path.stem for path in PATHS] == ["attack", "evaluate", "minimize", "train"]
    assert sum(path.stat().st_size for path in PATHS) < BYTES


@each_notebook
def test_a_notebook_is_in_order(path: Path) -> None:
    notebook = read(path)
    title = notebook.cells[0]
    assert title.cell_type == "markdown"
    assert re.match(r"# \w", title.source)
    assert "pip install wasserball" in title.source
    assert notebook.metadata == METADATA
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    for cell in notebook.cells:
        assert not cell.metadata
        assert re.fullmatch(r"[a-z-]+", cell.id), "an editor's random id says nothing and changes with each copy"


@each_notebook
def test_a_notebook_tells_no_place_and_no_time(path: Path) -> None:
    for cell in code_cells(read(path)):
        assert PLACE_OR_TIME.search(words(cell)) is None, cell.id
        pages = "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)
        assert PLACE_OR_TIME.search(re.sub(r"<style.*?</style>|<[^>]*>", " ", pages, flags=re.S)) is None, cell.id


@pytest.mark.parametrize(
    "text", ["/home/me/run", "saved to ~/run", r"C:\runs", "took 3.2 s", "12 ms", "at 12:30", "3 seconds"]
)
def test_places_and_times_are_found(text: str) -> None:
    assert PLACE_OR_TIME.search(text)


@each_notebook
def test_a_fresh_execution_comes_to_what_is_shown(path: Path) -> None:
    stored = code_cells(read(path))
    for number, (old, new) in enumerate(zip(stored, code_cells(execute(path)), strict=True), 1):
        assert old.execution_count == new.execution_count == number
        assert kinds(old) == kinds(new), old.id
        assert not any(output.get("name") == "stderr" for output in new.outputs), words(new)
        before, after = words(old), words(new)
        if path.stem in EXACT:
            assert after == before, old.id
        assert NUMBER.sub("#", after) == NUMBER.sub("#", before), old.id
        for shown, found in zip(NUMBER.findall(before), NUMBER.findall(after), strict=True):
            assert near(shown, found), f"{old.id}: {shown} is shown, {found} came out"
