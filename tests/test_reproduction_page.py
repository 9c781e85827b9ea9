"""The tables of docs/reproduction.md are those of the files in docs/results, beside the paper's figures in the code."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from experiments import (
    _page,
    figure_convergence,
    figure_dykstra,
    figure_examples,
    table1,
    table2,
    table3_cifar,
    table3_imagenet,
    table3_mnist,
    table_advtrained,
    table_feasibility,
)
from experiments._lab import Ledger
from experiments._table3 import (
    DUAL,
    IGNORED_FW,
    IGNORED_PGD,
    OURS,
    REPAIRED_FW,
    REPAIRED_PGD,
    Plan,
    beside,
    sinkhorn_name,
)
from experiments._table3 import accuracy as percent
from experiments._victims import VICTIMS

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
TEXT = (DOCS / "reproduction.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S))
NO_TABLES = ["attacks", "figure-box", "figure-local-transport", "figure-newton"]
"""Experiments that are no table or figure of the paper."""

Table = list[list[str]]


def tables(section: str, text: str | None = None) -> list[Table]:
    """The rows of each table of a section, or of ``text``, without the headings."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", SECTIONS[section] if text is None else text, re.M)
    rows = [[[cell.strip() for cell in line.strip("| ").split("|")] for line in block.splitlines()] for block in blocks]
    assert all(len({len(line) for line in table}) == 1 for table in rows)
    return [table[2:] for table in rows]


def ledger(name: str) -> Ledger:
    return Ledger.open(RESULTS / f"{name}.json", {})


def row(name: str, **key: Any) -> dict[str, Any]:
    [found] = ledger(name).find(**key)
    return found


def power(number: float) -> str:
    """One digit, such as 2e-4."""
    return re.sub(r"e([+-])0?", r"e\1", f"{number:.0e}").replace("e+0", "").replace("e+", "e")


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


EXPECTED: dict[str, list[Callable[[], Table]]] = {
    "Table 1": [growth],
    "Table 2": [distances, iterations],
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


@pytest.mark.parametrize("page", _page.PAGES, ids=lambda page: page.name)
def test_tables_of_attacks_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert _page.refreshed(text) == text, "python -m experiments._page writes them anew"


def test_tables_of_attacks_are_on_the_page() -> None:
    on_page = set(re.findall(r"<!-- ([\w-]+) -->", "".join(page.read_text(encoding="utf-8") for page in _page.PAGES)))
    assert on_page - {"end"} == set(_page.BLOCKS)


def test_a_table_that_is_out_of_date_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_page, "PICTURE", tmp_path / "headline.png")
    [readme] = [page for page in _page.PAGES if page.name == "README.md"]
    changed, text = tmp_path / "README.md", readme.read_text(encoding="utf-8")
    changed.write_text(text.replace("10,000", "1"), encoding="utf-8")
    _page.main((changed,))
    assert "| 10,000 |" in changed.read_text(encoding="utf-8")
    assert (tmp_path / "headline.png").stat().st_size > 10_000


def test_the_list_has_every_experiment_of_the_paper() -> None:
    [listed] = tables("What is here")
    commands = [name for line in listed for name in re.findall(r"`([a-z0-9-]+)`", line[1])]
    files = [path.stem.replace("_", "-") for path in (DOCS.parent / "experiments").glob("[a-z]*.py")]
    assert sorted(set(commands)) == sorted(set(files) - set(NO_TABLES))


def test_no_other_section_has_a_table() -> None:
    blocks = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", re.S)
    assert {section for section in SECTIONS if tables(section, blocks.sub("", SECTIONS[section]))} == {
        "What is here",
        *EXPECTED,
    }


def test_what_is_said_of_the_bisection_is_so() -> None:
    left = row("figure-dykstra", method=figure_dykstra.BISECTION)["unspent"][-1]
    assert f"{100 * left:.1f}% of the budget" in SECTIONS["Dykstra"].replace("\n", " ")
    turns = row("figure-dykstra", method=figure_dykstra.NEWTON)["iteration"][-1]
    assert f"after {turns} iterations" in SECTIONS["Dykstra"].replace("\n", " ")


def test_what_is_said_beside_the_tables_is_so() -> None:
    between = row("table2", method="truth")["between"]
    assert f"lie {between:.6f} apart" in SECTIONS["Table 2"]


