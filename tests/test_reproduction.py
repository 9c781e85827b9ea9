"""The experiments: nothing that was measured is lost or measured twice, and what the small ones say is so."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from typer.testing import CliRunner

import wasserball as wb
from experiments import (
    _lab,
    _paper,
    _table3,
    figure_convergence,
    figure_dykstra,
    table1,
    table2,
    table_feasibility,
    toy_lmo,
)
from experiments._examples import load_examples, save_examples
from experiments._lab import Experiment, Ledger, Setting
from experiments._victims import MNIST, MNIST_ROBUST, MNIST_SINKHORN, Judge
from wasserball import cli, zoo
from wasserball.attacks.attack import Ascent
from wasserball.operators import project, sinkhorn

SMALL = [toy_lmo.EXPERIMENT, figure_dykstra.EXPERIMENT, table2.EXPERIMENT, table1.EXPERIMENT]
RUN = dict(command="a command", commit="a commit")
EPS = (0.1, 0.3)


def forbidden() -> dict[str, Any]:
    raise AssertionError("measured twice")


def test_a_row_is_measured_once(tmp_path: Path) -> None:
    path = tmp_path / "results" / "some.json"
    ledger = Ledger.open(path, RUN)
    assert ledger.row(dict(method="a", eps=0.1), lambda: dict(value=1)) == dict(method="a", eps=0.1, value=1, run=0)
    again = Ledger.open(path, RUN | dict(commit="a later one"))
    assert again.row(dict(method="a", eps=0.1), forbidden)["value"] == 1
    again.row(dict(method="a", eps=0.2), lambda: dict(value=2))
    last = Ledger.open(path, RUN)
    assert [row["run"] for row in last.rows] == [0, 1]
    assert [run["commit"] for run in last.runs] == ["a commit", "a later one"]
    assert [row["value"] for row in last.find(method="a")] == [1, 2]
    assert last.find(method="b") == []


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "some.json", RUN)
    ledger.row(dict(method="a"), lambda: dict(value=1))
    with pytest.raises(AssertionError):
        ledger.row(dict(method="b"), forbidden)
    assert [row["method"] for row in Ledger.open(tmp_path / "some.json", RUN).rows] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["some.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": []}', '{"rows": 1, "runs": []}'])
def test_another_file_is_not_taken_for_results(tmp_path: Path, text: str) -> None:
    (tmp_path / "some.json").write_text(text)
    with pytest.raises(ValueError, match=r"some\.json must be the results of an experiment"):
        Ledger.open(tmp_path / "some.json", RUN)


def made_up(measure: Callable[[Setting, Ledger], None]) -> Experiment:
    return Experiment(name="made-up", summary="", measure=measure, table=lambda ledger: f"{len(ledger.rows)} rows")


def test_an_interruption_keeps_what_was_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(_: Setting, ledger: Ledger) -> None:
        ledger.row(dict(method="a"), lambda: dict(value=1))
        raise KeyboardInterrupt

    assert made_up(measure).main([f"--out={tmp_path}"]) == 130
    assert "goes on there" in capsys.readouterr().out
    assert made_up(lambda _, ledger: None).main([f"--out={tmp_path}"]) == 0
    assert (tmp_path / "made-up.md").read_text() == "1 rows\n"


def test_two_of_a_kind_do_not_write_over_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: Setting, __: Ledger) -> None:
        forbidden()

    def measure(_: Setting, ledger: Ledger) -> None:
        assert made_up(refuse).main([f"--out={tmp_path}"]) == 1
        ledger.row(dict(method="a"), lambda: dict(value=1))

    assert made_up(measure).main([f"--out={tmp_path}"]) == 0
    assert "made-up is being written to by another process" in capsys.readouterr().out.replace("\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made-up.json", "made-up.md"]


def test_missing_data_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(setting: Setting, _: Ledger) -> None:
        setting.data("mnist")

    assert made_up(measure).main([f"--out={tmp_path}", f"--data={tmp_path / 'nowhere'}"]) == 1
    printed = capsys.readouterr().out.replace("\n", "")
    assert "nowhere/mnist: --data must be a folder that has mnist" in printed
    assert not list(tmp_path.iterdir())


def test_results_say_where_they_are_from() -> None:
    about = _lab.provenance("wasserball reproduce table1", torch.device("cpu"), 3)
    assert about["command"] == "wasserball reproduce table1"
    assert about["seed"] == 3
    assert re.search(r"\((1 core|\d+ cores)\)$", about["hardware"])
    assert about["torch"] == torch.__version__


def test_counts_below_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "many"):
        with pytest.raises(SystemExit):
            table2.EXPERIMENT.main(["--size", text])
        assert f"must be at least 1, got {text}" in capsys.readouterr().err


@pytest.mark.parametrize("experiment", SMALL[:2], ids=lambda experiment: experiment.name)
def test_small_experiments_run_to_their_end(experiment: Experiment, tmp_path: Path) -> None:
    assert experiment.main(["--quick", f"--out={tmp_path}"]) == 0
    written = {path.suffix for path in tmp_path.iterdir()}
    assert written == {".json", ".md", *([".png"] if experiment.picture else [])}
    content = json.loads((tmp_path / f"{experiment.name}.json").read_text(encoding="utf-8"))
    assert content["runs"][0]["command"] == f"wasserball reproduce {experiment.name} --quick --out={tmp_path}"
    lines = (tmp_path / f"{experiment.name}.md").read_text(encoding="utf-8").splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) <= 2


def test_every_experiment_is_a_command() -> None:
    listed = CliRunner().invoke(cli.app, ["reproduce", "--list"]).stdout
    for experiment in SMALL:
        assert f"{experiment.name} " in listed


# ------------------------------------------------------------------------------------------------------ the small ones


def test_the_two_pixels_of_the_paper(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "toy.json", RUN)
    toy_lmo.two_pixels(ledger)
    values = {row["method"]: (row["plan"][0], row["feasible"]) for row in ledger.rows}
    assert values["read off the dual, ties to the first"] == ([1, 0], True)
    assert values["read off the dual, ties to the last"] == ([0, 1], False)
    assert values["read off the dual, gradient off by 1e-09"] == ([0, 1], False)
    exact, feasible = values["exact"]
    assert feasible
    assert exact == pytest.approx([0.5, 0.5], abs=1e-12)


def test_reading_a_plan_off_the_dual_is_the_minimum_over_rows() -> None:
    generator = torch.Generator().manual_seed(1)
    gradient, mass = torch.rand(2, 3, 1, 5, 4, generator=generator, dtype=torch.float64)
    lam, cost = torch.tensor([0.0, 0.1, 10.0], dtype=torch.float64), wb.LocalCost(3)
    plan = toy_lmo.naive(gradient, mass, lam, cost, last=False)
    torch.testing.assert_close(cost.row_sums(plan), mass)
    price, allowed = cost.entries(mass)
    score = torch.where(allowed, cost.gather(gradient) + lam.view(3, 1, 1, 1, 1) * price, torch.inf)
    least = (mass * score.amin(1)).sum((1, 2, 3))
    torch.testing.assert_close((plan * score.nan_to_num(posinf=0)).sum((1, 2, 3, 4)), least)
    assert torch.equal(plan[2], cost.identity(mass)[2])  # too dear to move


def test_dykstra_goes_where_the_projection_is() -> None:
    target, mass, cost = figure_dykstra.problem(0)
    trace = figure_dykstra.trace_dykstra(target, mass, cost, 300)
    for column in ("halfspace", "simplex"):
        assert trace[column][299] < trace[column][99] < trace[column][9]
    assert float(project(target, mass, figure_dykstra.BUDGET, cost).spent) == pytest.approx(1, abs=1e-6)
    newton = figure_dykstra.trace_newton(target, mass, cost)
    assert 0 <= newton["unspent"][-1] < 1e-11
    assert newton["iteration"] == sorted(newton["iteration"])


def test_exponents_are_those_of_powers() -> None:
    assert table1.exponent([10, 100, 1000], [5, 500, 50000]) == pytest.approx(2)
    assert table1.exponent([4, 9, 25], [1, 1, 1]) == pytest.approx(0)


def test_an_attack_on_a_stubborn_model_uses_the_ball() -> None:
    model, (images, labels) = zoo.load_model("mnist-standard"), zoo.load_sample()
    stubborn = _paper.Stubborn(model)
    assert torch.equal(stubborn(images)[:, :10], model(images))
    assert torch.equal(stubborn(images).argmax(1), model(images).argmax(1))
    attacks = table_feasibility.attacks(30)
    assert attacks.keys() == table_feasibility.PAPER.keys()
    ours = table_feasibility.examine(attacks["PGD"], model, images[:4], labels[:4])
    assert 0.45 < ours["distance"] <= 0.5  # though the model is fooled long before
    assert ours["largest_pixel"] <= 1
    assert ours["mass_above_one"] == 0
    theirs = table_feasibility.examine(attacks["the paper's PGD, box ignored"], model, images[:4], labels[:4])
    assert theirs["largest_pixel"] > 1
    assert theirs["mass_above_one"] > 0.01


# -------------------------------------------------------------------------------------------------------------- table 3


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A folder of data with the bundled model and digits where the paper's are."""
    images, labels = zoo.load_sample()
    (tmp_path / "checkpoints").mkdir()
    save_file(zoo.load_model("mnist-standard").state_dict(), tmp_path / MNIST.weights)
    (tmp_path / "mnist").mkdir()
    np.save(tmp_path / "mnist" / "test_images.npy", (images[:, 0] * 255).byte().numpy())
    np.save(tmp_path / "mnist" / "test_labels.npy", labels.numpy())
    return tmp_path


