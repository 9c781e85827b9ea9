"""Table 2, small: its numbers are those of exact transport, and it leaves what it says it leaves."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.optimize import linprog

import wasserball as wb
from experiments import table2
from tests.truth import moves

SEED, SIZE, STEPS = 2, 6, 100


@pytest.fixture(scope="module")
def toy() -> table2.Toy:
    return table2.Toy.draw(SEED, SIZE)


@pytest.fixture(scope="module")
def images(toy: table2.Toy) -> dict[str, torch.Tensor]:
    return {method: solve().image for method, solve in table2.methods(toy, STEPS).items()}


def window_distance(clean: torch.Tensor, image: torch.Tensor, cost: wb.LocalCost) -> float:
    """Transport within the window as a linear program over the list of its moves."""
    move = moves(cost, tuple(clean.shape))
    both = sp.vstack([move.sums(ends, clean.numel()) for ends in (move.source, move.destination)])
    sums = np.concatenate([clean.numpy().ravel(), image.numpy().ravel()])
    found = linprog(move.price, A_eq=both, b_eq=sums, method="highs")
    assert found.status == 0, found.message
    return float(found.fun)


def test_images_have_mass_one_and_come_from_the_seed(toy: table2.Toy) -> None:
    again, other = table2.Toy.draw(SEED, SIZE), table2.Toy.draw(SEED + 1, SIZE)
    for name in ("clean", "target"):
        torch.testing.assert_close(getattr(toy, name).sum((1, 2, 3)), torch.ones(2, dtype=torch.float64))
        assert torch.equal(getattr(toy, name), getattr(again, name))
        assert not torch.equal(getattr(toy, name), getattr(other, name))


def test_distance_is_that_of_the_linear_program(toy: table2.Toy, images: dict[str, torch.Tensor]) -> None:
    for found in (toy.target, *images.values()):
        for distance, clean, image in zip(toy.certify(found).distance, toy.clean, found, strict=True):
            assert float(distance) == pytest.approx(window_distance(clean, image, toy.cost), abs=1e-7)


def test_methods_end_where_they_should(toy: table2.Toy, images: dict[str, torch.Tensor]) -> None:
    distance = {method: toy.certify(found).distance for method, found in images.items()}
    assert toy.truth[0] == 0.5
    assert 0.5 < toy.truth[1] < 1  # one projection on the boundary, one in the interior
    torch.testing.assert_close(distance[table2.PGD], toy.truth, rtol=0, atol=1e-6)
    torch.testing.assert_close(distance[table2.FRANK_WOLFE], toy.truth, rtol=0, atol=0.1)
    for method in table2.SINKHORN.values():
        assert (distance[method] < toy.truth).all()


def test_gap_bounds_the_excess_of_the_objective(toy: table2.Toy, images: dict[str, torch.Tensor]) -> None:
    best = toy.objective(images[table2.PGD])
    assert (toy.gap(images[table2.PGD]) < 1e-9).all()
    for found in images.values():
        assert (toy.objective(found) - best <= toy.gap(found) + 1e-15).all()


def test_the_table_says_what_verify_says(toy: table2.Toy, images: dict[str, torch.Tensor], tmp_path: Path) -> None:
    options = [f"--seed={SEED}", f"--size={SIZE}", f"--steps={STEPS}", f"--out={tmp_path}"]
    assert table2.EXPERIMENT.main(options) == 0
    rows = {row["method"]: row for row in json.loads((tmp_path / "table2.json").read_text(encoding="utf-8"))["rows"]}
    assert rows.pop("truth")["distance"] == toy.truth.tolist()
    printed = (tmp_path / "table2.md").read_text(encoding="utf-8")
    assert rows.keys() == images.keys()
    for method, found in images.items():
        certificate = wb.verify(toy.clean.flatten(2), found.flatten(2), eps=toy.eps, cost=toy.window)
        assert rows[method]["distance"] == certificate.distance.tolist()
        assert rows[method]["valid"] == certificate.valid.tolist() == [True, True]
        assert f"| {method} | {certificate.distance[0]:.4f} |" in printed
