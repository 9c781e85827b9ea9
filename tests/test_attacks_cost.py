"""What attacks cost beside the model and the operators: how often they wait for a GPU, and how much memory they take.

Neither needs a GPU: what would wait for one is counted by name, and tensors are as large on a CPU.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import wasserball as wb
from wasserball.attacks import frank_wolfe, minimal_radius, pgd, state, trial
from wasserball.attacks.state import compact_
from wasserball.benchmarks.meter import PeakMemory
from wasserball.kernels.interface import Mixture
from wasserball.operators import Solution, project, rounding, solution
from wasserball.threat import Cost

BATCH, SIDE, CLASSES = 100, 16, 10
OPERATORS = [
    (pgd, "box_step"),
    (pgd, "project_step"),
    (pgd, "project_box"),
    (pgd, "step_that_spends"),
    (minimal_radius, "step_that_spends"),
    (frank_wolfe, "mixture"),
    (frank_wolfe, "box_step"),
    (frank_wolfe, "make_feasible"),
    (frank_wolfe, "project_box"),
]
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "item", "unique", "_unique2"}
"""What has to know values that a GPU has still to compute. (``tolist`` cannot be seen on a CPU.)"""


class Watch(PeakMemory):  # type: ignore[no-untyped-call]
    """Counts what would wait for a GPU, and the most bytes of tensors that were alive at once; neither when paused."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.running = 0, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.running:
            return func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        masks = name.startswith("index") and any(
            isinstance(leaf, Tensor) and leaf.dtype in (torch.bool, torch.uint8) for leaf in tree_leaves(args[1])
        )
        self.waits += name in WAITS or masks
        return super().__torch_dispatch__(func, types, args, kwargs)


class Sure(nn.Module):
    """A linear model that is sure of its first class, whatever it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE * SIDE, CLASSES)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(self.layer.weight.shape, generator=generator) / SIDE)
            self.layer.bias.zero_()[0] = 1000

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layer(images.flatten(1))
        return logits


class Unsure(Sure):
    """One that many images fool sooner or later."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.layer.bias.zero_()


