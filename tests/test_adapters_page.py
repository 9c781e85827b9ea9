"""docs/adapters.md: its examples run, one after the other, and its table is what was measured."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
RESULTS = ROOT / "docs" / "results" / "bench-art-cpu.json"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(block, names)
    info = json.loads((tmp_path / "model_info" / "mnist" / "Wasserstein" / "Me2026Robust.json").read_text())
    assert info["valid"] == "100.00"


def test_the_table_is_what_was_measured() -> None:
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert measured["complete"]
    assert not measured["quick"]
    rows = measured["art"]
    for row in rows:
        name = f"wasserball `{row['attack']}`" if row["package"] == "wasserball" else f"ART {row['attack']}"
        cells = [f"{100 * row[share]:.0f}%" for share in ("accuracy", "valid", "valid_accuracy")]
        ratio = f"{row['ratio']:,.0f}×" if row["ratio"] >= 10 else f"{row['ratio']:.1f}×"
        cells += [f"{row['seconds_an_image']:.2g}", ratio]
        shown = ["overflow", *"––––"] if row["failure"] else cells
        line = f"| {name} | {row['eps']:g} | {' | '.join(shown)} |"
        assert line in PAGE, line
    assert {(row["images"], row["steps"]) for row in rows} == {(20, 50)}
    assert measured["machine"]["hardware"].startswith("AMD EPYC (2 cores)")
    theirs = [row for row in rows if row["package"] != "wasserball" and not row["failure"]]
    assert all(f"{row['package']} has" in PAGE for row in theirs)
    equal = sorted(round(row["ratio"]) for row in theirs if row["eps"] == 0.1)
    assert f"**{equal[0]:,} to {equal[-1]:,} times**" in PAGE
    fooled = 1 - rows[0]["accuracy"]
    assert f"`PGD` fools the bundled model on {fooled:.0%} of them" in README
    assert f"is {equal[0]:,} to {equal[-1]:,} times faster" in README
    assert all(row["valid_accuracy"] == 1 for row in theirs)
    lenient = {(row["eps"], round(20 * (1 - row["lenient_accuracy"]))) for row in theirs}
    assert lenient == {(0.1, 0), (0.3, 0), (0.3, 2)}
