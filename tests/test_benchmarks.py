"""The benchmark measures what it says: tables, JSON and picture from a quick run. No test looks at a time."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.test_package import OPTIONAL
from wasserball import benchmarks, zoo
from wasserball.benchmarks import steps
from wasserball.benchmarks.art import ArtRow
from wasserball.benchmarks.meter import Meter, PeakMemory
from wasserball.benchmarks.operators import OperatorRow
from wasserball.benchmarks.problem import make_problem
from wasserball.benchmarks.report import Machine, Record, short, table
from wasserball.benchmarks.scaling import ScalingRow, slope
from wasserball.benchmarks.steps import Victim, Watched
from wasserball.train.recipe import RECIPES

CPU = torch.device("cpu")
OPERATORS = [
    "project_step, cold",
    "project_step, warm",
    "box_step, warm",
    "linear_minimizer, exact",
    "project_box, warm",
]
ATTACKS = ["PGD", 'PGD, box="off"', "FrankWolfe", 'FrankWolfe, box="off"']


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench") / "new"


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    return benchmarks.run(quick=True, out=folder, say=lambda line: None)


def numbers(value: Any) -> Iterator[float]:
    """All numbers of a JSON document that are not flags."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def test_a_quick_run_measures_everything(record: Record) -> None:
    assert record.complete
    assert {row.operator for row in record.operators} >= set(OPERATORS)
    assert [row.attack for row in record.steps] == ATTACKS
    assert {row.axis for row in record.scaling} == {"pixels", "window", "batch"}
    trained = f"FrankWolfe(eps={RECIPES['mnist'].eps:g}, steps=10)"
    assert [(row.network, row.attack) for row in record.training] == [("mnist", trained)]
    assert all(row.ratio == pytest.approx(row.milliseconds / row.standard_milliseconds) for row in record.training)


def test_arts_attack_is_measured_where_it_is_asked_for(record: Record, tmp_path: Path) -> None:
    assert not record.art
    asked = benchmarks.run(parts=["art"], quick=True, out=tmp_path, say=lambda line: None)
    assert {row.package.split()[0] for row in asked.art} == {"wasserball", "ART"}
    assert [row.ratio for row in asked.art if row.attack == "PGD"] == [1]
    assert all(row.valid == 1 for row in asked.art if row.package == "wasserball")
    assert all(row.accuracy <= row.lenient_accuracy <= row.valid_accuracy for row in asked.art)
    assert all(row.valid <= row.lenient for row in asked.art)
    assert "Beside ART's Wasserstein attack" in (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert not (tmp_path / "bench.png").exists()  # nothing that could be drawn


def test_an_attack_that_gave_up_has_no_figures_in_the_table(record: Record) -> None:
    shares = dict(accuracy=1, valid=1, valid_accuracy=1, lenient=1, lenient_accuracy=1, largest_distance=0.0)
    row = ArtRow("ART", "A", 0.1, 2, 2, **shares, seconds_an_image=1.0, ratio=9.0, failure="Overflow.")
    text = Record(record.machine, art=[row]).markdown()
    [line] = [line for line in text.splitlines() if "Overflow." in line]
    assert not re.search(r"\d%|×", line)


def test_without_art_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "art", None)
    with pytest.raises(ValueError, match=r"pip install wasserball\[art\]"):
        benchmarks.run(parts=["art"], quick=True)


def test_the_json_holds_finite_numbers_and_no_date(record: Record, folder: Path) -> None:
    written = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    assert written == json.loads(record.json())
    assert all(map(math.isfinite, numbers(written)))
    for row in written["operators"]:
        assert min(row[key] for key in ("milliseconds", "paper_milliseconds", "ratio", "over_floor")) > 0
        assert row["megabytes_a_sample"] > 0
        assert row["ratio"] == pytest.approx(row["paper_milliseconds"] / row["milliseconds"])
    for row in written["steps"]:
        assert min(row[key] for key in ("milliseconds", "model_milliseconds", "plain_milliseconds", "ratio")) > 0
        assert row["image_buffers"] > 0
    for row in written["scaling"]:
        assert min(row["milliseconds"]) > 0
        assert len(row["sizes"]) == len(row["milliseconds"])
    assert set(written["machine"]) == {
        *(
            "device",
            "hardware",
            "threads",
            "torch_version",
            "wasserball_version",
            "kernels",
            "gigabytes_a_second",
            "load",
        )
    }
    assert written["machine"]["gigabytes_a_second"] > 0


