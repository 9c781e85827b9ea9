"""Table 2, small: its numbers are those of exact transport, and it leaves what it says it leaves."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from rich.progress import Progress
from scipy.optimize import linprog

import wasserball as wb
from experiments import table2
from tests.truth import moves

SEED, SIZE, STEPS = 2, 6, 100


@pytest.fixture(scope="module")
def toy() -> table2.Toy:
    return table2.Toy.draw(SEED, SIZE)


@pytest.fixture(scope="module")
def answers(toy: table2.Toy) -> dict[str, table2.Answer]:
    return {answer.method: answer for answer in table2.solve(toy, STEPS, Progress(disable=True))}


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


def test_distance_is_that_of_the_linear_program(toy: table2.Toy, answers: dict[str, table2.Answer]) -> None:
    for images in (toy.target, *(answer.images for answer in answers.values())):
        for found, clean, image in zip(toy.certify(images).distance, toy.clean, images, strict=True):
            assert float(found) == pytest.approx(window_distance(clean, image, toy.cost), abs=1e-7)


def test_methods_end_where_they_should(toy: table2.Toy, answers: dict[str, table2.Answer]) -> None:
    distance = {method: toy.certify(answer.images).distance for method, answer in answers.items()}
    assert toy.truth[0] == 0.5
    assert 0.5 < toy.truth[1] < 1  # one projection on the boundary, one in the interior
    torch.testing.assert_close(distance[table2.PGD], toy.truth, rtol=0, atol=1e-6)
    torch.testing.assert_close(distance[table2.FRANK_WOLFE], toy.truth, rtol=0, atol=0.1)
    for method in table2.SINKHORN.values():
        assert (distance[method] < toy.truth).all()


def test_gap_bounds_the_excess_of_the_objective(toy: table2.Toy, answers: dict[str, table2.Answer]) -> None:
    best = toy.objective(answers[table2.PGD].images)
    assert (toy.gap(answers[table2.PGD].images) < 1e-9).all()
    for answer in answers.values():
        assert (toy.objective(answer.images) - best <= toy.gap(answer.images) + 1e-15).all()


def test_run_writes_what_verify_says(
    toy: table2.Toy, answers: dict[str, table2.Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.png"
    options = [f"--seed={SEED}", f"--size={SIZE}", f"--steps={STEPS}", f"--out={tmp_path / 'out'}", f"--picture={copy}"]
    assert table2.main(options) == 0
    printed = capsys.readouterr().out
    assert "2/2 valid" in printed
    assert "table2.png" in printed
    assert copy.read_bytes() == (tmp_path / "out" / "table2.png").read_bytes()

    record = json.loads((tmp_path / "out" / "table2.json").read_text(encoding="utf-8"))
    assert (record["seed"], record["size"]) == (SEED, SIZE)
    assert record["truth"] == toy.truth.tolist()
    assert record["versions"]["wasserball"] == wb.__version__
    for row, answer in zip(record["rows"], answers.values(), strict=True):
        certificate = wb.verify(toy.clean.flatten(2), answer.images.flatten(2), eps=toy.eps, cost=toy.window)
        assert row["method"] == answer.method
        assert row["distance"] == certificate.distance.tolist()
        assert row["valid"] == certificate.valid.tolist() == [True, True]
        assert row["iterations"] == answer.iterations.tolist()
        assert f"{row['distance'][0]:.6f}" in printed


def test_interruption_is_no_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wb.operators, "sinkhorn", interrupted)
    assert table2.main(["--size", "6", "--out", str(tmp_path)]) == 130
    assert "Stopped" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--steps", "--size"])
def test_counts_below_one_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        table2.main([option, "0"])
    assert "at least 1" in capsys.readouterr().err
