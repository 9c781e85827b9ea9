"""The commands that evaluate, attack, verify and report, as a user types them, and what they say to trouble."""

import csv
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import wasserball as wb
from wasserball import cli, zoo
from wasserball.evaluate import loop

OPTIONS = ("--steps=3", "--limit=6", "--batch-size=4", "--probes=0", "--device=cpu")


def invoke(*arguments: object) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli.app, words, prog_name="wasserball", env={"COLUMNS": "200", "TERM": "dumb"})


def said(result: Result) -> str:
    """What an error says, in one line; never a traceback."""
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    result = invoke("evaluate", *OPTIONS, "--attack=pgd,fw", "--eps=.1,.3", "--out", out)
    assert result.exit_code == 0, result.output
    assert f"Report: {out / 'report.html'}" in result.stdout
    return out


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> wb.Run:
    """A copy of the run to do harm to."""
    shutil.copytree(folder, tmp_path / "run")
    return wb.Run.open(tmp_path / "run")


def test_the_terminal_says_what_the_summary_says(tmp_path: Path) -> None:
    result = invoke(
        "evaluate", *OPTIONS[:-2], "--probes=2", "--attack=pgd,fw", "--eps=.1,.3", "--out", tmp_path / "run"
    )
    assert result.exit_code == 0, result.output
    summary = wb.Run.open(tmp_path / "run").summary
    for row in summary["results"]:
        [line] = [x for x in result.stdout.splitlines() if re.match(f"│ {row['attack']} +│ {row['eps']:g} ", x)]
        assert f"{row['robust_accuracy']:.1%}" in line
        assert f"{row['valid_fraction']:.1%}" in line
    for finding in summary["health"]:
        assert f"{finding['status']} " in result.stdout
        assert finding["check"] in result.stdout


