"""What an attack returns: its words and numbers, what a file keeps of it, and what rounding to 8 bits leaves of it."""

import dataclasses
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import wasserball as wb
from tests.victims import CLASSES, grey_images, network, predictions
from wasserball.attacks import Part, Queries

COST = wb.LocalCost(3)
LINE = wb.DenseCost((torch.arange(6.0)[:, None] - torch.arange(6.0)[None, :]).abs())


def batch() -> tuple[Tensor, Tensor]:
    """Images that 8 bits can hold; the first is one that the model gets wrong."""
    images = (grey_images(5) * 255).round() / 255
    labels = predictions(network(), images)
    labels[0] = (labels[0] + 1) % CLASSES
    return images, labels


@lru_cache
def result(kind: str) -> wb.AttackResult:
    images, labels = batch()
    if kind == "points":
        mass = images.mean(2)[:, 0].double()
        model = network(6, dtype=torch.float64)
        attack = wb.PGD(eps=0.3, steps=4, cost=LINE, return_plan=True, targeted=True)
        return attack(model, mass, predictions(model, mass).add(1) % CLASSES)
    attacks: dict[str, wb.Attack] = {
        "no plan": wb.PGD(eps=0.06, steps=4, cost=COST),
        "plan": wb.PGD(eps=torch.linspace(0.02, 0.1, 5), steps=4, cost=COST, return_plan=True),
        "gap": wb.FrankWolfe(eps=0.04, steps=4, cost=COST),
        "parts": wb.Auto(eps=0.06, steps=2, cost=COST, return_plan=True),
        "box ignored": wb.PGD(eps=0.06, steps=4, cost=COST, box="off", bounds=(0, 255)),
        "radii": wb.MinimalRadius(eps=0.2, steps=4, cost=COST),
    }
    if kind == "nothing":
        return attacks["no plan"](network(), images[:0], labels[:0])
    if kind == "box ignored":
        return attacks[kind](lambda pixels: network()(pixels / 255), images * 255, labels)
    return attacks[kind](network(), images, labels)


KINDS = ["no plan", "plan", "gap", "parts", "box ignored", "radii", "points", "nothing"]
kinds = pytest.mark.parametrize("kind", KINDS)