def test_an_experiment_on_data_runs_to_its_end(digits: Path) -> None:
    assert table_feasibility.EXPERIMENT.main(["--quick", f"--data={digits}", f"--out={digits / 'out'}"]) == 0
    lines = (digits / "out" / "table-feasibility.md").read_text(encoding="utf-8").splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == list(table_feasibility.PAPER)


def test_table_3_adds_thousands_up(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_table3, "CHUNK", 10)
    experiment = _table3.experiment("t", "", _table3.Plan(MNIST, 12, {_table3.IGNORED_PGD: (42.6, 4.2, 0.4, 0.0, 0.0)}))
    chosen = [f"--data={digits}", f"--out={digits}", "--quick", "--samples=12"]
    assert experiment.main([*chosen, "--attack", _table3.IGNORED_PGD, "PGD", "--eps", *map(str, EPS)]) == 0
    rows = json.loads((digits / "t.json").read_text(encoding="utf-8"))["rows"]
    images, labels = (column[:12] for column in zoo.load_sample())
    result = wb.PGD(eps=0.3, steps=10)(zoo.load_model("mnist-standard"), images, labels)
    mine = [row for row in rows if row["method"] == "PGD" and row.get("eps") == 0.3]
    assert [(row["first"], row["samples"]) for row in mine] == [(0, 10), (10, 2)]
    assert sum(row["held"] for row in mine) == int((~result.success).sum())
    printed = (digits / "t.md").read_text(encoding="utf-8")
    [turns] = [row["iterations"] for row in rows if row["method"] == "PGD" and "iterations" in row]
    both = (f"{100 * sum(r['held'] for r in rows if r.get('eps') == e and r['method'] == 'PGD') / 12:.1f}" for e in EPS)
    assert f"| PGD | 12 | {' | '.join(both)} | {turns:.0f} |" in printed
    clean = images[:10]
    for path in (digits / "t").iterdir():
        kept = load_examples(path, clean)
        assert torch.equal(kept.prediction, zoo.load_model("mnist-standard")(kept.adversarial).argmax(1))
        eps, inside = float(path.stem.rpartition("-")[2]), "ignored" not in path.stem
        certificate = wb.verify(clean, kept.adversarial, eps=eps, plan=kept.plan, bounds=(0, 1) if inside else None)
        assert certificate.valid.all(), str(certificate)
    assert len(list((digits / "t").iterdir())) == 4
    assert re.search(r"box ignored \| 12 \| [\d.]+ \(42\.6\) \| [\d.]+ \(0\.4\) \| \d+ \|", printed)


