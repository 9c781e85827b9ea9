"""The adversarial images that lie beside the results are valid, and the named model sees in them what is said."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import wasserball as wb
from experiments import table3_cifar, table3_mnist, table_advtrained
from experiments._examples import load_examples
from experiments._lab import Ledger
from experiments._table3 import EXAMPLES, REPAIRED_PGD, Plan, examples_path
from experiments._victims import KEPT as WEIGHTS
from experiments._victims import Victim
from wasserball import zoo

RESULTS = Path(__file__).parents[1] / "docs" / "results"
DATA = [Path(__file__).parents[1] / "data", Path(__file__).parents[2] / "shared" / "data"]
TABLES: dict[str, tuple[Plan, ...]] = {
    "table3-mnist": (table3_mnist.STANDARD,),
    "table3-cifar": (table3_cifar.RESNET18, table3_cifar.RESNET20),
    "table-advtrained": (
        table_advtrained.FRANK_WOLFE_TRAINED,
        table_advtrained.SINKHORN_TRAINED,
        table_advtrained.ROBUST,
        table_advtrained.ROBUST_CIFAR,
    ),
}
KEPT = [
    pytest.param(path, plan.victim, float(path.stem.rpartition("-")[2]), id=path.stem)
    for table, plans in TABLES.items()
    for path in sorted((RESULTS / table).glob("*.npz"))
    for plan in plans
    if path.name.startswith(f"{plan.victim.model}-")
]


def find(name: str) -> Path:
    """Among the data or beside the results, or the test is left out."""
    found = [path for path in (*(folder / name for folder in DATA), WEIGHTS / Path(name).name) if path.exists()]
    if not found:
        pytest.skip(f"needs {name} in data/")
    return found[0]


def clean(victim: Victim) -> Tensor:
    """The first test images; those of MNIST are bundled."""
    if victim.data == "mnist":
        return zoo.load_sample()[0][:EXAMPLES]
    return zoo.load_data(find(victim.data), split="test").batch(0, EXAMPLES)[0]


@pytest.mark.skipif(not KEPT, reason="the images are in the repository, not in the sdist")
@pytest.mark.parametrize("table", TABLES)
def test_beside_each_attack_and_radius_lie_images(table: str) -> None:
    ledger = Ledger.open(RESULTS / f"{table}.json", {})
    tried = {(row["model"], row["method"], row["eps"]) for row in ledger.rows if "eps" in row}
    victims = {plan.victim.model: plan.victim for plan in TABLES[table]}
    expected = {examples_path(ledger, victims[model], method, eps) for model, method, eps in tried}
    assert expected == set((RESULTS / table).iterdir())


def test_their_names_say_what_they_are() -> None:
    ledger, [plan] = Ledger(Path("some.json"), {}), TABLES["table3-mnist"]
    name = "mnist_standard-the-papers-PGD-repaired-0.1.npz"
    assert examples_path(ledger, plan.victim, REPAIRED_PGD, 0.1) == Path("some", name)


@pytest.mark.parametrize(("path", "victim", "eps"), KEPT)
def test_they_are_in_the_ball_and_in_the_box_unless_that_is_ignored(path: Path, victim: Victim, eps: float) -> None:
    images = clean(victim)
    kept = load_examples(path, images)
    assert len(kept.adversarial) == EXAMPLES
    outside = "box-ignored" in path.stem or "Sinkhorn" in path.stem
    cost = wb.LocalCost(5) if kept.plan is None else kept.plan.cost  # Auto looks further
    bounds = None if outside else (0.0, 1.0)
    certificate = wb.verify(images, kept.adversarial, eps=eps, plan=kept.plan, cost=cost, bounds=bounds)
    assert certificate.valid.all(), str(certificate)


@pytest.mark.parametrize(("path", "victim", "eps"), KEPT)
def test_the_model_sees_in_them_what_is_said(path: Path, victim: Victim, eps: float) -> None:
    kept = load_examples(path, clean(victim))
    model = zoo.load_model(victim.network, weights=find(victim.weights) if victim.weights else None)
    with torch.no_grad():
        assert torch.equal(model(kept.adversarial).argmax(1), kept.prediction), f"at {eps}"


@pytest.mark.skipif(not WEIGHTS.exists(), reason="the weights are in the repository, not in the sdist")
def test_weights_that_are_kept_are_those_of_a_model_in_a_table() -> None:
    victims = {Path(plan.victim.weights).name: plan.victim for plans in TABLES.values() for plan in plans}
    kept = sorted(WEIGHTS.glob("*.safetensors"))
    assert kept
    for path in kept:
        model = zoo.load_model(victims[path.name].network, weights=path)
        with torch.no_grad():
            assert model(torch.rand(2, 3, 32, 32)).isfinite().all()