def test_the_command_can_be_typed_again(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/wasserball", "evaluate", "--out", "a folder"])
    result = invoke("evaluate", *OPTIONS, "--attack=pgd", "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert wb.Run.open(tmp_path / "run").command == "wasserball evaluate --out 'a folder'"


def test_resume_of_a_finished_run_and_of_another(folder: Path) -> None:
    arguments = ("evaluate", *OPTIONS, "--attack=pgd,fw", "--out", folder)
    assert invoke(*arguments, "--eps=.1,.3", "--resume").exit_code == 0
    again = invoke(*arguments, "--eps=.1,.3")
    assert again.exit_code == 1
    assert f"{folder} holds a run already: resume it (--resume)" in said(again)
    other = invoke(*arguments, "--eps=.1,.2", "--resume")
    assert other.exit_code == 1
    assert f"{folder} holds a run of another configuration: eps is [0.1, 0.2], there [0.1, 0.3]" in said(other)


def test_a_failing_health_check_counts_where_it_is_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wasserball.evaluate.health import Finding

    monkeypatch.setattr(loop, "examine", lambda *_: [Finding("logits", "fail", "they are none")])
    for number, (options, code) in enumerate([((), 0), (("--strict",), 1)]):
        result = invoke("evaluate", *OPTIONS, *options, "--attack=pgd", "--out", tmp_path / str(number))
        assert result.exit_code == code
        assert "they are none" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--eps=a"], 2, "must be numbers with commas between them, got 'a'"),
        (["--eps=-1"], 1, "eps must be finite and >= 0"),
        (["--eps=.1,.1"], 1, "none twice"),
        (["--attack=cw"], 2, "must be among pgd, fw, auto, radius, sinkhorn, got 'cw'"),
        (["--attack=pgd,pgd"], 2, "must name no attack twice"),
        (["--window=4"], 2, "window must be an odd integer"),
        (["--device=tpu"], 2, "must be cpu or cuda, got 'tpu'"),
        (["--device=cuda:99"], 2, "must be available, got 'cuda:99'"),
        (["--model=nowhere"], 1, "'nowhere'"),
        (["--model=nowhere.py:build"], 1, "nowhere.py"),
        (["--data=nowhere"], 1, "'nowhere'"),
        (["--model=mnist"], 1, "weights"),
        (["--normalize=nonsense"], 1, "'nonsense'"),
        (["--limit=0"], 2, "--limit"),
        (["--out", __file__], 2, "is a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nonsense_is_refused_by_name(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    result = invoke("evaluate", "--steps=1", "--limit=2", "--out", tmp_path / "run", *arguments)
    assert result.exit_code == code, result.output
    assert message in said(result)


class Malicious:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_malicious_pickle_does_not_run(tmp_path: Path, writer: str) -> None:
    weights, mark = tmp_path / "weights.pt", tmp_path / "mark"
    if writer == "torch":
        torch.save({"weight": Malicious(mark)}, weights)
    else:
        weights.write_bytes(pickle.dumps(Malicious(mark)))
    for arguments in (["--model", weights], ["--model", "mnist", "--weights", weights]):
        result = invoke("evaluate", *arguments, "--out", tmp_path / "run")
        assert result.exit_code == 1
        assert str(weights) in said(result)
        assert not mark.exists()


def test_a_model_file_that_is_none_is_named(tmp_path: Path) -> None:
    for name in ("weights.safetensors", "weights.pt"):
        path = tmp_path / name
        path.write_bytes(b"these are no weights")
        result = invoke("evaluate", "--model", path, "--out", tmp_path / "run")
        assert result.exit_code == 1
        assert str(path) in said(result)


def digits(folder: Path, count: int = 4) -> None:
    """Bundled digits as pictures in class folders."""
    images, labels = zoo.load_sample()
    for number in range(count):
        path = folder / str(int(labels[number])) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((images[number, 0] * 255).round().byte().numpy()).save(path)
    for label in range(10):
        (folder / str(label)).mkdir(exist_ok=True)


def test_an_unreadable_picture_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "run"
    digits(pictures)
    last = sorted(pictures.rglob("*.png"))[-1]
    good = last.read_bytes()
    last.write_bytes(good[:-30])
    command = (
        "evaluate",
        "--data",
        pictures,
        "--steps=1",
        "--attack=pgd",
        "--probes=0",
        "--batch-size=1",
        "--out",
        out,
    )
    result = invoke(*command)
    assert result.exit_code == 1
    assert last.name in said(result)
    last.write_bytes(good)
    assert invoke(*command, "--resume").exit_code == 0
    assert wb.Run.open(out).summary["samples"] == 4


def test_attack_writes_pictures_that_are_valid_as_they_lie_there(tmp_path: Path) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "out"
    digits(pictures)
    result = invoke("attack", pictures, "--eps=.3", "--steps=20", "--batch-size=3", "--device=cpu", "--out", out)
    assert result.exit_code == 0, result.output
    model = zoo.load_model("mnist-standard")
    before, after = (zoo.load_data(str(folder)).batch(0, 4) for folder in (pictures, out))
    assert wb.verify(before[0], after[0], eps=0.3).valid.all()
    answers = model(after[0]).argmax(1)
    with (out / "results.csv").open() as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert len(rows) == 4
    found = zoo.load_data(str(out))
    for index in range(4):
        row = rows[found.where(index)]
        assert int(row["prediction"]) == int(answers[index])
        assert int(row["label"]) == int(before[1][index])
        assert row["success"] == str(bool(answers[index] != before[1][index]))
        assert row["valid"] == "True"
    fooled = sum(row["success"] == "True" for row in rows.values())
    assert fooled
    assert f"{fooled} of 4 pictures" in result.stdout


def test_attack_takes_pictures_without_labels(tmp_path: Path) -> None:
    images, _ = zoo.load_sample()
    (tmp_path / "in").mkdir()
    for number, name in enumerate(("a.png", "b.png")):
        Image.fromarray((images[number, 0] * 255).round().byte().numpy()).save(tmp_path / "in" / name)
    result = invoke("attack", tmp_path / "in", "--eps=.3", "--steps=5", "--out", tmp_path / "out", "--device=cpu")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.png", "b.png", "results.csv"}


def test_pictures_that_the_model_cannot_take_are_named(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "3" / "a.png")
    for arguments in (["attack", tmp_path, "--eps=.1"], ["evaluate", "--data", tmp_path]):
        result = invoke(*arguments, "--out", tmp_path / "out")
        assert result.exit_code == 1
        assert "(3, 32, 32), but: Given groups=1, weight of size" in said(result)


def test_attack_keeps_to_the_box(tmp_path: Path) -> None:
    result = invoke("attack", "mnist-sample", "--eps=.3", "--attack=sinkhorn", "--out", tmp_path)
    assert result.exit_code == 2
    assert "must keep to the box" in said(result)


def test_verify_says_that_all_is_well(folder: Path) -> None:
    for options in ((), ("--exact",)):
        result = invoke("verify", folder, *options)
        assert result.exit_code == 0, result.output
        assert "24 of 24 adversarial images are inside ball and box" in " ".join(result.stdout.split())
        assert "no problems" in result.stdout


def test_verify_finds_what_was_tampered_with(run: wb.Run) -> None:
    path = run.images(run.done()[0])
    content = bytearray(path.read_bytes())
    content[-40] ^= 0xFF  # in the last values of the file
    path.write_bytes(content)
    result = invoke("verify", run.folder)
    assert result.exit_code == 1
    assert "problem" in result.output


@pytest.mark.parametrize("name", ["shards", "images"])
def test_truncated_files_are_named(run: wb.Run, name: str) -> None:
    path = sorted((run.folder / name).glob("pgd*"))[0]
    path.write_bytes(path.read_bytes()[:-9])
    for command in (["verify", run.folder], ["report", run.folder]):
        result = invoke(*command)
        assert result.exit_code == 1, command
        assert str(path) in said(result)


def test_verify_and_report_want_a_run(tmp_path: Path) -> None:
    for command in ("verify", "report"):
        result = invoke(command, tmp_path)
        assert result.exit_code == 1
        assert f"{tmp_path} must be the folder of an evaluation" in said(result)


def test_an_unfinished_run_is_called_so(run: wb.Run) -> None:
    (run.folder / "summary.json").unlink()
    run.shard(run.done()[-1]).unlink()
    result = invoke("verify", run.folder)
    assert result.exit_code == 1
    assert "the run is not finished: 1 batches are missing" in said(result)
    assert "not finished, resume it" in said(invoke("report", run.folder))


def test_report_writes_the_page_anew_and_compares(run: wb.Run, folder: Path, tmp_path: Path) -> None:
    (run.folder / "report.html").unlink()
    assert invoke("report", run.folder).exit_code == 0
    assert (run.folder / "report.html").read_text().startswith("<!")
    assert invoke("report", run.folder, folder).exit_code == 2
    result = invoke("report", run.folder, folder, "--out", tmp_path / "new" / "both.html")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "new" / "both.html").exists()


def test_reproduce_lists_and_runs(capfd: pytest.CaptureFixture[str]) -> None:
    listed = invoke("reproduce", "--list")
    assert listed.exit_code == 0
    assert "table2" in listed.stdout
    unknown = invoke("reproduce", "table99")
    assert unknown.exit_code == 2
    assert "'table99'" in said(unknown)
    assert "--list" in invoke("reproduce", "--help").output
    assert invoke("reproduce", "table2", "--help").exit_code == 0
    assert "--size" in capfd.readouterr().out  # its own options


def test_numbers_are_python_numbers(folder: Path) -> None:
    """Parquet keeps types: a success is a bool, an index an integer."""
    table = wb.Run.open(folder).rows()
    kinds = {name: str(table.schema.field(name).type) for name in ("index", "success", "distance", "eps")}
    assert kinds == {"index": "int64", "success": "bool", "distance": "double", "eps": "double"}
    assert np.isfinite(table["distance"].to_numpy()).all()
