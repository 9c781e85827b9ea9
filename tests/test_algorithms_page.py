"""What docs/algorithms.md and docs/contributing.md say is so: their Python runs, and what they name is there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from latex2mathml.converter import convert

import wasserball
from experiments import figure_box, figure_newton
from experiments._lab import Experiment

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "wasserball"
PAGES = ["algorithms.md", "contributing.md"]
TEXT = {page: (ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES}
FILES = [*SOURCE.rglob("*.py"), *(ROOT / "experiments").glob("*.py")]
CODE = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
METHODS = "Newton", "the paper's bisection"
FORMULAS = re.findall(r"^\$\$\n(.+)\n\$\$$|(?<!\$)\$([^$\n]+)\$(?!\$)", TEXT["algorithms.md"], re.M)
each_page = pytest.mark.parametrize("page", PAGES)


def prose(page: str) -> str:
    """A page without its blocks of code, each paragraph on one line."""
    return re.sub(r"(?<!\n)\n *(?![-\n|#\d])", " ", re.sub(r"```.*?```", "", TEXT[page], flags=re.S))


def code_words(page: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


@each_page
def test_the_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT[page], re.S)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), names)
    assert not list(tmp_path.iterdir())


@each_page
def test_names_of_the_package_exist(page: str) -> None:
    found = [word for word in code_words(page) if re.match(r"(wb|wasserball)\.\w", word)]
    assert found
    for word in found:
        thing: Any = wasserball
        for part in re.match(r"\w+((\.\w+)+)", word)[1].split(".")[1:]:  # type: ignore[index]
            assert hasattr(thing, part), word
            thing = getattr(thing, part)


@each_page
def test_files_exist(page: str) -> None:
    for word in code_words(page):
        if re.fullmatch(r"[\w./-]+(\.\w+|/)", word) and "/" in word:
            places = (SOURCE, ROOT, ROOT / "src")
            assert any((place / word).exists() for place in places), word


def test_other_names_are_in_the_code() -> None:
    for word in code_words("algorithms.md") + code_words("contributing.md"):
        if re.fullmatch(r"[A-Za-z]*_[a-z_]+|_?[A-Z][a-z]+[A-Za-z]*", word):
            assert re.search(rf"\b{re.escape(word)}\b", CODE), word


@each_page
def test_constants_are_those_of_the_code(page: str) -> None:
    found = [re.fullmatch(r"([A-Z_]+) = ([\d.e-]+)", word) for word in code_words(page)]
    constants = [match for match in found if match]
    assert constants or page != "algorithms.md"
    for match in constants:
        assert re.search(rf"^{match[1]} = {re.escape(match[2])}(\.0)?$", CODE, re.M), match[0]


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: next(filter(None, formula))[:30])
def test_formulas_can_be_shown(formula: tuple[str, str]) -> None:
    shown = convert(next(filter(None, formula)))
    # What is not understood is passed on as it is. GitHub's Markdown takes a backslash before a comma or bracket away.
    assert not re.search(r"\\[,;|{}]", next(filter(None, formula)))
    assert not re.search(r"\\[a-zA-Z]|<m[io]>&amp;</m[io]>", shown), shown


def test_there_are_formulas() -> None:
    assert sum(bool(block) for block, _ in FORMULAS) >= 10
    assert len(FORMULAS) == TEXT["algorithms.md"].replace("$$", "$").count("$") / 2


def test_the_targets_of_make_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    named = re.findall(r"(?:`|    )make ([a-z-]+)", TEXT["contributing.md"])
    assert named
    assert not set(named) - set(targets)


def figure(name: str) -> list[dict[str, Any]]:
    rows = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    assert isinstance(rows, list)
    return rows


def test_the_caption_about_the_search_is_so() -> None:
    newton, bisection = (next(row for row in figure("figure-newton") if row["method"] == name) for name in METHODS)
    words = prose("algorithms.md")
    assert f"One step of {newton['step']:g} along the gradient, digit {newton['sample']} of" in words
    assert f"needs {newton['evaluations']} evaluations to leave less than a millionth" in words
    assert 0 <= 1 - newton["spent"][-1] < 1e-6
    left = 1 - bisection["spent"][-1]
    assert f"the paper's {bisection['evaluations']} bisections leave {100 * left:.1f}%" in words


def test_the_caption_about_the_box_is_so() -> None:
    ignored, kept = figure("figure-box")
    words = prose("algorithms.md")
    at = dict(zip(ignored["judged"], ignored["accuracy"], strict=True))
    last = ignored["judged"][-1]
    assert f"{ignored['samples']} digits, eps {ignored['eps']:g}, fixed steps of {ignored['step']:g}" in words
    assert f"Without the box {ignored['above'][-1]:.1f}% of the mass is above 1 after {last} steps" in words
    assert f"accuracy on valid images is {at[last]:.1f}%, more than the {at[20]:.1f}% after 20 steps" in words
    assert f"at most {max(kept['above']):.2f}% is above 1" in words
    assert f"the accuracy falls to {kept['accuracy'][-1]:.1f}%" in words


@pytest.mark.parametrize("experiment", [figure_box.EXPERIMENT, figure_newton.EXPERIMENT], ids=lambda made: made.name)
def test_the_figures_can_be_drawn(experiment: Experiment, tmp_path: Path) -> None:
    assert experiment.main(["--quick", f"--out={tmp_path}"]) == 0
    assert (tmp_path / f"{experiment.name}.png").stat().st_size > 1000
    shown = ROOT / "docs" / "images" / f"{experiment.name.removeprefix('figure-')}.png"
    assert shown.stat().st_size < 150_000
