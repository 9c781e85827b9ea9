"""What the operators cost, beside the paper's algorithms written plainly, in one run: ratios, effort and memory.

``make bench`` runs this on the CPU; ``--device cuda`` on a GPU. Times depend on the machine and its load, ratios less.
The paper's repair of the box is given 20 rounds, enough to meet the box to 1e-3 on MNIST, where it asks for hundreds.
"""

import argparse
import json
import platform
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import wasserball as wb
from wasserball.operators import Solution

SIZES = {"MNIST": (50, 1, 28, 28), "CIFAR-10": (20, 3, 32, 32), "ImageNet": (1, 3, 224, 224)}
RADII = {"MNIST": 0.1, "CIFAR-10": 0.005, "ImageNet": 0.001}
REPEATS = 5
PATIENCE = 5_000
"""Milliseconds, after which nothing is repeated."""
WARM_STEPS = 5

Pair = tuple[Callable[[], Solution], Callable[[], Solution]]


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes of tensors, made while it was active, that were alive at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self.known:
                storage = leaf.untyped_storage()
                self.known.add(storage._cdata)
                self.alive += storage.nbytes()
                self.peak = max(self.peak, self.alive)
                weakref.finalize(storage, self._release, storage._cdata, storage.nbytes())
        return result

    def _release(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size


@dataclass(frozen=True)
class Row:
    """One operator on one kind of image, beside the paper's way of doing it."""

    data: str
    batch: int
    operator: str
    milliseconds: float
    paper_milliseconds: float
    ratio: float
    unspent: float
    """The largest share of the budget that is left, where it binds."""
    paper_unspent: float
    evaluations: dict[int, int]
    """How many samples took how many evaluations of the dual."""
    bytes_per_sample: int


def clock(work: Callable[[], Solution], device: torch.device) -> tuple[float, Solution]:
    """The median time of a few runs, in milliseconds, and what came out."""
    times: list[float] = []
    # The first run warms up, and long ones need not be repeated.
    while len(times) < 2 or (len(times) <= REPEATS and sum(times) < PATIENCE):
        start = time.perf_counter()
        solution = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    return median(times[1:]), solution


def unspent(solution: Solution, budget: Tensor) -> float:
    binding = solution.lam > 0
    return float((1 - solution.spent / budget)[binding].max()) if binding.any() else 0.0


def cases(shape: tuple[int, ...], eps: float, device: torch.device) -> tuple[dict[str, Pair], Tensor]:
    """Each operator with the paper's algorithm for it, and the budgets, for a step of an attack."""
    generator = torch.Generator().manual_seed(0)
    cost = wb.LocalCost(5)
    mass = (1.5 * torch.rand(shape, generator=generator) - 0.5).clamp(min=0).to(device)
    budget = eps * mass.double().flatten(1).sum(1)
    steady = torch.randn(shape, generator=generator).to(device)

    def gradient() -> Tensor:
        # The gradient of an attack turns slowly.
        turned = steady + 0.3 * torch.randn(shape, generator=generator).to(device)
        return turned / turned.abs().amax((1, 2, 3), keepdim=True)

    plan, lam, mu = cost.identity(mass), None, None
    for _ in range(WARM_STEPS):
        last = wb.operators.project_box(plan + 0.1 * cost.gather(gradient()), mass, budget, cost, lam=lam, mu=mu)
        assert last.plan is not None
        assert last.mu is not None
        plan, lam, mu = last.plan, last.lam, last.mu.to(mass.dtype)
    slope = gradient()
    target = plan + 0.1 * cost.gather(slope)
    ops = wb.operators
    return {
        "project, cold": (
            lambda: ops.project(target, mass, budget, cost),
            lambda: ops.bisection_projection(target, mass, budget, cost),
        ),
        "project, warm": (
            lambda: ops.project(target, mass, budget, cost, lam=lam),
            lambda: ops.bisection_projection(target, mass, budget, cost),
        ),
        "linear_minimizer, exact": (
            lambda: ops.linear_minimizer(slope, mass, budget, cost),
            lambda: ops.entropic_bisection_oracle(slope, mass, budget, cost),
        ),
        "linear_minimizer, γ=1e-3": (
            lambda: ops.linear_minimizer(slope, mass, budget, cost, gamma=1e-3),
            lambda: ops.entropic_bisection_oracle(slope, mass, budget, cost),
        ),
        "project_box, cold": (
            lambda: ops.project_box(target, mass, budget, cost),
            lambda: ops.capacity_projection(target, mass, budget, cost, rounds=20),
        ),
        "project_box, warm": (
            lambda: ops.project_box(target, mass, budget, cost, lam=lam, mu=mu),
            lambda: ops.capacity_projection(target, mass, budget, cost, rounds=20),
        ),
    }, budget


def measure(name: str, device: torch.device) -> list[Row]:
    shape = SIZES[name]
    pairs, budget = cases(shape, RADII[name], device)
    rows = []
    for operator, (ours, papers) in pairs.items():
        took, solution = clock(ours, device)
        paper_took, paper = clock(papers, device)
        with PeakMemory() as memory:
            ours()
        rows.append(
            Row(
                name,
                shape[0],
                operator,
                round(took, 3),
                round(paper_took, 3),
                round(paper_took / took, 2),
                unspent(solution, budget),
                unspent(paper, budget),
                dict(sorted(Counter(solution.iterations.tolist()).items())),
                memory.peak // shape[0],
            )
        )
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    grid = Table(title="Operators beside the paper's algorithms, one run")
    for heading in ("data", "operator", "ms", "paper ms", "faster", "unspent", "paper", "evaluations", "MB/sample"):
        grid.add_column(heading, justify="left" if heading in ("data", "operator", "evaluations") else "right")
    for row in rows:
        grid.add_row(
            f"{row.data} ×{row.batch}",
            row.operator,
            f"{row.milliseconds:.1f}",
            f"{row.paper_milliseconds:.1f}",
            f"{row.ratio:.1f}×",
            f"{row.unspent:.0e}",
            f"{row.paper_unspent:.0e}",
            " ".join(f"{count}:{samples}" for count, samples in row.evaluations.items()),
            f"{row.bytes_per_sample / 1e6:.1f}",
        )
    console.print(grid)
    console.print("evaluations: how often the dual was evaluated, and for how many samples; unspent: of the budget")


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the operators beside the paper's algorithms.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR")
    options = parser.parse_args()
    device, console = torch.device(options.device), Console(width=160)
    rows: list[Row] = []
    try:
        for name in options.data:
            with console.status(f"{name} ..."):
                rows += measure(name, device)
    except KeyboardInterrupt:
        console.print("Stopped; what was measured so far:")
    show(rows, console)
    options.out.mkdir(parents=True, exist_ok=True)
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    record = {"hardware": hardware, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}
    (options.out / "bench-operators.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
