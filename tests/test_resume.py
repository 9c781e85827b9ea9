"""Processes that are killed: what was finished counts, what was begun is done again, and nothing is counted twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import wasserball as wb

BATCH, PAIRS, TIMEOUT = 4, 4, 300
ARGUMENTS = ["evaluate", "--attack=pgd,fw", "--eps=.1,.2", f"--batch-size={BATCH}", "--steps=10", "--probes=2"]


def command(out: Path, limit: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "wasserball", *ARGUMENTS, f"--limit={limit}", f"--out={out}", *more]


def shards(out: Path) -> int:
    return len(list((out / "shards").glob("*.parquet")))


def wait_for(out: Path, count: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + TIMEOUT
    while shards(out) < count and process.poll() is None:
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)


def undisturbed(out: Path, limit: int) -> wb.Run:
    subprocess.run(command(out, limit), capture_output=True, check=True, timeout=TIMEOUT)
    return wb.Run.open(out)


def figures(run: wb.Run) -> dict[str, Any]:
    """The summary but for seconds and environment."""
    summary = run.summary
    results = [{key: value for key, value in row.items() if key != "seconds"} for row in summary["results"]]
    return {key: value for key, value in summary.items() if key != "environment"} | {"results": results}


def kill_and_resume(out: Path, limit: int, kills: int) -> wb.Run:
    """A run that is killed so many times, each time at some moment after it has got a bit further."""
    chance = random.Random(0)
    units = limit // BATCH * PAIRS
    for number in range(kills):
        line = command(out, limit, *(["--resume"] if number else []))
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_for(out, (number + 1) * units // (kills + 2), process)
        time.sleep(0.3 * chance.random())
        process.kill()
        process.communicate()
    done = subprocess.run(command(out, limit, "--resume"), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    return wb.Run.open(out)


def compare(killed: wb.Run, whole: wb.Run) -> None:
    assert figures(killed) == figures(whole)
    mine, theirs = (run.rows().drop(["seconds"]) for run in (killed, whole))
    assert mine.equals(theirs)
    assert not list(killed.folder.rglob(".*.part"))


def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole", 16)
    compare(kill_and_resume(tmp_path / "killed", 16, kills=2), whole)


@pytest.mark.slow
def test_ten_kills(tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole", 200)
    compare(kill_and_resume(tmp_path / "killed", 200, kills=10), whole)


def test_control_c_stops_cleanly(tmp_path: Path) -> None:
    out = tmp_path / "run"
    # Shells start what runs in the background with this signal ignored, and it stays so for the processes below.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command(out, 40), stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(out, 1, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, said
    assert f"What is finished is in {out}; the same command with --resume goes on from there." in said.replace(
        "\n", " "
    )
    assert "Traceback" not in said
    assert shards(out) >= 1


def workers_of(launcher: int) -> list[int]:
    """The processes that torchrun started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.parametrize("victim", [0, 1])
def test_workers_share_the_work_and_one_may_die(tmp_path: Path, victim: int) -> None:
    whole, out = undisturbed(tmp_path / "whole", 24), tmp_path / "shared"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    line = [*launcher, *command(out, 24)[1:]]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(out, 2, process)
    children = workers_of(process.pid)
    assert len(children) == 2
    os.kill(children[victim], signal.SIGKILL)
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, said
    run = wb.Run.open(out)
    assert run.summary["environment"]["workers"] == 2
    mine, theirs = (r.rows().drop(["seconds"]) for r in (run, whole))
    assert len(mine) == len(theirs) == 24 * 4
    close = {"distance", "loss", "margin"}
    for name in mine.column_names:
        if name in close:
            assert mine[name].to_pylist() == pytest.approx(theirs[name].to_pylist(), rel=1e-5, abs=1e-5)
        elif name != "certificate":
            assert pa.Table.from_arrays([mine[name]], [name]).equals(pa.Table.from_arrays([theirs[name]], [name])), name
    valid = [[row["valid"] for row in table["certificate"].to_pylist()] for table in (mine, theirs)]
    assert valid[0] == valid[1]