def test_the_tables_name_all_that_was_measured(record: Record, folder: Path) -> None:
    text = (folder / "bench.md").read_text(encoding="utf-8")
    assert text == record.markdown()
    assert all(
        name in text for name in (*OPERATORS, *ATTACKS, "## Operators", "## Attack steps", "## Scaling", "## Training")
    )
    assert "Stopped" not in text
    assert "quick" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    measured = [*record.operators, *record.steps, *record.scaling, *record.training]
    assert len(rows) == 8 + len(measured)


def test_the_picture_is_drawn(record: Record, folder: Path) -> None:
    picture = (folder / "bench.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_precision_is_that_of_the_answers(record: Record) -> None:
    for row in record.operators:
        if row.operator.startswith(("project", "linear_minimizer")):
            assert row.unspent <= 1e-6 < row.paper_unspent


def test_nobody_leaves_an_attack_early(record: Record) -> None:
    assert all(row.fooled == 0 for row in record.steps)


def test_what_was_measured_before_ctrl_c_is_kept(tmp_path: Path) -> None:
    said = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("scaling, window"):
            raise KeyboardInterrupt

    record = benchmarks.run(parts=["scaling"], quick=True, out=tmp_path, say=say)
    assert not record.complete
    assert {row.axis for row in record.scaling} == {"pixels"}
    assert "Stopped before the end" in (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["complete"] is False
    assert (tmp_path / "bench.png").is_file()
    assert "stopped" in said


def test_one_stopped_at_once_is_written_too(tmp_path: Path) -> None:
    empty = Record(Machine("cpu", "a machine", 1, "2", "0", "reference", 1.0, 0.0))
    assert all(path.stat().st_size for path in empty.write(tmp_path))


@pytest.mark.parametrize("device", ["tpu", "", "meta", "cuda:99"])
def test_an_unknown_device_is_an_error(device: str) -> None:
    with pytest.raises(ValueError, match=f"device must .*'{device}'"):
        benchmarks.run(device, quick=True)


def test_an_unknown_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="parts must be of operators, steps, scaling, training, art, got 'all'"):
        benchmarks.run(parts=["all"], quick=True)


def test_slopes_are_exponents() -> None:
    sizes = [28, 64, 128, 512]
    assert slope(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert slope(sizes, [7.0] * 4) == pytest.approx(0, abs=1e-12)


def test_a_row_compares_two_sizes() -> None:
    row = ScalingRow("window", "project", "28×28", (3, 5, 9), (1.0, 2.0, 7.0), 1.0)
    assert row.ratio(9, 5) == 3.5


def test_peak_memory_counts_what_is_alive_at_once() -> None:
    given = torch.zeros(1000)
    with PeakMemory() as memory:
        first = given + 1  # 4,000 bytes
        view = first.view(10, 100)
        given.add_(1)
        del first, view
        second = torch.zeros(500)  # 2,000
        third = second.double()  # 4,000
        del second, third
        given.clone()  # 4,000
    assert memory.peak == 6000
    assert memory.alive == 0


def test_peak_memory_sees_a_backward_pass() -> None:
    leaf = torch.ones(1000, requires_grad=True)
    # The exponentials, kept for their gradient, and that; besides a few numbers.
    peak = Meter(CPU).peak_bytes(lambda: torch.autograd.grad(leaf.exp().sum(), leaf))
    assert 8000 <= peak <= 8100


def test_a_race_is_fair_and_has_patience_for_one_round() -> None:
    order: list[str] = []
    works = [lambda: order.append("a") or 1, lambda: order.append("b") or 2]  # type: ignore[func-returns-value]
    raced = Meter(CPU, repeats=3, burst=0).race(*works)
    assert order == ["a", "b"] * 4
    assert [answer for _, answer in raced] == [1, 2]
    assert all(time > 0 for time, _ in raced)
    order.clear()
    Meter(CPU, repeats=3, burst=0, patience=0).race(*works)
    assert order == ["a", "b"] * 2


def test_the_problem_is_a_step_of_an_attack() -> None:
    problem = make_problem((3, 1, 9, 9), 0.05, CPU)
    assert (problem.mass == 0).double().mean() == pytest.approx(1 / 3, abs=0.1)
    assert problem.gradient.abs().amax() <= 1
    assert (problem.lam > 0).all()
    assert (problem.cost.spent(problem.plan, problem.mass) / problem.budget > 0.9).all()
    assert problem.plan_bytes == 4 * 3 * 25 * 81


def test_a_watched_model_says_when_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Watched(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), CPU)
    assert model(torch.rand(2, 1, 2, 2)).argmax(1).max() < 3
    clock = iter([5.0, 6.0, 6.5, 7.0])
    monkeypatch.setattr(steps, "perf_counter", lambda: next(clock))

    def work() -> None:
        for batch in (2, 2, 2, 1):
            model(torch.rand(batch, 1, 2, 2))
        pytest.fail("there is nothing left to measure")

    assert model.pace(work, 1, 3) == 500
    assert model.shown == 1


def test_the_paper_s_steps_ascend() -> None:
    images = zoo.load_sample()[0][:4]
    victim = Victim.of("digits", zoo.load_model("mnist-standard"), images, 0.1, 0.1, CPU)
    downhill = victim.downhill(images)
    assert downhill.abs().flatten(1).amax(1).tolist() == [1.0] * 4
    assert (victim.labels == 10).all()
    for work in (victim.plain_pgd, victim.plain_frank_wolfe):
        victim.model.marks.clear()
        work()
        assert len(victim.model.marks) == 4


def test_a_table_lines_up() -> None:
    lines = table(["name", "ms"], [["a", "1,000"], ["longer", "2"]], left=1).splitlines()
    assert lines == ["| name   |    ms |", "| ------ | ----: |", "| a      | 1,000 |", "| longer |     2 |"]
    assert [short(number) for number in (0.012345, 9.876, 12_345.6)] == ["0.0123", "9.88", "12,346"]


@pytest.mark.parametrize(
    ("device", "load", "busy"), [("cpu", 0.0, False), ("cpu", 999.0, True), ("cuda", 999.0, False)]
)
def test_a_busy_machine_is_mentioned(device: str, load: float, busy: bool) -> None:
    record = Record(Machine(device, "a machine", 1, "2", "0", "reference", 1.0, load))
    assert ("was busy" in record.markdown()) == busy


def test_a_ratio_below_one_and_a_lonely_part_can_be_drawn(tmp_path: Path) -> None:
    machine = Machine("cpu", "a machine", 1, "2", "0", "reference", 1.0, 0.0)
    row = OperatorRow("MNIST", 2, "project", 4.0, 1.0, 0.25, 0.0, 1e-3, 9.0, 0.1)
    paths = Record(machine, complete=True, operators=[row]).write(tmp_path)
    assert paths[2].stat().st_size > 1000


MINIMAL = f"""
import sys
sys.modules.update(dict.fromkeys({OPTIONAL}))  # as if they were not installed
import wasserball
assert not {{"wasserball.benchmarks", "wasserball.cli"}} & set(sys.modules)
from wasserball import benchmarks
assert benchmarks.run(quick=True).complete
print("done")
"""


def test_torch_and_numpy_are_enough_to_measure() -> None:
    run = subprocess.run([sys.executable, "-c", MINIMAL], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.strip() == "done", run.stderr
    assert "memory bandwidth" in run.stderr
