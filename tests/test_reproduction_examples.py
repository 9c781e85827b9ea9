"""The adversarial images that lie beside the results are valid, and the named model sees in them what is said."""

from pathlib import Path

import pytest
import torch

import wasserball as wb
from experiments._examples import load_examples
from experiments._lab import Ledger
from experiments._table3 import EXAMPLES, REPAIRED_PGD, examples_path
from experiments._victims import MNIST
from wasserball import zoo

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SHARED = Path(__file__).parents[2] / "shared" / "data"
LEDGER = Ledger.open(RESULTS / "table3-mnist.json", {})
KEPT = sorted((RESULTS / "table3-mnist").iterdir())


def test_beside_each_attack_and_radius_lie_images() -> None:
    tried = {(row["method"], row["eps"]) for row in LEDGER.rows if "eps" in row}
    assert sorted(examples_path(LEDGER, MNIST, method, eps) for method, eps in tried) == KEPT
    assert examples_path(LEDGER, MNIST, REPAIRED_PGD, 0.1).name == "mnist_standard-the-papers-PGD-repaired-0.1.npz"


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_they_are_in_ball_and_box(path: Path) -> None:
    clean = zoo.load_sample()[0][:EXAMPLES]
    kept = load_examples(path, clean)
    assert len(kept.adversarial) == EXAMPLES
    eps = float(path.stem.rpartition("-")[2])
    certificate = wb.verify(clean, kept.adversarial, eps=eps, plan=kept.plan)
    assert certificate.valid.all(), str(certificate)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the paper's weights in ../shared/data")
@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_model_sees_in_them_what_is_said(path: Path) -> None:
    kept = load_examples(path, zoo.load_sample()[0][:EXAMPLES])
    model = zoo.load_model(MNIST.network, weights=SHARED / MNIST.weights)
    assert torch.equal(model(kept.adversarial).argmax(1), kept.prediction)