def test_what_is_said_of_losses_is_so() -> None:
    lines = [json.loads(line) for line in (RESULTS / "attacks.jsonl").read_text(encoding="utf-8").splitlines()]
    own = {
        line["name"]: line["accuracy"]
        for line in lines
        if line["samples"] == 10_000 and line["eps"] == 0.1 and "paper_loss" not in line["attack"]
    }
    words = f"{own['paper-pgd-off']:.1f}, repaired {own['paper-pgd']:.1f}, at 0.1"
    assert words in SECTIONS["MNIST"].replace("\n  ", " ")


def test_what_is_said_of_the_first_images_is_so() -> None:
    text = SECTIONS["Adversarially trained models"].replace("\n  ", " ")
    first = dict(first=0, samples=1000, eps=0.3, method="PGD")
    robust, papers = (
        row("table-advtrained", model=model, **first)["held"] / 10
        for model in ("mnist-robust", "mnist_frankwolfe_trained")
    )
    assert f"`PGD` leaves {robust:.1f}% of `mnist-robust` at 0.3 and {papers:.1f}% of the paper's robust model" in text
    auto = {
        model: percent(ledger("table-advtrained").find(model=model, eps=0.5, method="Auto"))
        for model in ("mnist-robust", "mnist_frankwolfe_trained")
    }
    assert f"and {auto['mnist_frankwolfe_trained']}% under `Auto`" in text
    assert f"keeps {auto['mnist-robust']}%" in text


def test_what_is_said_of_convergence_is_so() -> None:
    assert "ahead of all others after 10, 30 and 100 steps" in SECTIONS["Convergence"].replace("\n", " ")
    results = ledger("figure-convergence")
    for name in {line["data"] for line in results.rows}:
        for steps in (10, 30, 100):
            losses = {(line["method"], line["step"]): line["loss"][steps] for line in results.find(data=name)}
            assert max(losses, key=losses.__getitem__)[0] == figure_convergence.OURS


@pytest.mark.parametrize("name", ["table3-mnist", "table3-cifar", "table3-imagenet", "table-advtrained"])
def test_all_images_that_count_as_valid_are(name: str) -> None:
    rows = [
        line for line in ledger(name).rows if line["method"] in (*OURS, REPAIRED_PGD, REPAIRED_FW) and "eps" in line
    ]
    assert rows
    assert [line for line in rows if line["valid"] != line["samples"]] == []


def farthest(plan: Plan, name: str, methods: Iterable[str]) -> float:
    """From the paper's figures, at any radius."""
    results = ledger(name)
    return max(
        abs(float(percent(results.find(model=plan.victim.model, method=method, eps=eps))) - figure)
        for method in methods
        for eps, figure in zip(plan.victim.eps, plan.published[method], strict=True)
        if figure is not None
    )


def test_the_papers_modes_are_the_papers_on_mnist() -> None:
    away = farthest(table3_mnist.STANDARD, "table3-mnist", DUAL)
    assert f"within {away:.1f} points of the paper's" in SECTIONS["MNIST"]


def left_by(plan: Plan, name: str, method: str) -> list[float]:
    """Radius by radius."""
    rows = ledger(name).find(model=plan.victim.model, method=method)
    return [float(percent([line for line in rows if line.get("eps") == eps])) for eps in plan.victim.eps]


def test_ours_are_stronger_than_the_papers_that_ignore_the_box() -> None:
    plan = table3_mnist.STANDARD
    paper = [figure for figure in plan.published[IGNORED_PGD] if figure is not None]
    pgd, auto = (left_by(plan, "table3-mnist", method) for method in ("PGD", "Auto"))
    assert all(ours <= theirs for ours, theirs in zip(pgd, paper, strict=True))
    assert all(best <= ours for best, ours in zip(auto, pgd, strict=True))
    assert auto[0] < pgd[0] < paper[0]
    assert "`Auto` less again" in SECTIONS["MNIST"].replace("\n", " ")


PLANS = {
    "table3-mnist": [table3_mnist.STANDARD],
    "table3-cifar": [table3_cifar.RESNET18, table3_cifar.RESNET20],
    "table3-imagenet": [table3_imagenet.RESNET50],
    "table-advtrained": [
        table_advtrained.FRANK_WOLFE_TRAINED,
        table_advtrained.SINKHORN_TRAINED,
        table_advtrained.ROBUST,
        table_advtrained.ROBUST_CIFAR,
    ],
}


