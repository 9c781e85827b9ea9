"""A transport plan: its sums and its dense view by loops over the moves, and what a file keeps of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.truth import moves
from wasserball import Cost, DenseCost, LocalCost, TransportPlan, verify

FLOATS = [torch.float32, torch.float64]
INF = float("inf")
POINTS = DenseCost(torch.tensor([[0.0, 1.0, INF], [0.3, 0.0, 2.0], [1e-3, 7.0, 0.0]]))

# Each with the shape of one sample of mass.
LAYOUTS: dict[str, tuple[Cost, tuple[int, ...]]] = {
    "images": (LocalCost(5), (3, 6, 4)),
    "small images": (LocalCost(7, "l1", 1.5), (2, 1, 3)),
    "one pixel": (LocalCost(3, "linf", 2), (1, 1, 1)),
    "points": (POINTS, (3,)),
    "points with channels": (POINTS, (2, 3)),
}
layouts = pytest.mark.parametrize(("cost", "shape"), LAYOUTS.values(), ids=LAYOUTS)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def random_plan(cost: Cost, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> TransportPlan:
    """Multiples of 1/64 at the allowed moves of two samples: sums of them are exact, in float32 too."""
    amounts = np.random.default_rng(0).integers(0, 256, (2, *cost.plan_shape(torch.zeros(1, *shape))[1:])) / 64
    values = np.zeros_like(amounts)
    entry = moves(cost, shape).entry
    for sample, amount in zip(values, amounts, strict=True):
        sample[entry] = amount[entry]
    return TransportPlan(torch.from_numpy(values).to(dtype), cost)


def dense_by_loop(plan: TransportPlan, shape: tuple[int, ...]) -> Tensor:
    """``(B, points of all channels, points of all channels)``."""
    found, points = moves(plan.cost, shape), int(np.prod(shape))
    matrix = torch.zeros(len(plan.values), points, points, dtype=plan.values.dtype)
    for sample in range(len(matrix)):
        for move, (source, destination) in enumerate(zip(found.source, found.destination, strict=True)):
            matrix[sample, source, destination] = plan.values[(sample, *(index[move] for index in found.entry))]
    return matrix


@layouts
@floats
def test_sums_and_spending(cost: Cost, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    plan = random_plan(cost, shape, dtype)
    matrix = dense_by_loop(plan, shape)
    found = moves(cost, shape)
    price = torch.zeros(matrix.shape[1:], dtype=torch.float64)
    price[found.source, found.destination] = torch.from_numpy(found.price)
    assert torch.equal(plan.row_sums, matrix.sum(2).view(2, *shape))
    assert torch.equal(plan.image, matrix.sum(1).view(2, *shape))
    assert plan.row_sums.dtype == plan.image.dtype == dtype
    assert plan.spent.dtype == torch.float64
    assert plan.spent.tolist() == pytest.approx((matrix * price).sum((1, 2)).tolist(), rel=1e-14)


@layouts
@floats
def test_the_dense_view_is_the_matrix_of_each_channel(cost: Cost, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    plan = random_plan(cost, shape, dtype)
    dense = plan.dense()
    channels = shape[:1] if len(shape) > 1 else ()
    count = int(np.prod(shape[len(channels) :]))
    assert (dense.dtype, tuple(dense.shape)) == (dtype, (2, *channels, count, count))
    matrix = dense_by_loop(plan, shape)
    for channel, block in enumerate(dense.reshape(2, -1, count, count).unbind(1)):
        here = slice(channel * count, (channel + 1) * count)
        assert torch.equal(block, matrix[:, here, here])
        matrix[:, here, here] = 0
    assert not matrix.any()  # nothing moves between channels


@layouts
@floats
def test_the_identity_moves_nothing(cost: Cost, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    mass = random_plan(cost, shape, dtype).row_sums
    plan = TransportPlan.identity(mass, cost)
    assert torch.equal(plan.row_sums, mass)
    assert torch.equal(plan.image, mass)
    assert plan.spent.tolist() == [0, 0]
    assert torch.equal(plan.dense(), torch.diag_embed(mass.flatten(2) if len(shape) == 3 else mass))
    plan.values.zero_()
    assert mass.any()  # the plan has its own memory


@layouts
@floats
def test_a_file_keeps_all(cost: Cost, shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path) -> None:
    plan = random_plan(cost, shape, dtype)
    for path in (tmp_path / "plan.safetensors", str(tmp_path / "again")):
        plan.save(path)
        loaded = TransportPlan.load(path)
        assert loaded.values.dtype == dtype
        assert torch.equal(loaded.values, plan.values)
        if isinstance(cost, DenseCost):
            assert isinstance(loaded.cost, DenseCost)
            assert torch.equal(loaded.cost.matrix, cost.matrix)
        else:
            assert loaded.cost == cost
        assert torch.equal(loaded.spent, plan.spent)


@pytest.mark.parametrize("window", [3, 5, 9])
@floats
def test_a_wider_plan_is_the_same_plan(window: int, dtype: torch.dtype) -> None:
    plan = random_plan(LocalCost(3, "l1", 1.5), (2, 3, 4), dtype)
    wide = plan.widen(window)
    assert wide.cost == LocalCost(window, "l1", 1.5)
    assert wide.values.dtype == dtype
    assert torch.equal(wide.dense(), plan.dense())
    assert torch.equal(wide.row_sums, plan.row_sums)
    assert torch.equal(wide.image, plan.image)
    assert wide.spent.tolist() == pytest.approx(plan.spent.tolist(), rel=1e-14)
    wide.values.zero_()
    assert plan.values.any()


@pytest.mark.parametrize(("plan", "window"), [(5, 3), (3, 4), (3, -1)])
def test_a_plan_cannot_become_narrower(plan: int, window: int) -> None:
    with pytest.raises(ValueError, match=rf"^window must .* got {window}"):
        random_plan(LocalCost(plan), (1, 3, 3)).widen(window)


def test_points_have_no_window() -> None:
    with pytest.raises(ValueError, match=r"^window must .* got 5 for DenseCost"):
        random_plan(POINTS, (3,)).widen(5)


def test_a_loaded_plan_is_a_witness(tmp_path: Path) -> None:
    plan = random_plan(LocalCost(3), (1, 4, 5), torch.float32)
    plan.save(tmp_path / "plan")
    loaded = TransportPlan.load(tmp_path / "plan", device="cpu")
    radius = plan.spent / plan.row_sums.double().sum((1, 2, 3))
    certificate = verify(plan.row_sums, plan.image, eps=radius, plan=loaded, cost=LocalCost(3), bounds=None)
    assert certificate.valid.all(), certificate.faults


@pytest.mark.parametrize("kind", ["transposed", "expanded", "with a gradient"])
def test_any_tensor_can_be_saved(kind: str, tmp_path: Path) -> None:
    values = random_plan(POINTS, (3,)).values
    changed = {
        "transposed": values.transpose(1, 2).contiguous().transpose(1, 2),
        "expanded": values[:1].expand(4, 3, 3),
        "with a gradient": values.clone().requires_grad_(),
    }[kind]
    TransportPlan(changed, POINTS).save(tmp_path / "plan")
    assert torch.equal(TransportPlan.load(tmp_path / "plan").values, changed)


def safetensors_bytes(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> bytes:
    save_file(tensors, path, metadata)
    return path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"PK\x03\x04 an archive of something else", id="other format"),
        pytest.param(({"weight": torch.ones(2)}, None), id="weights"),
        pytest.param(({"values": torch.ones(1, 1, 1, 1, 1)}, {"format": "pt"}), id="no cost"),
        pytest.param(
            ({"other": torch.ones(2)}, {"format": "wasserball.TransportPlan", "cost": json.dumps({"window": 3})}),
            id="no values",
        ),
        pytest.param(
            ({"values": torch.ones(1, 9, 1, 2, 2)}, {"format": "wasserball.TransportPlan", "cost": '{"window": 5}'}),
            id="values of another cost",
        ),
        pytest.param(
            ({"values": torch.ones(1, 9, 1, 2, 2)}, {"format": "wasserball.TransportPlan", "cost": '{"window": 2}'}),
            id="even window",
        ),
    ],
)
def test_another_file_is_an_error(content: bytes | tuple[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else safetensors_bytes(path, *content))
    with pytest.raises(ValueError, match=r"^(path|values|window)\b"):
        TransportPlan.load(path)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TransportPlan.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("cost", "shape"),
    [
        (LocalCost(3), (9,)),
        (LocalCost(3), (2, 25, 1, 4, 4)),
        (LocalCost(3), (2, 1, 9, 4, 4)),
        (LocalCost(3), (2, 4, 4)),
        (LocalCost(3), (2, 9, 4)),
        (LocalCost(3), (2, 9, 4, 4)),
        (LocalCost(3), (2, 9, 1, 1, 4, 4)),
        (POINTS, (3, 3)),
        (POINTS, (2, 3, 4)),
        (POINTS, (2, 4, 3)),
        (POINTS, (2, 4, 4)),
        (POINTS, (2, 1, 1, 3, 3)),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else type(value).__name__,
)
def test_values_must_have_the_layout_of_the_cost(cost: Cost, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"(?s)^values must .* got (shape )?\(.*\)"):
        TransportPlan(torch.zeros(shape), cost)
