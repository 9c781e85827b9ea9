"""The tables of docs/reproduction.md are those of the files in docs/results, beside the paper's figures in the code."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments import (
    figure_dykstra,
    figure_examples,
    table1,
    table2,
    table3_mnist,
    table_advtrained,
    table_feasibility,
)
from experiments._lab import Ledger
from experiments._table3 import IGNORED_FW, IGNORED_PGD, REPAIRED_FW, REPAIRED_PGD, sinkhorn_name
from experiments._table3 import accuracy as table_of
from experiments._victims import VICTIMS

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
TEXT = (DOCS / "reproduction.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S))
NO_TABLES = ["attacks", "figure-box", "figure-local-transport", "figure-newton"]
"""Experiments that are no table or figure of the paper."""

Table = list[list[str]]


def tables(section: str) -> list[Table]:
    """The rows of each table of a section, without the headings."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", SECTIONS[section], re.M)
    rows = [[[cell.strip() for cell in line.strip("| ").split("|")] for line in block.splitlines()] for block in blocks]
    assert all(len({len(line) for line in table}) == 1 for table in rows)
    return [table[2:] for table in rows]


def ledger(name: str) -> Ledger:
    return Ledger.open(RESULTS / f"{name}.json", {})


def row(name: str, **key: Any) -> dict[str, Any]:
    [found] = ledger(name).find(**key)
    return found


