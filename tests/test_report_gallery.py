"""The pictures of the report: how many there are, and what is packed with them."""

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.test_report import begin, finish, made_up_batch, made_up_run
from wasserball.evaluate.outcomes import read_outcomes
from wasserball.evaluate.plans import SparsePlans
from wasserball.evaluate.report.gallery import pack_gallery


def test_of_large_images_there_are_200_thumbnails_at_most(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", (3, 64, 160), samples=150, attacks=("pgd", "fw"), eps=(0.1,), batch_size=30)
    gallery = pack_gallery(run, read_outcomes(run))
    assert gallery.shown == 200 // 3
    assert gallery.reduced
    assert (gallery.common["width"], gallery.common["height"]) == (128, 51)
    index = gallery.common["index"]
    assert (index[0], index[-1]) == (0, 149)
    assert np.diff(index).min() >= 2
    assert sum(pack_gallery(run, read_outcomes(run), thumbnails=100).shown for _ in range(2)) * 3 <= 200


def test_a_change_far_below_a_grey_level_can_be_seen(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", (1, 4, 4), 2)
    (unit,) = run.setting.units()
    batch, rows = made_up_batch(unit, torch.full((2, 1, 4, 4), 0.5), torch.Generator().manual_seed(0), planned=False)
    batch.adversarial[:] = 0.5
    batch.adversarial[0, 0, 0, 0] += 1e-5
    batch.adversarial[0, 0, 0, 1] -= 1e-5
    run.write(batch, rows)
    gallery = pack_gallery(finish(run), read_outcomes(run))
    assert gallery.shots[0]["scale"] == [pytest.approx(1e-5, rel=0.01), 0.0]
    assert gallery.shots[0]["planned"] == "00"


def test_arrows_are_the_largest_moves_of_all_channels_together(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", (3, 4, 5), 1)
    (unit,) = run.setting.units()
    clean = torch.full((1, 3, 4, 5), 0.5)
    batch, rows = made_up_batch(unit, clean, torch.Generator().manual_seed(0), planned=False)
    right, down = 13, 17  # of the 25 moves in a 5×5 window
    entries = torch.tensor([60 * right + 7, 60 * right + 20 + 7, 60 * right + 40 + 7, 60 * down + 11, 60 * down + 8])
    masses = torch.tensor([0.1, 0.1, 0.1, 0.2, 1e-4])  # the last is too faint to be drawn
    run.write(replace(batch, plans=SparsePlans((25, 3, 4, 5), torch.tensor([5]), entries, masses)), rows)
    (shots,) = pack_gallery(finish(run), read_outcomes(run)).shots
    kinds = {"counts": "u1", "source": "<u2", "target": "<u2", "weight": "u1"}
    found = {name: np.frombuffer(base64.b64decode(shots[name]), kind).tolist() for name, kind in kinds.items()}
    # Smallest first.
    assert found == dict(counts=[2], source=[11, 7], target=[16, 8], weight=[round(255 * (2 / 3) ** 0.5), 255])


def test_the_budget_is_kept_to(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", (1, 16, 16), samples=120, attacks=("pgd",), eps=(0.1,))
    outcomes = read_outcomes(run)
    everything = pack_gallery(run, outcomes)
    assert everything.shown == 120
    half = pack_gallery(run, outcomes, budget=60_000)
    weight = sum(len(str(part)) for entry in (half.common, *half.shots) for part in entry.values())
    assert 40 < half.shown < 80
    assert 40_000 < weight <= 60_000
    assert len(half.shots[0]["outcome"]) == len(half.common["index"]) == len(half.common["label"]) == half.shown
    rows = half.common["index"]
    assert half.shots[0]["prediction"] == outcomes["pgd", 0.1]["prediction"][rows].tolist()
