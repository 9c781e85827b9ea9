"""The run folder: files are there whole or not at all, what is damaged is named, and a second look believes nobody."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import wasserball as wb
from tests.victims import grey_images, network, predictions
from wasserball.evaluate import StoreError
from wasserball.evaluate.folder import write_whole
from wasserball.evaluate.plans import SparsePlans
from wasserball.evaluate.recheck import recheck, recheck_summary
from wasserball.threat import LocalCost

EPS, COUNT = 0.2, 6


@pytest.fixture
def run(tmp_path: Path) -> wb.Run:
    model, images = network(), grey_images(COUNT)
    data = images, predictions(model, images)
    attacks = [wb.PGD(eps=0, steps=4)]
    return wb.evaluate(model, data, attacks=attacks, eps=EPS, out=tmp_path / "run", batch_size=3, probes=0)


def resume(run: wb.Run) -> wb.Run:
    model, images = network(), grey_images(COUNT)
    data = images, predictions(model, images)
    attacks = [wb.PGD(eps=0, steps=4)]
    options: dict[str, Any] = dict(batch_size=3, probes=0, resume=True)
    return wb.evaluate(model, data, attacks=attacks, eps=EPS, out=run.folder, **options)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    window=st.sampled_from([1, 3, 5]),
    density=st.floats(0, 1),
    shape=st.sampled_from([(1, 1, 1), (1, 4, 5), (3, 3, 2)]),
)
def test_stored_plans_are_the_plans(seed: int, window: int, density: float, shape: tuple[int, ...]) -> None:
    generator, cost = torch.Generator().manual_seed(seed), LocalCost(window)
    images = torch.rand(4, *shape, generator=generator)
    images[0] = 0
    moves = torch.rand(cost.plan_shape(images), generator=generator)
    moves *= torch.rand(moves.shape, generator=generator) < density
    moves *= cost.entries(images)[1]
    moves[1] = 0
    centre = window**2 // 2
    moves[:, centre] = 0
    plan = moves * (images / moves.sum(1).clamp(min=1e-9) / 2).unsqueeze(1)
    stays = (images.double() - plan.double().sum(1)).float()
    plan[:, centre] = stays
    stored = SparsePlans.pack(wb.TransportPlan(plan, cost))
    read = SparsePlans.of(stored.tensors(), cost.plan_shape(images))
    assert torch.equal(read.unpack(images, cost, 0, 4).values, plan)
    assert torch.equal(read.unpack(images, cost, 1, 3).values, plan[1:3])
    for sample in range(4):
        entries, values = read.moves(sample)
        off = plan[sample].clone()
        off[centre] = 0
        assert torch.equal(off.flatten()[entries], values)
        assert len(values) == int((off > 0).sum())


def test_images_and_plans_are_read_as_they_were(run: wb.Run) -> None:
    model, images = network(), grey_images(COUNT)
    result = wb.PGD(eps=EPS, steps=4, return_plan=True)(model, images[3:], predictions(model, images[3:]))
    batch = run.read(run.done()[1])
    assert torch.equal(batch.clean, images[3:])
    assert torch.equal(batch.adversarial, result.adversarial)
    assert batch.plans is not None
    assert result.plan is not None
    assert torch.equal(batch.plans.unpack(batch.clean, batch.cost, 0, 3).values, result.plan.values)


def test_clean_images_of_8_bits_are_stored_in_8_bits(tmp_path: Path) -> None:
    model, images = network(), (grey_images(4) * 255).round() / 255
    data = images, predictions(model, images)
    run = wb.evaluate(model, data, attacks=[wb.PGD(eps=0, steps=1)], eps=EPS, out=tmp_path / "run", probes=0)
    assert load_file(run.clean(run.done()[0]))["clean"].dtype == torch.uint8
    assert torch.equal(run.read(run.done()[0]).clean, images)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not be written \(No space left on device\).*file"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


FULL_DISK = """
import resource, sys
import wasserball as wb
from wasserball.cli import app
images, labels = wb.zoo.load_sample()
wb.PGD(eps=0.1, steps=1)(wb.zoo.load_model("mnist-standard"), images[:2], labels[:2])  # kernels are compiled by now
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
app(["evaluate", "--limit=4", "--batch-size=2", "--steps=1", "--attack=pgd", "--probes=0", "--out=" + sys.argv[1]])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files there")
def test_a_full_disk_is_said_with_the_file(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-c", FULL_DISK, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert f"{out}/images/" in done.stderr
    assert "could not be written (File too large)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((out / "shards").iterdir())
    assert not list(out.rglob(".*.part"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, empty, Path.unlink], ids=["truncated", "empty", "missing"])
@pytest.mark.parametrize("kind", ["shards", "images", "clean"])
def test_damage_is_named_and_mended(run: wb.Run, kind: str, damage: Callable[[Path], None]) -> None:
    unit = run.done()[1]
    path = {"shards": run.shard, "images": run.images, "clean": run.clean}[kind](unit)
    before = run.rows().drop(["seconds"])
    damage(path)
    if kind == "shards" and damage is Path.unlink:
        assert run.missing() == [unit]  # work to do, no damage
    else:
        with pytest.raises(StoreError, match=str(path)):
            list(recheck(run))
        if kind == "shards":
            with pytest.raises(StoreError, match=f"{path} is damaged .* delete it and resume"):
                resume(run)
            with pytest.raises(StoreError, match=str(path)):
                run.rows()
        path.unlink(missing_ok=True)
        run.shard(unit).unlink(missing_ok=True)
    assert resume(run).rows().drop(["seconds"]).equals(before)
    assert not any(check.problems for check in recheck(run))


@pytest.mark.parametrize("content", ["{}", "nonsense", "[]", '{"format": 99}'])
def test_a_config_that_is_none_is_named(run: wb.Run, content: str) -> None:
    (run.folder / "config.json").write_text(content)
    with pytest.raises(StoreError, match=r"config.json must be"):
        wb.Run.open(run.folder)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path(__file__)):
        with pytest.raises(StoreError, match=f"{path} must be the folder of an evaluation"):
            wb.Run.open(path)