@pytest.mark.parametrize("method", OURS)
@pytest.mark.parametrize(("name", "plan"), [(name, plan) for name, plans in PLANS.items() for plan in plans])
def test_no_attack_of_ours_gets_weaker_as_the_radius_grows(name: str, plan: Plan, method: str) -> None:
    found = left_by(plan, name, method)
    assert sorted(found, reverse=True) == found


def test_the_papers_repaired_frank_wolfe_does() -> None:
    found = left_by(table_advtrained.SINKHORN_TRAINED, "table-advtrained", REPAIRED_FW)
    assert found[0] < found[1] < found[2] < found[3]
    assert "gets *weaker* as the radius grows" in SECTIONS["Adversarially trained models"]


def test_what_is_said_of_the_papers_robust_model_is_so() -> None:
    results, away = ledger("table-advtrained"), farthest(table_advtrained.FRANK_WOLFE_TRAINED, "table-advtrained", DUAL)
    text = SECTIONS["Adversarially trained models"].replace("\n  ", " ")
    assert f"within {away:.1f} points of the paper, on all 10,000 images" in text
    robust = table_advtrained.ROBUST_CIFAR
    held = percent(results.find(model=robust.victim.model, method="Auto", eps=0.005))
    assert f"holds on {held}% at 0.005 under `Auto`" in text
    assert f"the paper's has {robust.published[REPAIRED_PGD][-1]}% under a weaker attack" in text


def test_what_is_said_of_the_repair_is_so() -> None:
    ignored, pgd, frank_wolfe = (
        f"{farthest(table_advtrained.SINKHORN_TRAINED, 'table-advtrained', methods):.1f}"
        for methods in ((IGNORED_PGD, IGNORED_FW), (REPAIRED_PGD,), (REPAIRED_FW,))
    )
    text = " ".join(SECTIONS["Adversarially trained models"].split())
    assert f"attacks are within {ignored} points of the paper on this model" in text
    assert f"its PGD within {pgd} and its Frank-Wolfe within {frank_wolfe}" in text
    rows = ledger("repair-steps")
    left = {line["steps"]: f"{100 * line['held'] / line['samples']:.1f}" for line in rows.find(method=REPAIRED_FW)}
    words = f"after {' / '.join(map(str, left))} steps the repair leaves {' / '.join(left.values())}% of the first 500"
    assert words in text
    assert max(line["held"] for line in rows.find(method=IGNORED_FW)) == 1


def test_what_is_said_of_projected_sinkhorn_on_robust_models_is_so() -> None:
    columns = [
        (left_by(plan, "table-advtrained", method), [figure for figure in plan.published[method] if figure])
        for plan in (table_advtrained.FRANK_WOLFE_TRAINED, table_advtrained.SINKHORN_TRAINED)
        for method in (sinkhorn_name(1 / 1000), sinkhorn_name(1 / 1500))
    ]
    odd, theirs = columns.pop()
    columns.append((odd[:3], theirs[:3]))
    away = max(abs(ours - paper) for column in columns for ours, paper in zip(*column, strict=True))
    text = " ".join(SECTIONS["Adversarially trained models"].split())
    assert f"on the paper's two models are within {away:.1f} points of the paper's" in text
    assert f"with γ=1/1500, {theirs[2]}, {theirs[3]} and {theirs[4]}% from 0.3 to 0.5" in text
    assert sorted(odd, reverse=True) == odd
    assert f"here it goes on to get stronger, to {odd[-1]}%" in text


def test_what_is_said_of_projected_sinkhorn_is_so() -> None:
    plan, results, method = table3_mnist.STANDARD, ledger("table3-mnist"), sinkhorn_name(1 / 1000)

    def held(eps: float, images: range, method: str) -> float:
        rows = [line for line in results.find(method=method, eps=eps) if line["first"] in images]
        if method != REPAIRED_PGD:
            rows = [line for line in rows if line["samples"] == 100]
        return 100 * float(sum(line["held"] for line in rows) / sum(line["samples"] for line in rows))

    early, late = ([held(eps, range(*half), method) for eps in plan.victim.eps] for half in ((0, 1000), (5000, 5300)))
    paper = [figure for figure in plan.published[method] if figure is not None]
    mean = [(first + second) / 2 for first, second in zip(early, late, strict=True)]
    text = SECTIONS["MNIST"].replace("\n  ", " ")
    less = max(figure - found for figure, found in zip(paper, early, strict=True))
    away = max(abs(figure - found) for figure, found in zip(paper, mean, strict=True))
    assert f"leaves up to {less:.1f} points less" in text
    assert f"leaves {' / '.join(f'{found:.1f}' for found in late)}%" in text
    assert f"{' / '.join(f'{found:.1f}' for found in mean)}%, is within {away:.1f} points of the paper's" in text
    first, other = (held(0.1, range(start, start + 1), REPAIRED_PGD) for start in (0, 5000))
    assert f"leaves {first:.1f}% of the first 1,000 at 0.1, {other:.1f}% of those from 5,000 on" in text