def check_equal(one: Any, other: Any) -> None:
    """Equal in type and bits, all the way down."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, wb.TransportPlan):
        check_equal(one.values, other.values)
        check_equal(one.cost, other.cost)
    elif isinstance(one, wb.DenseCost):
        check_equal(one.matrix, other.matrix)
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            check_equal(*pair)
    else:
        assert one == other


@kinds
def test_a_file_keeps_all_but_the_model(kind: str, tmp_path: Path) -> None:
    for path in (tmp_path / "result.safetensors", str(tmp_path / "named by a string")):
        result(kind).save(path)
        loaded = wb.AttackResult.load(path)
        for field in dataclasses.fields(wb.AttackResult):
            if field.name != "model":
                check_equal(getattr(loaded, field.name), getattr(result(kind), field.name))
        assert loaded.model is None
        assert result(kind).model is not None
        assert loaded.summary() == result(kind).summary()


def test_a_loaded_result_is_a_proof(tmp_path: Path) -> None:
    result("plan").save(tmp_path / "result")
    loaded = wb.AttackResult.load(tmp_path / "result")
    certificate = wb.verify(
        loaded.images,
        loaded.adversarial,
        eps=loaded.eps,
        plan=loaded.plan,
        cost=loaded.cost,
        bounds=loaded.bounds,
    )
    assert certificate.valid.all(), str(certificate)


def test_tensors_that_share_memory_can_be_saved(tmp_path: Path) -> None:
    still = dataclasses.replace(result("no plan"), adversarial=result("no plan").images)
    still.save(tmp_path / "result")
    assert torch.equal(wb.AttackResult.load(tmp_path / "result").adversarial, still.images)


def lacking(name: str, path: Path) -> None:
    """A result without one of its tensors."""
    whole = result("no plan")
    tensors = {"images": whole.images, "labels": whole.labels, "eps": whole.eps, "success": whole.success}
    tensors |= {"adversarial": whole.adversarial, "prediction": whole.prediction, "on_the_way": whole.on_the_way}
    tensors |= {"distance": whole.distance, "mass_error": whole.mass_error, "box_error": whole.box_error}
    tensors |= {"valid": whole.valid, "loss": whole.loss, "margin": whole.margin}
    tensors |= {"forward": whole.queries.forward, "backward": whole.queries.backward}
    words = {"attack": "PGD()", "bounds": [0, 1], "targeted": False, "seconds": 1.0, "parts": []}
    metadata = {"cost": json.dumps({"window": 3}), "result": json.dumps(words)}
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path, metadata)


@pytest.mark.parametrize("kind", ["empty", "text", "weights", "a plan", "no success", "no forward", "no words"])
def test_another_file_is_an_error(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("PNG, perhaps")
    elif kind == "weights":
        save_file({"weight": torch.ones(2)}, path)
    elif kind == "a plan":
        wb.TransportPlan.identity(grey_images(2), COST).save(path)
    elif kind == "no words":
        save_file({"weight": torch.ones(2)}, path, {"result": "{}", "cost": '{"window": 3}'})
    else:
        lacking(kind.removeprefix("no "), path)
    with pytest.raises(ValueError, match=r"^path must be a file written by AttackResult\.save, got .*file"):
        wb.AttackResult.load(path)


def test_a_file_with_everything_is_none(tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    lacking("nothing", tmp_path / "file")
    assert len(wb.AttackResult.load(tmp_path / "file")) == 5


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        wb.AttackResult.load(tmp_path / "nothing")


def made_up(**changes: Any) -> wb.AttackResult:
    """A result of four samples, written by hand."""
    zeros = torch.zeros(4, dtype=torch.float64)
    count = torch.tensor([1, 10, 100, 1000])
    columns: dict[str, Any] = dict(
        attack="PGD(eps=0.5)",
        images=torch.zeros(4, 1, 2, 2),
        labels=torch.zeros(4, dtype=torch.int64),
        eps=torch.full((4,), 0.5, dtype=torch.float64),
        cost=COST,
        bounds=(0, 1),
        targeted=False,
        adversarial=torch.zeros(4, 1, 2, 2),
        success=torch.tensor([True, True, False, True]),
        prediction=torch.zeros(4, dtype=torch.int64),
        on_the_way=torch.ones(4, dtype=torch.bool),
        mass_error=zeros,
        box_error=zeros,
        distance=torch.tensor([0.0, 0.1, 0.5, 0.3], dtype=torch.float64),
        valid=torch.ones(4, dtype=torch.bool),
        loss=zeros,
        margin=zeros,
        queries=Queries(count, 2 * count),
        seconds=1.25,
    )
    return wb.AttackResult(**columns | changes)


def test_the_summary_says_what_happened() -> None:
    words = "PGD(eps=0.5): 3/4 fooled · robust accuracy 25.0% · mean distance 0.2000 · 100.0% valid"
    queries = "1,111 forward and 2,222 backward queries · 1.2 s"
    assert made_up().summary() == f"{words} · {queries}"
    assert repr(made_up()) == f"AttackResult({words} · {queries})"
    left = made_up(valid=torch.tensor([True, False, True, True]))
    assert "75.0% valid: the rest left the box" in left.summary()
    assert "no image moved" in made_up(distance=torch.zeros(4)).summary()
    parts = (Part("PGD, ce", 3, 2, 1000, 10, 0.5), Part("Frank-Wolfe", 1, 0, 4, 3, 0.25))
    lines = made_up(parts=parts).summary().splitlines()
    assert lines[1:] == [
        "  PGD, ce: 2/3 broken, 1,000 + 10 queries, 0.5 s",
        "  Frank-Wolfe: 0/1 broken, 4 + 3 queries, 0.2 s",
    ]
    assert result("nothing").summary().endswith("no samples")


def test_robust_accuracy_by_radius() -> None:
    """Of four samples one holds, one was wrong already, and one each falls at 0.1 and at 0.3."""
    found = made_up()
    assert found.robust_accuracy() == 0.25
    curve = {0.0: 0.75, 0.05: 0.75, 0.1: 0.5, 0.29: 0.5, 0.3: 0.25, 0.5: 0.25, 9.0: 0.25}
    assert {eps: found.robust_accuracy(eps) for eps in curve} == curve


def test_results_are_joined_in_their_order() -> None:
    whole = result("plan")
    pieces = []
    for some in (slice(0, 2), slice(2, 5)):
        assert whole.plan is not None
        columns: dict[str, Any] = {
            field.name: getattr(whole, field.name)[some]
            for field in dataclasses.fields(whole)
            if isinstance(getattr(whole, field.name), Tensor)
        }
        plan = wb.TransportPlan(whole.plan.values[some], COST)
        queries = Queries(*(count[some] for count in whole.queries))
        parts = (Part("first", 2, 1, 5, 4, 0.5), Part("second", 1, 0, 3, 2, 0.25))
        pieces.append(dataclasses.replace(whole, **columns, plan=plan, queries=queries, seconds=2.0, parts=parts))
    joined = wb.AttackResult.join(pieces)
    for field in dataclasses.fields(whole):
        if field.name not in ("seconds", "parts", "model"):
            check_equal(getattr(joined, field.name), getattr(whole, field.name))
    assert joined.seconds == 4
    assert joined.parts == (Part("first", 4, 2, 10, 8, 1.0), Part("second", 2, 0, 6, 4, 0.5))
    assert wb.AttackResult.join(pieces[:1]) is pieces[0]


@pytest.mark.parametrize("kind", ["plan", "no plan", "parts", "radii"])
def test_images_of_8_bits_are_judged_anew(kind: str, tmp_path: Path) -> None:
    found = result(kind)
    rounded = found.quantized()
    levels = found.to_uint8()
    assert levels.dtype == torch.uint8
    torch.testing.assert_close(levels.double() / 255, rounded.adversarial.double(), rtol=0, atol=1e-7)
    assert torch.equal(rounded.adversarial, (levels.double() / 255).float())
    assert torch.equal(rounded.prediction, predictions(network(), rounded.adversarial))
    assert torch.equal(rounded.success, rounded.prediction != found.labels)
    assert rounded.valid.all()
    assert (rounded.distance <= found.eps * (1 + 1e-6)).all()
    assert wb.verify(found.images, rounded.adversarial, eps=found.eps, cost=COST).valid.all()
    assert (rounded.plan is None) == (found.plan is None)
    assert torch.equal(rounded.adversarial[0], found.images[0])  # it was wrong already
    assert rounded.success[found.success].double().mean() >= 0.5
    found.save(tmp_path / "result")
    loaded = wb.AttackResult.load(tmp_path / "result")
    assert torch.equal(loaded.to_uint8(network()), levels)
    with pytest.raises(ValueError, match=r"^model must be given .* a loaded result has none"):
        loaded.to_uint8()


def test_a_target_is_judged_anew() -> None:
    images, labels = batch()
    targets = (labels + 1) % CLASSES
    found = wb.PGD(eps=0.5, steps=5, cost=COST, targeted=True)(network(), images, targets)
    rounded = found.quantized()
    assert found.success.any()
    assert torch.equal(rounded.success, predictions(network(), rounded.adversarial) == targets)


def test_rounding_leaves_the_model_as_it_was() -> None:
    images, labels = batch()
    model = network()
    model[1].weight.requires_grad_(False)
    wb.PGD(eps=0.1, steps=2, cost=COST)(model, images, labels).quantized()
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True, True, True]
    assert all(module.training for module in model.modules())


def test_other_sources_than_8_bits_are_an_error() -> None:
    images = grey_images(3)
    found = wb.PGD(eps=0.05, steps=2, cost=COST)(network(), images, predictions(network(), images))
    with pytest.raises(ValueError, match=r"^images must hold whole"):
        found.to_uint8()


def test_nothing_is_rounded_to_nothing() -> None:
    assert result("nothing").to_uint8().shape == (0, 1, 6, 6)
    assert result("nothing").to_uint8().dtype == torch.uint8
