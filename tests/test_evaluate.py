"""An evaluation as a whole: what it writes is what the attacks found, and whatever stops it, it goes on from there."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

import wasserball as wb
from tests.victims import CLASSES, grey_images, network, predictions
from wasserball.evaluate import StoreError, loop
from wasserball.evaluate.setting import default_batch_size, fingerprint_data, fingerprint_model, name_attacks
from wasserball.evaluate.summary import confidence_interval

COUNT, STEPS = 10, 4
ATTACKS = (wb.PGD(eps=0, steps=STEPS), wb.FrankWolfe(eps=0, steps=STEPS))
EPS = (0.05, 0.2)


def victim() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    model, images = network(), grey_images(COUNT)
    labels = predictions(model, images)
    labels[3] = (labels[3] + 1) % CLASSES  # one that is wrong from the start
    return model, (images, labels)


def evaluate(out: Path, **changes: Any) -> wb.Run:
    model, data = victim()
    options: dict[str, Any] = dict(attacks=ATTACKS, eps=EPS, out=out, batch_size=4, probes=0)
    options |= changes
    return wb.evaluate(options.pop("model", model), options.pop("data", data), **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wb.Run:
    return evaluate(tmp_path_factory.mktemp("runs") / "run", probes=2)


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    results = [{key: value for key, value in row.items() if key != "seconds"} for row in summary["results"]]
    return {key: value for key, value in summary.items() if key != "environment"} | {"results": results}


def test_the_rows_are_what_the_attacks_found(run: wb.Run) -> None:
    model, (images, labels) = victim()
    rows = run.rows().to_pylist()
    assert len(rows) == len(ATTACKS) * len(EPS) * COUNT
    for name, attack in zip(("pgd", "fw"), ATTACKS, strict=True):
        for eps in EPS:
            result = replace(attack, eps=eps)(model, images, labels)
            mine = [row for row in rows if (row["attack"], row["eps"]) == (name, eps)]
            assert [row["index"] for row in mine] == list(range(COUNT))
            for key, column in (
                *(("label", labels), ("prediction", result.prediction), ("success", result.success)),
                *(("distance", result.distance), ("loss", result.loss), ("margin", result.margin)),
            ):
                assert [row[key] for row in mine] == pytest.approx(column.tolist(), rel=1e-5, abs=1e-6)
            assert [row["queries"]["forward"] for row in mine] == result.queries.forward.tolist()
            assert all(row["certificate"]["valid"] and row["certificate"]["box_error"] == 0 for row in mine)
            assert [row["clean_prediction"] == row["label"] for row in mine] == [n != 3 for n in range(COUNT)]
            assert mine[3]["success"]
            assert mine[3]["distance"] == 0


def test_the_summary_counts_the_rows(run: wb.Run) -> None:
    summary, rows = run.summary, run.rows().to_pylist()
    assert list(summary) == [
        *("model", "data", "samples", "clean_accuracy", "results", "worst_case", "health", "environment")
    ]
    assert (summary["samples"], summary["clean_accuracy"]) == (COUNT, 0.9)
    assert [(row["attack"], row["eps"]) for row in summary["results"]] == [
        (attack, eps) for attack in ("pgd", "fw") for eps in EPS
    ]
    for row in summary["results"]:
        mine = [r for r in rows if (r["attack"], r["eps"]) == (row["attack"], row["eps"])]
        assert row["robust_accuracy"] == pytest.approx(sum(not r["success"] for r in mine) / COUNT)
        assert row["valid_fraction"] == 1
        moved = [r["distance"] for r in mine if r["success"] and r["distance"] > 0]
        assert row["mean_distance"] == pytest.approx(np.mean(moved))
        assert row["seconds"] == pytest.approx(sum(r["seconds"] for r in mine), abs=1e-3)
        low, high = row["confidence_interval"]
        assert 0 <= low <= row["robust_accuracy"] <= high <= 1
    for row in summary["worst_case"]:
        fooled = {r["index"] for r in rows if r["eps"] == row["eps"] and r["success"]}
        assert row["robust_accuracy"] == pytest.approx(1 - len(fooled) / COUNT)
    assert {finding["status"] for finding in summary["health"]} <= {"pass", "warn", "fail"}
    assert summary["environment"]["workers"] == 1


def test_the_folder_is_as_promised(run: wb.Run) -> None:
    assert {path.name for path in run.folder.iterdir()} == {
        *("config.json", "shards", "images", "summary.json", "report.html")
    }
    stems = {f"{attack}-{eps}-{first:06d}" for attack in ("pgd", "fw") for eps in EPS for first in (0, 4, 8)}
    assert {path.stem for path in (run.folder / "shards").iterdir()} == stems
    clean = {f"clean-{first:06d}" for first in (0, 4, 8)}
    assert {path.stem for path in (run.folder / "images").iterdir()} == stems | clean
    config = json.loads((run.folder / "config.json").read_text())
    assert config["attacks"]["pgd"] == f"PGD(eps=0.0, steps={STEPS}, return_plan=True)"
    assert config["model_fingerprint"] == fingerprint_model(victim()[0])


@pytest.mark.parametrize(("count", "total"), [(0, 10), (10, 10), (5, 10), (289, 1000), (0, 1), (1, 1)])
def test_the_interval_is_wilsons(count: int, total: int) -> None:
    truth = binomtest(count, total).proportion_ci(0.95, method="wilson")
    assert confidence_interval(count, total) == pytest.approx([truth.low, truth.high], abs=1e-6)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_a_run_that_was_stopped_goes_on_where_it_was(run: wb.Run, tmp_path: Path, after: int) -> None:
    calls = 0

    def limited(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Stopped
        return whole(*arguments)

    whole = wb.Run.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wb.Run, "write", limited)
        with pytest.raises(Stopped):
            evaluate(tmp_path / "run", probes=2)
    stopped = wb.Run.open(tmp_path / "run")
    assert len(stopped.done()) == after
    with pytest.raises(StoreError, match=r"no summary\.json"):
        _ = stopped.summary
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run" / "shards").iterdir()}
    resumed = evaluate(tmp_path / "run", probes=2, resume=True)
    assert without_times(resumed.summary) == without_times(run.summary)
    assert resumed.rows().drop(["seconds"]).equals(run.rows().drop(["seconds"]))
    for name, time in before.items():  # what was done was not done again
        assert (tmp_path / "run" / "shards" / name).stat().st_mtime_ns == time


def test_a_finished_run_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate(tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_bytes()

    def nothing(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(wb.PGD, "__call__", nothing)
    monkeypatch.setattr(loop, "examine", nothing)
    evaluate(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


def other_model() -> nn.Module:
    model = network()
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    return model


def other_data() -> tuple[Tensor, Tensor]:
    images, labels = victim()[1]
    images = images.clone()
    images[5, 0, 0, 0] = 0.5
    return images, labels


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (dict(eps=[0.05]), "eps is [0.05], there [0.05, 0.2]"),
        (dict(attacks=ATTACKS[:1]), "attacks is"),
        (dict(attacks=(wb.PGD(eps=0, steps=5), ATTACKS[1])), "attacks is"),
        (dict(limit=5), "samples is 5, there 10"),
        (dict(batch_size=5), "batch_size is 5, there 4"),
        (dict(model=other_model()), "model_fingerprint is"),
        (dict(data=other_data()), "data_fingerprint is"),
        (dict(name="another"), 'model is "another", there "Sequential"'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_configuration_is_refused(run: wb.Run, change: dict[str, Any], word: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}
    with pytest.raises(StoreError, match=re.escape(f"{run.folder} holds a run of another configuration")) as caught:
        evaluate(run.folder, resume=True, **change)
    assert word in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")} == before


def test_a_folder_that_is_in_use_is_not_overwritten(run: wb.Run, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds a run already: resume it"):
        evaluate(run.folder)
    (tmp_path / "something").write_text("mine")
    with pytest.raises(StoreError, match=r"must be a new or an empty folder"):
        evaluate(tmp_path)
    with pytest.raises(StoreError, match=r"must be a folder, got a file"):
        evaluate(tmp_path / "something")
    assert (tmp_path / "something").read_text() == "mine"


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    from wasserball.evaluate.folder import locked

    with locked(tmp_path / "run", wanted=True), pytest.raises(StoreError, match="written to by another process"):
        evaluate(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(attacks=[]), "attacks must be a list with at least one attack"),
        (dict(attacks="pgd"), "attacks must be a list"),
        (dict(attacks=["cw"]), "attacks must be among pgd, fw, auto, radius, sinkhorn .* got 'cw'"),
        (dict(attacks=[5]), "attacks must hold names or attacks, got int"),
        (dict(attacks=["pgd", wb.PGD(eps=0.3)]), "attacks must differ"),
        (dict(attacks=[wb.PGD(eps=0, targeted=True)]), "attacks must not be targeted"),
        (dict(attacks=[wb.PGD(eps=0, cost=wb.DenseCost(torch.ones(36, 36) - torch.eye(36)))]), "between pixels"),
        (dict(attacks=[wb.PGD(eps=0, bounds=(0, 2))]), r"attacks must have the bounds \(0, 1\)"),
        (
            dict(data=(torch.ones(2, 3, 8, 8), torch.zeros(2).long())),
            r"model must take images of images, \(3, 8, 8\), but",
        ),
        (dict(eps=[]), "eps must hold at least one radius"),
        (dict(eps=[0.1, 0.1]), "none twice"),
        (dict(eps=[-1.0]), "eps must be finite and >= 0"),
        (dict(limit=0), "limit must be an integer >= 1, got 0"),
        (dict(batch_size=0), "batch_size must be an integer >= 1, got 0"),
        (dict(probes=-1), "probes must be an integer >= 0, got -1"),
        (dict(data=(torch.full((2, 1, 6, 6), 2.0), torch.zeros(2).long())), r"must be in \[0, 1\]"),
        (dict(data=(torch.ones(2, 1, 6, 6), torch.tensor([0, -1]))), "must have labels to evaluate on, sample 1"),
        (dict(data=(torch.ones(2, 1, 6, 6), torch.tensor([0, 4]))), "labels must be from 0 to 3"),
        (dict(model="nonsense"), "nonsense"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nonsense_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(tmp_path / "run", **change)


def test_attacks_of_one_kind_are_told_apart() -> None:
    named = name_attacks(["pgd", wb.PGD(eps=1, steps=7), wb.PGD(eps=0.5, loss="dlr"), "auto"])
    assert list(named) == ["pgd", "pgd-2", "pgd-3", "auto"]
    assert all(attack.eps == 0 and attack.return_plan for attack in named.values())


def test_minimal_radius_and_baselines_are_attacks_too(tmp_path: Path) -> None:
    attacks = [wb.MinimalRadius(steps=3), wb.ProjectedSinkhorn(eps=0, steps=2, gamma=0.1)]
    summary = evaluate(tmp_path / "run", attacks=attacks, eps=0.2).summary
    assert [row["attack"] for row in summary["results"]] == ["radius", "sinkhorn"]


def test_fingerprints_see_any_change() -> None:
    model, data = network(), wb.zoo.load_data(victim()[1])
    assert fingerprint_model(model) == fingerprint_model(network())
    assert fingerprint_model(model) != fingerprint_model(other_model())
    assert fingerprint_model(lambda images: images) is None
    changed = wb.zoo.load_data(other_data())
    assert fingerprint_data(data, COUNT) != fingerprint_data(changed, COUNT)
    assert fingerprint_data(data, 4) == fingerprint_data(changed, 4)
    assert fingerprint_data(data, 1)[1] == (1, 6, 6)


def test_a_world_that_torchrun_did_not_make_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")  # as some schedulers do
    assert evaluate(tmp_path / "run").summary["environment"]["workers"] == 1


def test_a_unit_is_about_what_an_attack_takes_at_a_time() -> None:
    attacks = name_attacks(["pgd"])
    assert default_batch_size(attacks, (1, 28, 28), "cpu") == 256
    assert default_batch_size(attacks, (3, 224, 224), "cpu") == 8
    assert default_batch_size(attacks, (1, 28, 28), "cuda") == 2**25 // (25 * 28 * 28)
    assert default_batch_size(attacks, (3, 224, 224), "cuda") == 64  # not a file for every 8 pictures
