"""docs/adapters.md: its examples run, one after the other, and its table is what was measured."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
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
    for row in measured["art"]:
        name = f"`{row['attack']}`" if row["package"] == "wasserball" else row["attack"]
        shares = [f"{100 * row[name]:.0f}%" for name in ("accuracy", "valid", "valid_accuracy")]
        times = [f"{row['seconds_an_image']:.2g}", f"{row['ratio']:,.0f}×" if row["ratio"] >= 10 else f"{row['ratio']:.1f}×"]
        line = f"| {row['package']} | {name} | {row['eps']:g} | {' | '.join([*shares, *times])} |"
        assert line in PAGE, line
    assert {f"{row['images']} digits" for row in measured["art"]} == {"20 digits"}
    assert {row["steps"] for row in measured["art"]} == {50}