def test_what_is_said_of_projected_sinkhorn_on_photographs_is_so() -> None:
    plan, text = table3_cifar.RESNET18, " ".join(SECTIONS["CIFAR-10"].split())
    weak, middle, strong = (left_by(plan, "table3-cifar", sinkhorn_name(gamma)) for gamma in plan.victim.gammas)
    more = [
        max(ours - theirs for ours, theirs in zip(mine, plan.published[sinkhorn_name(gamma)], strict=True) if theirs)
        for mine, gamma in zip((weak, middle), plan.victim.gammas, strict=False)
    ]
    assert f"up to {more[0]:.1f} points more than there with γ=1/3000, up to {more[1]:.1f} more with γ=1/10000" in text
    assert all(least < less < most for least, less, most in zip(strong, middle, weak, strict=True))


def test_what_is_said_of_smoothed_labels_is_so() -> None:
    rows = Ledger.open(RESULTS / "smoothed-labels.json", {}).rows
    left = {r["method"]: f"{r['held'] / 10:.1f}%" for r in rows if r.get("eps") == 0.001 and r["samples"] == 1000}
    [training], [clean] = ([r for r in rows if r["method"] == method] for method in ("training", "none"))
    plain = dict(model="cifar10_resnet18", samples=1000, eps=0.001)
    without = [f"{row('table3-cifar', **plain, method=m)['held'] / 10:.1f}%" for m in (REPAIRED_PGD, "PGD", "Auto")]
    text = " ".join((DOCS / "training.md").read_text(encoding="utf-8").split())
    words = (
        f"it takes {training['seconds']:.0f} seconds",
        f"{100 * training['held_out']:.1f}% of the held-out images (epoch {training['best']} of {training['epochs']})",
        f"right on {clean['held'] / 10:.1f}% of the first 1,000 test images",
        f"the paper's PGD leaves {left[REPAIRED_PGD]} of these 1,000, ours {left['PGD']}, and `Auto`",
        f"random starts, {left['Auto']};",
        f"the same three leave {', '.join(without[:2])} and {without[2]}",
    )
    assert [part for part in words if part not in text] == []


def test_what_is_said_of_digits_known_by_heart_is_so() -> None:
    rows = Ledger.open(RESULTS / "mnist-by-heart.json", {}).rows

    def held(model: str, learned: bool, eps: float | None) -> str:
        some = [
            row
            for row in rows
            if row["model"].endswith(model)
            and row["digits"].endswith("trained on") == learned
            and row.get("eps") == eps
        ]
        return f"{100 * sum(row['held'] for row in some) / sum(row['samples'] for row in some):.1f}"

    text = (DOCS / "training.md").read_text(encoding="utf-8")
    [table] = tables("", text[text.index("| PGD at 0.3 / 0.5 |") : text.index("So `mnist-robust` leads")])
    for name, *cells in table:
        model = name.removeprefix("with ").strip("`")
        pairs = [" / ".join(held(model, learned, eps) for eps in (0.3, 0.5)) for learned in (True, False)]
        assert cells == [*pairs, held(model, False, None)]
    leads = [float(held("mnist-robust", k, 0.3)) - float(held("frankwolfe_trained", k, 0.3)) for k in (True, False)]
    assert f"leads by {leads[0]:.1f} points at 0.3 where it has learned, and by {leads[1]:.1f} where it has not" in text
    gains = [
        float(held("three times as wide", False, eps)) - float(held("mnist-robust", False, eps)) for eps in (0.3, 0.5)
    ]
    assert f"{gains[0]:.1f} and {gains[1]:.1f} points more of the new ones" in " ".join(text.split())