def accuracy(name: str, weights: str, eps: float, *, samples: int = 1000, device: str, loss: str = "") -> str:
    """Of a run in attacks.jsonl; – where there is none."""
    lines = [json.loads(line) for line in (RESULTS / "attacks.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [
        f"{line['accuracy']:.1f}"
        for line in lines
        if (line["name"], line["weights"], line["eps"], line["samples"]) == (name, weights, eps, samples)
        and device in line["device"]
        and ("paper_loss" in line["attack"]) == (loss == "paper")
    ]
    assert len(found) < 2
    return found[0] if found else "–"


def power(number: float) -> str:
    """One digit, such as 2e-4."""
    return re.sub(r"e([+-])0?", r"e\1", f"{number:.0e}").replace("e+0", "").replace("e+", "e")


def beside(ours: str, paper: str | None) -> str:
    """Ours, and in brackets the paper's."""
    return ours if paper is None else f"{ours} ({paper})"


def distances() -> Table:
    def line(method: str) -> list[str]:
        ours, paper = row("table2", method=method)["distance"], table2.PAPER.get(method)
        theirs = [f"{paper[radius][0]:.3f}" if paper else None for radius in range(2)]
        return [method.removeprefix("projected "), *(beside(f"{ours[at]:.3f}", theirs[at]) for at in range(2))]

    return [line(method) for method in (*table2.SINKHORN.values(), table2.PGD, table2.FRANK_WOLFE, "truth")]


def iterations() -> Table:
    def line(gamma: float, method: str) -> list[str]:
        ours, paper = row("table2", method=method)["iterations"], table2.PAPER.get(method)
        theirs = [str(paper[radius][1]) if paper else None for radius in range(2)]
        return [power(gamma), *(beside(str(ours[at]), theirs[at]) for at in range(2))]

    return [line(gamma, method) for gamma, method in table2.SINKHORN.items()]


def violations() -> Table:
    names = {
        "Dykstra, over budget": (figure_dykstra.DYKSTRA, "halfspace"),
        "Dykstra, off the simplices": (figure_dykstra.DYKSTRA, "simplex"),
        "bisection, under budget": (figure_dykstra.BISECTION, "unspent"),
        "Newton, under budget": (figure_dykstra.NEWTON, "unspent"),
    }
    found = []
    for name, (method, column) in names.items():
        line = row("figure-dykstra", method=method)
        seen = list(zip(line["iteration"], line[column], strict=True))
        found.append([name, *(power([value for turn, value in seen if turn <= most][-1]) for most in (10, 100, 1000))])
    return found


def two_pixels() -> Table:
    return [
        [
            _plain(line["method"]),
            ", ".join(f"{entry:.3f}".rstrip("0").rstrip(".") for entry in line["plan"][0]),
            f"{line['spent']:.3f}",
            "yes" if line["feasible"] else "no",
        ]
        for line in ledger("toy-lmo").find(problem="two pixels")
    ]


def random_images() -> Table:
    def between(ends: list[float]) -> str:
        low, high = (f"{100 * end:.1f}" for end in ends)
        return f"{low}%" if low == high else f"{low} to {high}%"

    return [
        [_plain(line["method"]), between(line["spent"]), between(line["gained"])]
        for line in ledger("toy-lmo").find(problem="images")
    ]


def _plain(method: str) -> str:
    return method.replace("1e-09", "1e-9")


def used() -> Table:
    return [
        [line["method"], beside(f"{line['distance']:.3f}", f"{paper[0]:.3f}" if paper else None)]
        for line, paper in _feasibility()
    ]


def outside() -> Table:
    def pixel(value: float) -> str:
        return f"{value:.2f}" if value > 1.01 else f"{value:.6f}".rstrip("0").rstrip(".")

    def share(value: float) -> str:
        return "0" if value == 0 else f"{value:.1f}%" if value > 0.1 else f"{power(value)}%"

    return [
        [
            line["method"],
            beside(pixel(line["largest_pixel"]), pixel(paper[1]) if paper else None),
            beside(share(100 * line["mass_above_one"]), share(paper[2]) if paper else None),
        ]
        for line, paper in _feasibility()
    ]


def shapes() -> Table:
    def cells(line: dict[str, Any]) -> list[str]:
        return [f"{100 * line['pixels']:.0f}%", f"{line['shapes']:.2f}".replace("-", "−")]

    found = ledger("figure-examples")
    return [
        [
            method,
            *(cell for name in VICTIMS for [line] in [found.find(data=name, method=method)] for cell in cells(line)),
        ]
        for method in figure_examples.METHODS
    ]


def _feasibility() -> list[tuple[dict[str, Any], tuple[float, float, float] | None]]:
    return [(line, table_feasibility.PAPER[line["method"]]) for line in ledger("table-feasibility").rows]


def growth() -> Table:
    results = ledger("table1")

    def slope(method: str, kind: str) -> str:
        lines = results.find(method=method, kind=kind)
        sizes = [line["window"] ** 2 if kind == "window" else line["pixels"] for line in lines]
        return f"{table1.exponent(sizes, [line['milliseconds'] for line in lines]):.1f}"

    return [
        [method, slope(method, "dense"), slope(method, "local"), slope(method, "window")] for method in table1.PAPER
    ]


MNIST = "mnist_standard"


def in_the_papers_modes() -> Table:
    sinkhorn = sinkhorn_name(1 / 1000)
    rows = [
        (IGNORED_PGD, "paper-pgd-off", 10_000, "paper"),
        (REPAIRED_PGD, "paper-pgd", 10_000, "paper"),
        (IGNORED_FW, "paper-fw-off", 1000, "paper"),
        (REPAIRED_FW, "paper-fw", 1000, "paper"),
        (sinkhorn, "sinkhorn", 1000, ""),
    ]
    return [
        [
            method.replace("the paper's ", ""),
            beside(
                accuracy(name, MNIST, 0.1, samples=samples, device="H200", loss=loss),
                f"{table3_mnist.PUBLISHED[method][0]:.1f}",
            ),
            f"{samples:,}",
        ]
        for method, name, samples, loss in rows
    ]


RADII = (0.1, 0.2, 0.3, 0.4, 0.5)
NAMES = {"pgd": "`PGD`", "fw": "`FrankWolfe`", "auto": "`Auto`"}


def papers(published: Any, radii: tuple[float, ...]) -> Table:
    """The paper's PGD."""
    at = [RADII.index(radius) for radius in radii]
    return [
        ["paper, repaired", *(f"{published[REPAIRED_PGD][place]:.1f}" for place in at)],
        ["paper, box ignored", *(f"{published[IGNORED_PGD][place]:.1f}" for place in at)],
    ]


def ours(weights: str, radii: tuple[float, ...]) -> Table:
    """On the first 1,000 images."""
    return [
        [words, *(accuracy(name, weights, radius, device="H200") for radius in radii)] for name, words in NAMES.items()
    ]


def everything() -> Table:
    results = ledger("table3-mnist")

    def line(method: str) -> list[str]:
        found = [results.find(method=method, eps=radius) for radius in RADII]
        assert all(sum(row["samples"] for row in rows) == 10_000 for rows in found)
        assert all(row["valid"] == row["samples"] for rows in found for row in rows)
        return [f"`{method}`", *(table_of(rows) for rows in found)]

    return [*papers(table3_mnist.PUBLISHED, RADII), line("PGD"), line("FrankWolfe")]


def standard() -> Table:
    return ours(MNIST, (0.1, 0.2, 0.3))


def trained() -> Table:
    radii = (0.3, 0.5)
    return [*papers(table_advtrained.FRANK_WOLFE_TRAINED, radii), *ours("mnist_frankwolfe_trained", radii)]


EXPECTED: dict[str, list[Callable[[], Table]]] = {
    "Table 1": [growth],
    "Table 2": [distances, iterations],
    "Table 3": [in_the_papers_modes, everything, standard],
    "Adversarially trained models": [trained],
    "Examples": [shapes],
    "Dykstra": [violations],
    "The oracle without entropy": [two_pixels, random_images],
    "Feasibility": [used, outside],
}
FROM = {
    "Table 1": "table1",
    "Table 2": "table2",
    "Examples": "figure-examples",
    "Dykstra": "figure-dykstra",
    "The oracle without entropy": "toy-lmo",
    "Feasibility": "table-feasibility",
}


@pytest.mark.parametrize("section", EXPECTED)
def test_tables_are_those_of_the_results(section: str) -> None:
    assert tables(section) == [make() for make in EXPECTED[section]]


@pytest.mark.parametrize("section", FROM)
def test_sections_say_where_their_numbers_are_from(section: str) -> None:
    [run] = ledger(FROM[section]).runs
    assert run["command"] == f"wasserball reproduce {FROM[section]}"
    words = [f"`{run['command']}`", run["hardware"], f"seed {run['seed']}", f"commit {run['commit']}"]
    place = f"[numbers](results/{FROM[section]}.json)"
    assert f"*{' · '.join([*words, place])}*" in SECTIONS[section].replace("\n", " ")


def test_table_3_says_where_its_numbers_are_from() -> None:
    [run] = ledger("table3-mnist").runs
    words = [f"`{run['command']}`", run["hardware"], f"seed {run['seed']}", f"commit {run['commit']}"]
    assert " · ".join(words) in SECTIONS["Table 3"].replace("\n", " ")


def test_the_readme_has_the_same_figures() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    for method, *figures in everything()[2:]:
        assert f"{' / '.join(figures)} for {method}" in readme


def test_the_list_has_every_experiment_of_the_paper() -> None:
    [listed] = tables("What is here")
    commands = [name for line in listed for name in re.findall(r"`([a-z0-9-]+)`", line[1])]
    files = [path.stem.replace("_", "-") for path in (DOCS.parent / "experiments").glob("[a-z]*.py")]
    assert sorted(set(commands)) == sorted(set(files) - set(NO_TABLES) | {"attacks"})


def test_no_other_section_has_a_table() -> None:
    assert {section for section in SECTIONS if tables(section)} == {"What is here", *EXPECTED}


def test_what_is_said_of_the_bisection_is_so() -> None:
    left = row("figure-dykstra", method=figure_dykstra.BISECTION)["unspent"][-1]
    assert f"{100 * left:.1f}% of the budget" in SECTIONS["Dykstra"].replace("\n", " ")
    turns = row("figure-dykstra", method=figure_dykstra.NEWTON)["iteration"][-1]
    assert f"after {turns} iterations" in SECTIONS["Dykstra"].replace("\n", " ")


def test_what_is_said_beside_the_tables_is_so() -> None:
    between = row("table2", method="truth")["between"]
    assert f"lie {between:.6f} apart" in SECTIONS["Table 2"]
    stronger = [accuracy(name, MNIST, 0.1, samples=10_000, device="H200") for name in ("paper-pgd-off", "paper-pgd")]
    fewer = accuracy("paper-pgd", MNIST, 0.1, device="H200", loss="paper")
    sinkhorn = accuracy("sinkhorn", MNIST, 0.4, device="H200", loss="paper")
    text = SECTIONS["Table 3"].replace("\n ", "")
    assert f"is stronger: {stronger[0]}, repaired {stronger[1]}." in text
    assert f"the repaired PGD leaves {fewer} of them" in text
    theirs = table3_mnist.PUBLISHED[sinkhorn_name(1 / 1000)][3]
    assert f"with the paper's it leaves {sinkhorn}, the paper has {theirs}" in text