def test_images_are_counted_once() -> None:
    few, more, others = (
        dict(eps=0.1, first=f, samples=s, held=h) for f, s, h in ((0, 10, 9), (0, 100, 60), (100, 5, 3))
    )
    assert _table3.accuracy([more, few, others]) == "60.0"
    assert _table3.count([few, more, others]) == "105"
    assert _table3.apart([few, more, others, dict(others, first=200)]) == [more, others]
    assert _table3.count([few, dict(more, eps=0.2)]) == "10–100"


def test_images_from_elsewhere_are_kept_out_of_the_table(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = _table3.experiment("t", "", _table3.Plan(MNIST, 5, {}))
    chosen = [f"--data={digits}", f"--out={digits}", "--quick", "--samples=5", "--eps", "0.1", "--attack", "PGD"]
    assert experiment.main(chosen) == 0
    before = (digits / "t.md").read_text(encoding="utf-8")
    assert experiment.main([*chosen, "--first=20"]) == 0
    rows = [row for row in json.loads((digits / "t.json").read_text(encoding="utf-8"))["rows"] if "eps" in row]
    assert [row["first"] for row in rows] == [0, 20]
    assert (digits / "t.md").read_text(encoding="utf-8") == before
    assert experiment.main([*chosen, "--first=-1"]) == 1
    assert "--first must be at least 0, got -1" in capsys.readouterr().out


def test_slow_attacks_take_few_images_at_a_time(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_table3, "CHUNK", 20)
    experiment = _table3.experiment("t", "", _table3.Plan(MNIST, 5, {}))
    methods = [_table3.sinkhorn_name(1 / 1000), _table3.IGNORED_PGD]
    chosen = [f"--data={digits}", f"--out={digits}", "--quick", "--samples=5", "--eps", "0.1", "--attack", *methods]
    assert experiment.main(chosen) == 0
    rows = [row for row in json.loads((digits / "t.json").read_text(encoding="utf-8"))["rows"] if "eps" in row]
    assert [(row["method"], row["first"], row["samples"]) for row in rows] == [
        (methods[0], 0, 2),
        (methods[1], 0, 5),
        (methods[0], 2, 2),
        (methods[0], 4, 1),
    ]


def test_images_of_other_rows_are_not_measured_again(digits: Path) -> None:
    method = _table3.sinkhorn_name(1 / 1000)
    chosen = [f"--data={digits}", f"--out={digits}", "--quick", "--eps", "0.1", "--attack", method]
    for samples, pieces in ((4, 100), (6, 500), (6, 100)):
        experiment = _table3.experiment("t", "", _table3.Plan(replace(MNIST, pieces=pieces), samples, {}))
        assert experiment.main([*chosen, f"--samples={samples}"]) == 0
    rows = [row for row in json.loads((digits / "t.json").read_text(encoding="utf-8"))["rows"] if "eps" in row]
    assert [(row["first"], row["samples"]) for row in rows] == [(0, 4), (4, 2)]
    assert _table3.is_among(rows, 0, 6)
    assert _table3.is_among(rows, 3, 5)
    assert not _table3.is_among(rows, 0, 7)
    assert not _table3.is_among(rows[1:], 0, 6)


def test_answers_are_given_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (images, labels) = zoo.load_model("mnist-standard"), zoo.load_sample()
    settings: dict[bool, set[bool]] = {False: set(), True: set()}

    def note(_: object, inputs: tuple[torch.Tensor]) -> None:
        settings[inputs[0].requires_grad].add(torch.backends.cudnn.allow_tf32)

    model.register_forward_pre_hook(note)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    found = wb.PGD(eps=0.3, steps=3)(Judge(model), images[:4], labels[:4])
    assert found.success.any()
    assert settings == {False: {False}, True: {True}}
    assert torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    wb.PGD(eps=0.3, steps=1)(Judge(model), images[:4], labels[:4])
    assert settings[True] == {False, True}
    assert not torch.backends.cudnn.allow_tf32


def test_on_a_gpu_no_attack_is_slow() -> None:
    plan, slow = _table3.Plan(MNIST, 10_000, {}), _table3.sinkhorn_name(1 / 1000)
    assert [plan.batch(method, torch.device("cpu")) for method in ("PGD", slow)] == [1000, 100]
    assert [plan.batch(method, torch.device("cuda")) for method in ("PGD", slow)] == [1000, 1000]


def test_an_attack_that_is_not_in_the_table_is_refused(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = _table3.experiment("t", "", _table3.Plan(MNIST, 12, {}))
    assert experiment.main([f"--data={digits}", f"--out={digits}", "--attack", "CW"]) == 1
    assert "--attack must be among projected Sinkhorn, γ=1/1000;" in capsys.readouterr().out.replace("\n", " ")


def test_only_the_models_that_are_asked_for_are_attacked(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = _table3.experiment("t", "", _table3.Plan(MNIST_SINKHORN, 4, {}), _table3.Plan(MNIST_ROBUST, 4, {}))
    chosen = [f"--data={digits}", f"--out={digits}", "--quick", "--attack", "PGD", "--eps", "0.1"]
    assert experiment.main([*chosen, "--model", "mnist-robust"]) == 0  # the other one's weights are not there
    rows = json.loads((digits / "t.json").read_text(encoding="utf-8"))["rows"]
    assert {row["model"] for row in rows} == {"mnist-robust"}
    later = _table3.Plan(replace(MNIST, weights="checkpoints/later.safetensors", made_by="a command"), 4, {})
    experiment = _table3.experiment("t", "", later, _table3.Plan(MNIST, 4, {}))
    assert experiment.main(chosen) == 0
    assert "Left out: later. First make checkpoints/later.safetensors: a command" in capsys.readouterr().out
    rows = json.loads((digits / "t.json").read_text(encoding="utf-8"))["rows"]
    assert {row["model"] for row in rows} == {"mnist-robust", "mnist_standard"}
    assert experiment.main([*chosen, "--model", "later"]) == 1
    assert "there is no" in capsys.readouterr().out
    assert experiment.main([*chosen, "--model", "lenet"]) == 1
    printed = capsys.readouterr().out.replace("\n", " ")
    assert "--model must be among later, mnist_standard, got lenet" in printed


@pytest.mark.parametrize("name", ["PGD", "Frank-Wolfe"])
def test_an_attack_and_its_repaired_one_are_one_run(name: str) -> None:
    model, (images, labels) = zoo.load_model("mnist-standard"), zoo.load_sample()
    images, labels, last, asked = images[:40], labels[:40], _paper.Last(), 0

    def count(*_: object) -> None:
        nonlocal asked
        asked += 1

    model.register_forward_hook(count)
    for eps in (0.1, 0.3):
        for method in (f"the paper's {name}, repaired", f"the paper's {name}, box ignored"):
            tried, asked = _table3.make_attack(method, MNIST, eps, 15, 0), 0
            assert _table3.is_papers(tried)
            found = last(tried, model, images, labels)
            assert (asked > 15) == ("repaired" in method)
            truth = replace(tried, return_plan=True)(model, images, labels)
            for field in ("adversarial", "success", "prediction", "valid", "distance"):
                torch.testing.assert_close(getattr(found, field), getattr(truth, field))
            for field in ("margin", "loss"):  # of a model in float32
                torch.testing.assert_close(getattr(found, field).float(), getattr(truth, field).float())
            assert found.plan is not None
            assert truth.plan is not None
            torch.testing.assert_close(found.plan.values, truth.plan.values)
            assert bool(found.valid.all()) == ("repaired" in method)


def test_dual_iterations_are_those_of_the_steps() -> None:
    model, (images, labels) = zoo.load_model("mnist-standard"), zoo.load_sample()
    images, labels = images[:4], labels[:4]
    leaf = images.clone().requires_grad_()
    torch.autograd.backward(_paper.loss(model(leaf), labels).sum())
    assert leaf.grad is not None
    budget, cost = 0.3 * images.double().sum((1, 2, 3)), wb.LocalCost(5)
    answer = sinkhorn(images + 0.1 * leaf.grad.sign(), images, budget, cost, gamma=1e-3)
    tried = _table3.make_attack(_table3.sinkhorn_name(1e-3), MNIST, 0.3, 1, 0)
    found = _paper.dual_iterations(tried, model, images, labels)
    assert found == dict(iterations=float(answer.iterations.double().mean()))
    for method in (_table3.IGNORED_PGD, _table3.REPAIRED_FW, "PGD", "FrankWolfe"):
        tried = _table3.make_attack(method, MNIST, 0.3, 5, 0)
        assert 1 <= _paper.dual_iterations(tried, model, images, labels)["iterations"] < 30


def test_projected_sinkhorn_is_judged_by_its_last_image() -> None:
    model, (images, labels) = zoo.load_model("mnist-standard"), zoo.load_sample()
    images, labels = images[:8], labels[:8]
    tried = _table3.make_attack(_table3.sinkhorn_name(1e-3), MNIST, 0.5, 5, 0)
    assert isinstance(tried, wb.ProjectedSinkhorn)
    last = _paper.to_the_end(tried, model, images, labels).adversarial
    longer = _paper.to_the_end(replace(tried, steps=6), model, images, labels).adversarial
    assert all(not torch.equal(one, other) for one, other in zip(last, longer, strict=True))
    result = _table3.run(tried, model, images, labels, _paper.Last())
    assert torch.equal(result.adversarial, last)
    assert _table3.figures(tried, result) == dict(held=int((model(last).argmax(1) == labels).sum()))


@pytest.mark.parametrize("method", ["PGD", _table3.sinkhorn_name(1e-3)])
def test_kept_images_are_the_same_bit_for_bit(method: str, tmp_path: Path) -> None:
    model, (images, labels) = zoo.load_model("mnist-standard"), zoo.load_sample()
    images, labels = images[:6], labels[:6]
    tried = replace(_table3.make_attack(method, MNIST, 0.3, 5, 0), return_plan=True)
    result = tried(model, images, labels)
    assert result.plan is not None
    save_examples(tmp_path / "some.npz", images, result.adversarial, result.prediction, result.plan)
    kept = load_examples(tmp_path / "some.npz", images)
    assert torch.equal(kept.adversarial, result.adversarial)
    assert torch.equal(kept.prediction, result.prediction)
    assert (kept.plan is None) == (method != "PGD")  # entropy leaves a little everywhere
    if kept.plan is not None:
        assert torch.equal(kept.plan.values, result.plan.values)
    assert (tmp_path / "some.npz").stat().st_size < 30_000


PAPERS: list[Callable[[int], Ascent]] = [
    lambda steps: _paper.pgd(0.1, step=0.1, box="off", steps=steps),
    lambda steps: _paper.frank_wolfe(0.1, box="off", steps=steps),
    lambda steps: _paper.sinkhorn(0.1, gamma=1e-3, steps=steps),
]


@pytest.mark.parametrize("make", [*PAPERS, lambda steps: wb.PGD(eps=0.1, steps=steps)])
def test_convergence_begins_at_clean_images(make: Callable[[int], Ascent]) -> None:
    images, labels = (column[:6] for column in zoo.load_sample())
    model = zoo.load_model("mnist-standard")
    walk = figure_convergence.trace(make(4), model, images, labels)
    assert len(walk["loss"]) == len(walk["accuracy"]) == 4
    assert walk["loss"][0] == pytest.approx(float(F.cross_entropy(model(images).detach(), labels)), abs=1e-6)
    assert walk["loss"][1] != walk["loss"][0]


@pytest.mark.parametrize("make", PAPERS)
def test_convergence_is_step_by_step(make: Callable[[int], Ascent]) -> None:
    images, labels = (column[:6] for column in zoo.load_sample())
    model = zoo.load_model("mnist-standard")
    short, long = (figure_convergence.trace(make(steps), model, images, labels) for steps in (3, 5))
    assert short["loss"] == pytest.approx(long["loss"][:3], abs=1e-6)
