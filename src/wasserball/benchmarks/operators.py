"""Each operator beside the paper's algorithm for it, written plainly, on the same problem and in one run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import wasserball.operators as ops
from wasserball.benchmarks.meter import Meter
from wasserball.benchmarks.problem import STEP, Problem, make_problem
from wasserball.kernels.interface import Mixture
from wasserball.operators import Solution
from wasserball.operators.oracle import mixture

LOOP = ", in a loop"
"""Unchecked, and several in a row."""
BOX_ROUNDS = 20
"""Of the paper's repair of the box: enough to meet it to 1e-3 on MNIST, where the paper asks for hundreds."""

Solve = Callable[[], Solution]


class Data(NamedTuple):
    """Images of one size."""

    name: str
    shape: tuple[int, int, int]
    eps: float
    batch: int
    box_batch: int
    """Fewer, or none, for the paper's projection onto ball and box, which takes minutes."""


DATA = {
    "cpu": [
        Data("MNIST", (1, 28, 28), 0.1, 256, 16),
        Data("CIFAR-10", (3, 32, 32), 0.005, 50, 2),
        Data("ImageNet", (3, 224, 224), 0.001, 2, 0),
    ],
    "cuda": [
        Data("MNIST", (1, 28, 28), 0.1, 1000, 1000),
        Data("CIFAR-10", (3, 32, 32), 0.005, 100, 100),
        Data("ImageNet", (3, 224, 224), 0.001, 20, 0),
    ],
}
QUICK = [Data("tiny", (1, 8, 8), 0.05, 4, 2)]


@dataclass(frozen=True)
class OperatorRow:
    """One operator on one kind of image, beside the paper's way of doing it."""

    data: str
    batch: int
    operator: str
    milliseconds: float
    paper_milliseconds: float
    ratio: float
    unspent: float
    """The largest share of a budget that is left, or by which it is exceeded, where it binds."""
    paper_unspent: float
    over_floor: float
    """The time over that of reading and writing once what cannot be avoided: the plan, or for the oracle, which keeps
    none, the images."""
    megabytes_a_sample: float
    """At the peak, beyond what is given."""


def measure_operators(
    meter: Meter, bandwidth: float, say: Callable[[str], None], *, quick: bool = False
) -> Iterator[OperatorRow]:
    """All operators on all kinds of images, row by row."""
    for data in QUICK if quick else DATA[meter.device.type]:
        problem = make_problem((data.batch, *data.shape), data.eps, meter.device)
        image_bytes = problem.mass.numel() * problem.mass.element_size()
        groups: list[tuple[int, Solve, dict[str, Solve]]] = [
            (2 * problem.plan_bytes, partial(_projection, problem), _steps(problem)),
            (3 * image_bytes, partial(_oracle, problem), _oracles(problem)),
        ]
        for floor, paper, operators in groups:
            yield from _race(meter, data.name, problem, paper, operators, floor / bandwidth, say)
        del problem, groups
        if data.box_batch:
            smaller = make_problem((data.box_batch, *data.shape), data.eps, meter.device)
            floor = 2 * smaller.plan_bytes
            yield from _race(
                meter, data.name, smaller, partial(_capacity, smaller), _boxes(smaller), floor / bandwidth, say
            )


def _race(
    meter: Meter,
    name: str,
    problem: Problem,
    paper: Solve,
    operators: dict[str, Solve],
    floor: float,
    say: Callable[[str], None],
) -> Iterator[OperatorRow]:
    batch = len(problem.mass)
    words = dict.fromkeys(operator.partition(",")[0] for operator in operators)
    say(f"{name} ×{batch}: {', '.join(words)}")
    loops = [number for number, operator in enumerate(operators, start=1) if operator.endswith(LOOP)]
    (paper_took, paper_answer), *ours = meter.race(paper, *operators.values(), loops=loops)
    paper_unspent = _unspent(paper_answer, problem.budget)
    del paper_answer
    for (operator, solve), (took, answer) in zip(operators.items(), ours, strict=True):
        yield OperatorRow(
            data=name,
            batch=batch,
            operator=operator,
            milliseconds=took,
            paper_milliseconds=paper_took,
            ratio=paper_took / took,
            unspent=_unspent(answer, problem.budget),
            paper_unspent=paper_unspent,
            over_floor=took / (1e3 * floor),
            megabytes_a_sample=meter.peak_bytes(solve) / batch / 1e6,
        )


def _unspent(answer: Solution, budget: Tensor) -> float:
    binding = answer.lam > 0
    return float((1 - answer.spent / budget)[binding].abs().max()) if binding.any() else 0.0


def _projection(p: Problem) -> Solution:
    """The paper's step: of the plan, then the projection by bisection."""
    return ops.bisection_projection(p.plan + STEP * p.cost.gather(p.gradient), p.mass, p.budget, p.cost)


def _oracle(p: Problem) -> Solution:
    return ops.entropic_bisection_oracle(p.gradient, p.mass, p.budget, p.cost)


def _capacity(p: Problem) -> Solution:
    target = p.plan + STEP * p.cost.gather(p.gradient)
    return ops.capacity_projection(target, p.mass, p.budget, p.cost, rounds=BOX_ROUNDS)


def _steps(p: Problem) -> dict[str, Solve]:
    step = p.plan, p.gradient, STEP, p.mass, p.budget, p.cost
    room = torch.empty_like(p.plan)
    return {
        "project_step, cold": lambda: ops.project_step(*step),
        "project_step, cold, in a loop": lambda: ops.project_step(*step, out=room, validate=False),
        "project_step, warm": lambda: ops.project_step(*step, lam=p.lam),
        "project_step, warm, in a loop": lambda: ops.project_step(*step, lam=p.lam, out=room, validate=False),
        "box_step, warm": lambda: ops.box_step(*step, lam=p.lam, mu=p.mu),
        "box_step, warm, in a loop": lambda: ops.box_step(*step, lam=p.lam, mu=p.mu, out=room, validate=False),
    }


def _oracles(p: Problem) -> dict[str, Solve]:
    problem = p.gradient, p.mass, p.budget, p.cost
    return {
        "linear_minimizer, exact": lambda: ops.linear_minimizer(*problem),
        "linear_minimizer, exact, in a loop": lambda: _without_plan(mixture(*problem)),
        "linear_minimizer, γ=1e-3": lambda: ops.linear_minimizer(*problem, gamma=1e-3),
    }


def _without_plan(found: Mixture) -> Solution:
    return Solution(plan=None, **{name: value for name, value in found._asdict().items() if name != "blend"})


def _boxes(p: Problem) -> dict[str, Solve]:
    target = p.plan + STEP * p.cost.gather(p.gradient)
    return {"project_box, warm": lambda: ops.project_box(target, p.mass, p.budget, p.cost, lam=p.lam, mu=p.mu)}
