"""The command line: what it offers, what it writes, and what it says to nonsense."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import wasserball
from wasserball import benchmarks, cli
from wasserball.benchmarks.report import Machine


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, prog_name="wasserball", env={"COLUMNS": "200", "TERM": "dumb"})


def test_the_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout == f"wasserball {wasserball.__version__}\n"


COMMANDS = ["demo", "attack", "evaluate", "verify", "report", "bench", "train", "reproduce", "version"]


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["nothing", "--help"])
def test_help_lists_the_commands(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert "Usage: wasserball" in result.output
    listed = [line.split()[1] for line in result.output.partition("Commands")[2].splitlines() if len(line.split()) > 2]
    assert [word for word in listed if word in COMMANDS] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_by_an_example(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"wasserball {command}" in result.output.partition("Example")[2]


def test_version_says_what_a_bug_report_needs() -> None:
    result = invoke("version")
    assert result.exit_code == 0
    assert all(word in result.stdout for word in (wasserball.__version__, torch.__version__, "Python"))


def test_every_option_of_bench_is_explained() -> None:
    result = invoke("bench", "--help")
    assert result.exit_code == 0
    assert all(option in result.output for option in ("--device", "--part", "--quick", "--out", "Ctrl-C"))


def test_bench_measures_the_parts_that_are_asked_for(tmp_path: Path) -> None:
    result = invoke("bench", "--quick", "--part", "scaling", "--out", str(tmp_path / "here"))
    assert result.exit_code == 0, result.output
    assert "## Scaling" in result.stdout
    assert "## Operators" not in result.stdout
    assert "scaling, window 9" in result.stderr
    assert (tmp_path / "here" / "bench.md").read_text(encoding="utf-8").strip() == result.stdout.strip()


def no_run(*_: Any, **__: Any) -> benchmarks.Record:
    raise AssertionError("nothing should have been measured")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "device must be cpu or cuda, got 'tpu'"),
        (["--device", "cuda:99"], "device must be available, got 'cuda:99': torch sees"),
        (["--part", "nonsense"], "'nonsense'"),
        (["--out", __file__], "is a file"),
        (["--fast"], "--fast"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_named(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "measure_operators", no_run)
    result = invoke("bench", "--quick", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said_clearly() -> None:
    result = invoke("bench", "--device", "cuda")
    assert result.exit_code == 2
    assert "torch sees no GPU" in result.output


def test_a_run_that_was_stopped_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("cpu", "a machine", 1, "2", "0", "reference", 1.0, 0.0)
    monkeypatch.setattr("wasserball.cli.bench.run", lambda *_, **__: benchmarks.Record(machine))
    result = invoke("bench")
    assert result.exit_code == 130
    assert "Stopped before the end" in result.stdout


def test_the_module_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wasserball", "bench", "--quick", "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == (tmp_path / "bench.md").read_text(encoding="utf-8").strip()
    assert {path.name for path in tmp_path.iterdir()} == {"bench.md", "bench.json", "bench.png"}