def test_a_process_that_was_killed_at_the_very_beginning_is_no_obstacle(run: wb.Run) -> None:
    before = run.rows().drop(["seconds"])
    for path in (run.folder / "shards", run.folder / "images"):
        shutil.rmtree(path)
    (run.folder / "summary.json").unlink()
    assert resume(run).rows().drop(["seconds"]).equals(before)  # the configuration was there, and nothing else
    shutil.rmtree(run.folder)
    run.folder.mkdir()
    (run.folder / ".config.json.99.part").write_bytes(b"{")
    assert resume(run).rows().drop(["seconds"]).equals(before)  # not even that
    assert not list(run.folder.rglob(".*.part"))


def test_what_a_killed_process_left_behind_is_cleared_away(run: wb.Run) -> None:
    left = run.folder / "shards" / ".pgd-0.2-000003.parquet.123.part"
    left.write_bytes(b"half")
    resume(run)
    assert not left.exists()


def test_a_second_look_finds_nothing_wrong_with_an_honest_run(run: wb.Run) -> None:
    for exact in (False, True):
        checks = list(recheck(run, exact=exact))
        assert [(check.images, check.certified, check.problems) for check in checks] == [(3, 3, [])] * 2
    assert recheck_summary(run) == []


def test_a_second_look_believes_no_image(run: wb.Run) -> None:
    unit = run.done()[0]
    tensors = load_file(run.images(unit))
    with_metadata = {"cost": json.dumps(dict(window=5, metric="euclidean", power=1.0))}
    moved = tensors["adversarial"].clone()
    moved[1, 0, 0, 0] = (moved[1, 0, 0, 0] + 0.5) % 1
    save_file(tensors | {"adversarial": moved}, run.images(unit), with_metadata)
    [check, _] = recheck(run)
    assert check.certified == 2
    assert any("sample 1: is called valid, but" in problem for problem in check.problems)


def test_a_second_look_believes_no_cost(run: wb.Run) -> None:
    """In another metric the same plan is cheaper."""
    unit = run.done()[0]
    cost = {"cost": json.dumps(dict(window=5, metric="linf", power=1.0))}
    save_file(load_file(run.images(unit)), run.images(unit), cost)
    [check, _] = recheck(run)
    assert any("has the cost" in problem and "linf" in problem for problem in check.problems)


def change_rows(run: wb.Run, **columns: Any) -> None:
    path = run.shard(run.done()[0])
    table = pq.read_table(path)
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    pq.write_table(table, path)


def test_a_second_look_believes_no_row(run: wb.Run) -> None:
    rows = run.rows([run.done()[0]]).to_pydict()
    sample = next(n for n, distance in enumerate(rows["distance"]) if distance > 0)
    change_rows(run, distance=[0.5 * distance for distance in rows["distance"]])
    [check, _] = recheck(run)
    assert any(f"sample {sample}: is called" in problem for problem in check.problems)
    change_rows(run, distance=rows["distance"], success=[not success for success in rows["success"]])
    [check, _] = recheck(run)
    assert len([problem for problem in check.problems if "success contradicts" in problem]) == 3
    assert any("robust_accuracy" in problem for problem in recheck_summary(run))
    change_rows(run, success=rows["success"], eps=[0.1] * 3)
    [check, _] = recheck(run)
    assert any("rows of another attack or radius" in problem for problem in check.problems)
    change_rows(run, eps=rows["eps"], index=[5, 6, 7])
    [check, _] = recheck(run)
    assert "must be those of samples 0 to 2" in check.problems[0]


def test_a_second_look_believes_no_summary(run: wb.Run) -> None:
    path = run.folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["clean_accuracy"] = 0.5
    summary["results"][0]["robust_accuracy"] += 0.1
    path.write_text(json.dumps(summary))
    problems = recheck_summary(run)
    assert len(problems) == 2
    assert all(str(path) in problem for problem in problems)
    path.write_text(path.read_text()[:-9])
    with pytest.raises(StoreError, match=r"summary.json must be JSON"):
        recheck_summary(run)