def images() -> Tensor:
    noise = torch.rand(BATCH, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return (1.5 * noise - 0.3).clamp(0, 1)


def unwatched(watch: Watch, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, of which only the result counts."""

    def call(*args: Any, **kwargs: Any) -> Any:
        running, watch.running = watch.running, False
        result = function(*args, **kwargs)
        watch.running = running
        if running:
            watch.count(vars(result) if isinstance(result, Solution) else result)
        return result._replace(blend=unwatched(watch, result.blend)) if isinstance(result, Mixture) else result

    return call


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch that leaves out what happens inside operators, whichever backend does it."""
    watch = Watch()
    for module, name in OPERATORS:
        monkeypatch.setattr(module, name, unwatched(watch, getattr(module, name)))
    return watch


STEPS = 6
COST = wb.LocalCost(3)
LOOPS: dict[str, wb.Attack] = {
    "PGD": wb.PGD(eps=0.02, cost=COST),
    "PGD, fixed step": wb.PGD(eps=0.02, cost=COST, step=0.1),
    "PGD, final": wb.PGD(eps=0.02, cost=COST, box="final"),
    "PGD, as in the paper": wb.PGD(eps=0.02, cost=COST, step=0.1, box="final"),
    "PGD, off": wb.PGD(eps=0.02, cost=COST, box="off"),
    "FrankWolfe": wb.FrankWolfe(eps=0.02, cost=COST),
    "FrankWolfe, short": wb.FrankWolfe(eps=0.02, cost=COST, schedule="short"),
    "FrankWolfe, entropic": wb.FrankWolfe(eps=0.02, cost=COST, gamma=0.1),
    "FrankWolfe, final": wb.FrankWolfe(eps=0.02, cost=COST, box="final"),
    "FrankWolfe, off": wb.FrankWolfe(eps=0.02, cost=COST, box="off"),
    "MinimalRadius": wb.MinimalRadius(cost=COST),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_waits_for_a_gpu_once(name: str, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after the last step, the judgement of where it led, takes its time."""
    monkeypatch.setattr(minimal_radius, "WALKS", (("ce", 0),))
    for end in ("offer", "offer_images"):
        monkeypatch.setattr(trial.Trial, end, unwatched(watch, getattr(trial.Trial, end)))
    counts = []
    for steps in (STEPS, STEPS + 5):
        attack = dataclasses.replace(LOOPS[name], steps=steps, targeted=True, backend="torch")
        before = watch.waits
        with watch:
            result = attack(Sure(), images()[:4], torch.ones(4, dtype=torch.int64))
        counts.append(watch.waits - before)
        assert not result.success.any()
        assert (result.queries.backward >= steps).all()
    assert counts[1] - counts[0] == 5


@pytest.mark.parametrize(
    ("wait", "waits"),
    [
        (lambda values: values[values > 0], True),
        (lambda values: values.masked_select(values > 0), True),
        (lambda values: values.clone().__setitem__(values > 0, values[:2]), True),
        (lambda values: bool(values.any()), True),
        (lambda values: int(values[1]), True),
        (lambda values: values.nonzero(), True),
        (lambda values: values[torch.tensor([1, 2])], False),
        (lambda values: torch.where(values > 0, values, 0.0), False),
    ],
)
def test_the_watch_sees_what_waits(wait: Callable[[Tensor], object], waits: bool) -> None:
    values = torch.tensor([-1.0, 1.0, 2.0])
    with Watch() as watch:
        wait(values)
    assert bool(watch.waits) == waits


PLAN_BUFFERS = [
    (wb.PGD(eps=0.05, steps=4), 2.3),
    (wb.PGD(eps=0.05, steps=4, box="final"), 2.3),
    (wb.PGD(eps=0.05, steps=4, box="off"), 2.3),
    (wb.PGD(eps=0.05, steps=4, step=0.1, box="final"), 1.3),
    (wb.FrankWolfe(eps=0.05, steps=4), 1.3),
    (wb.FrankWolfe(eps=0.05, steps=4, box="final"), 1.3),
    (wb.FrankWolfe(eps=0.05, steps=4, box="off"), 12 / 25),
]


def one_by_one(batch: int, entries: int, device: torch.device) -> list[slice]:
    """A sample at a time, as of large images."""
    return [slice(first, first + 1) for first in range(batch)]


def project_anywhere(target: Tensor, mass: Tensor, budget: Tensor, cost: Cost, bounds: Any) -> Solution:
    """In the place of ``project_box``, which takes its time."""
    return project(target, mass, budget, cost)


@pytest.mark.parametrize("model", [Sure(), Unsure()], ids=["held", "fooled"])
@pytest.mark.parametrize(("attack", "limit"), PLAN_BUFFERS, ids=str)
def test_memory(attack: wb.Attack, limit: float, model: Sure, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (trial, rounding, state):
        monkeypatch.setattr(module, "chunks", one_by_one)
    for module in (pgd, frank_wolfe):
        monkeypatch.setattr(module, "project_box", unwatched(watch, project_anywhere))
    clean = images()
    with torch.no_grad():
        labels = model(clean).argmax(1)
    with watch:
        result = dataclasses.replace(attack, backend="torch")(model, clean, labels)
    assert result.success.any() == isinstance(model, Unsure)
    plans = watch.peak / (BATCH * 25 * clean[0].numel() * clean.element_size())
    assert limit - 0.3 < plans <= limit


@pytest.mark.parametrize("held", [[0, 1, 2, 3, 4, 5, 6], [6], [], [0, 2, 3, 6], [4, 5]], ids=str)
def test_rows_are_compacted_in_place(held: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 6, 100):
        monkeypatch.setitem(solution.CHUNK, "cpu", size)
        values = torch.arange(21.0).view(7, 3)
        wanted, start = values[held], values.data_ptr()
        found = compact_(values, torch.tensor(held, dtype=torch.int64))
        assert torch.equal(found, wanted)
        assert found.data_ptr() == start or not held
