"""Bad input: every public function raises a ``ValueError`` that opens with the argument and says what was seen.

One table of functions with good arguments, and one of bad values for each kind of argument.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from wasserball import DenseCost, LocalCost, TransportPlan, WassersteinBall, minimize, operators, verify

NAN, INF = math.nan, math.inf
COST = LocalCost(3)
MASS = torch.linspace(0, 1, 24, dtype=torch.float64).view(2, 1, 3, 4)
PLAN = COST.identity(MASS)
POINTS = DenseCost(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))


def spread(images: Tensor) -> Tensor:
    return images.square().flatten(1).sum(1)


@dataclass(frozen=True)
class Bad:
    """A value that must be refused, and what the message must say about it."""

    name: str
    value: Any
    seen: str


def entry(tensor: Tensor, value: float) -> Tensor:
    """``tensor`` with ``value`` somewhere in its second sample."""
    changed = tensor.clone()
    changed[1].view(-1)[5] = value
    return changed


def tensors(good: Tensor) -> list[Bad]:
    """Bad wherever a tensor of this shape is asked for."""
    return [
        Bad("int", good.long(), "torch.int64"),
        Bad("float16", good.half(), "torch.float16"),
        Bad("complex", good.to(torch.complex128), "torch.complex128"),
        Bad("list", good.tolist(), "list"),
        Bad("array", good.numpy(), "ndarray"),
        Bad("None", None, "None"),
        Bad("flat", good.flatten(1), str(tuple(good.flatten(1).shape))),
        Bad("more dimensions", good.unsqueeze(-1), str((*good.shape, 1))),
        Bad("number", torch.tensor(1.0), "()"),
        Bad("no sample", good[:0], str((0, *good.shape[1:]))),
    ]


def like_mass(good: Tensor) -> list[Bad]:
    """Bad wherever finite values are asked for that fit a mass."""
    return [
        *tensors(good),
        Bad("NaN", entry(good, NAN), "sample 1 has nan"),
        Bad("inf", entry(good, INF), "sample 1 has inf"),
        Bad("-inf", entry(good, -INF), "sample 1 has -inf"),
        Bad("another batch", good[:1], str((1, *good.shape[1:]))),
        Bad("another size", good[..., :3], str((*good.shape[:-1], 3))),
        Bad("another device", good.to("meta"), "meta"),
    ]


def masses(high: float | None = None) -> list[Bad]:
    found = [
        *tensors(MASS),
        Bad("NaN", entry(MASS, NAN), "sample 1 has nan"),
        Bad("inf", entry(MASS, INF), "sample 1 has inf"),
        Bad("negative", entry(MASS, -1e-9), "sample 1 has -1e-09"),
        Bad("no data", MASS.to("meta"), "meta"),
    ]
    return (
        found if high is None else [*found, Bad("out of bounds", entry(MASS, high + 1e-9), "sample 1 has 1.000000001")]
    )


PER_SAMPLE = [
    Bad("negative", -1.0, "-1.0"),
    Bad("NaN", NAN, "nan"),
    Bad("inf", INF, "inf"),
    Bad("negative sample", torch.tensor([1.0, -0.5]), "sample 1 has -0.5"),
    Bad("NaN sample", torch.tensor([1.0, NAN]), "sample 1 has nan"),
    Bad("inf sample", torch.tensor([1.0, INF]), "sample 1 has inf"),
    Bad("another batch", torch.ones(3), "(3,)"),
    Bad("column", torch.ones(2, 1), "(2, 1)"),
    Bad("string", "0.1", "'0.1'"),
    Bad("list", [0.1, 0.2], "[0.1, 0.2]"),
    Bad("bool", True, "True"),
    Bad("bools", torch.ones(2, dtype=torch.bool), "torch.bool"),
    Bad("complex", torch.ones(2, dtype=torch.complex64), "torch.complex64"),
    Bad("no data", torch.ones(2, device="meta"), "meta"),
]
RADIUS = [*PER_SAMPLE, Bad("None", None, "None")]  # where it may not be left out
POSITIVE = [
    Bad("zero", 0.0, "0.0"),
    Bad("negative", -1e-3, "-0.001"),
    Bad("NaN", NAN, "nan"),
    Bad("inf", INF, "inf"),
    Bad("string", "1", "'1'"),
    Bad("None", None, "None"),
    Bad("bool", True, "True"),
]
GAMMA_OR_ZERO = [bad for bad in POSITIVE if bad.name != "zero"]
COUNT = [
    Bad("zero", 0, "0"),
    Bad("negative", -3, "-3"),
    Bad("fraction", 1.5, "1.5"),
    Bad("NaN", NAN, "nan"),
    Bad("bool", True, "True"),
    Bad("None", None, "None"),
]
BOUNDS = [
    Bad("above zero", (0.1, 1), "(0.1, 1)"),
    Bad("below zero", (-1, 1), "(-1, 1)"),
    Bad("NaN below", (NAN, 1), "nan"),
    Bad("one", (0,), "(0,)"),
    Bad("three", (0, 0.5, 1), "(0, 0.5, 1)"),
    Bad("empty box", (0, 0), "0"),
    Bad("upside down", (0, -1), "-1"),
    Bad("NaN above", (0, NAN), "nan"),
    Bad("inf above", (0, INF), "inf"),
    Bad("number", 1.0, "1.0"),
]
BOUNDS_NEEDED = [*BOUNDS, Bad("None", None, "None")]
COSTS = [
    Bad("name", "euclidean", "'euclidean'"),
    Bad("window", 5, "5"),
    Bad("matrix", torch.zeros(1, 1), "tensor"),
    Bad("class", LocalCost, "LocalCost"),
]
COST_NEEDED = [*COSTS, Bad("None", None, "None")]
WINDOWS = [
    Bad("even", 4, "4"),
    Bad("zero", 0, "0"),
    Bad("negative", -3, "-3"),
    Bad("fraction", 3.0, "3.0"),
    Bad("bool", True, "True"),
    Bad("string", "5", "'5'"),
    Bad("None", None, "None"),
]
METRICS = [
    Bad("unknown", "l2", "'l2'"),
    Bad("capitals", "Euclidean", "'Euclidean'"),
    Bad("number", 2, "2"),
    Bad("list", ["l1"], "['l1']"),
    Bad("None", None, "None"),
]
POWERS = [
    Bad("below one", 0.99, "0.99"),
    Bad("zero", 0, "0"),
    Bad("negative", -2, "-2"),
    Bad("NaN", NAN, "nan"),
    Bad("inf", INF, "inf"),
    Bad("string", "2", "'2'"),
    Bad("bool", True, "True"),
    Bad("so high that prices are infinite", 1e6, "1000000.0"),
]
MATRICES = [
    Bad("NaN", torch.tensor([[0, NAN], [1, 0]]), "(0, 1) is nan"),
    Bad("negative", torch.tensor([[0, 1.0], [-2, 0]]), "(1, 0) is -2.0"),
    Bad("-inf", torch.tensor([[0, -INF], [1, 0]]), "(0, 1) is -inf"),
    Bad("free move", torch.tensor([[0, 1.0], [0, 0]]), "(1, 0) is 0.0"),
    Bad("price of staying", torch.tensor([[0, 1.0], [1, 1e-9]]), "(1, 1) is 9.99"),
    Bad("ban on staying", torch.tensor([[INF, 1.0], [1, 0]]), "(0, 0) is inf"),
    Bad("not square", torch.zeros(2, 3), "(2, 3)"),
    Bad("a batch", torch.zeros(1, 2, 2), "(1, 2, 2)"),
    Bad("empty", torch.zeros(0, 0), "(0, 0)"),
    Bad("list", [[0, 1], [1, 0]], "list"),
    Bad("array", torch.zeros(1, 1).numpy(), "ndarray"),
    Bad("complex", torch.zeros(1, 1, dtype=torch.complex64), "torch.complex64"),
    Bad("no data", torch.zeros(1, 1, device="meta"), "meta"),
]
OBJECTIVES = [
    Bad("not callable", None, "None"),
    Bad("number", lambda images: 1.0, "float"),
    Bad("None", lambda images: None, "NoneType"),
    Bad("one value", lambda images: images.sum(), "()"),
    Bad("column", lambda images: spread(images).unsqueeze(1), "(2, 1)"),
    Bad("another batch", lambda images: spread(images)[:1], "(1,)"),
    Bad("NaN", lambda images: spread(images) * torch.tensor([1, NAN]), "sample 1 has nan"),
    Bad("inf", lambda images: spread(images) * torch.tensor([1, INF]), "sample 1 has inf"),
    Bad("NaN gradient", lambda images: (0 * images).sqrt().flatten(1).sum(1), "sample 0"),
    Bad("no gradient", lambda images: spread(images).detach(), "do not depend on the images"),
    Bad("constant", lambda images: torch.zeros(2), "do not depend on the images"),
    Bad(
        "gradient of something else",
        lambda images: torch.ones(2, requires_grad=True) * 1,
        "do not depend on the images",
    ),
]
METHODS = [Bad("unknown", "sgd", "'sgd'"), Bad("capitals", "PGD", "'PGD'"), Bad("None", None, "None")]
# What a plan or an adversarial image holds is for the certificate to judge.
CERTIFIED_PLANS = [
    *(bad for bad in tensors(PLAN) if bad.name != "None"),
    Bad("of another window", LocalCost(5).identity(MASS), "(2, 25, 1, 3, 4)"),
    Bad("with another cost", TransportPlan.identity(MASS, LocalCost(3, "l1")), "metric='l1'"),
    Bad("no data", PLAN.to("meta"), "meta"),
]
ADVERSARIAL = [
    *tensors(MASS),
    Bad("another batch", MASS[:1], "(1, 1, 3, 4)"),
    Bad("another size", MASS[..., :3], "(2, 1, 3, 3)"),
    Bad("no data", MASS.to("meta"), "meta"),
]
IMAGE, TARGET = like_mass(MASS), like_mass(PLAN)
MU = [bad for bad in IMAGE if bad.name != "None"]


@dataclass(frozen=True)
class Function:
    call: Callable[..., object]
    good: dict[str, Any]
    bad: dict[str, list[Bad]]


BALL = dict(mass=MASS, budget=0.1, cost=COST)
BAD_BALL = dict(mass=masses(), budget=RADIUS, cost=COST_NEEDED)
FUNCTIONS: dict[str, Function] = {
    "project": Function(
        operators.project, BALL | dict(target=PLAN), BAD_BALL | dict(target=TARGET, lam=PER_SAMPLE, tol=POSITIVE)
    ),
    "project points": Function(
        operators.project,
        dict(target=POINTS.identity(MASS[:, 0, 0, :2]), mass=MASS[:, 0, 0, :2], budget=0.1, cost=POINTS),
        dict(
            mass=[
                Bad("another size", MASS[:, 0, 0, :3], "(2, 3)"),
                Bad("no batch", MASS[0, 0, 0, :2], "(2,)"),
                Bad("an image", MASS[..., :2], "(2, 1, 3, 2)"),
            ],
            target=[Bad("shaped like the mass", MASS[:, 0, 0, :2], "(2, 2)")],
        ),
    ),
    "project_step": Function(
        operators.project_step,
        BALL | dict(plan=PLAN, gradient=MASS, step=0.1),
        BAD_BALL | dict(plan=TARGET, gradient=IMAGE, step=RADIUS, lam=PER_SAMPLE, tol=POSITIVE),
    ),
    "project_box": Function(
        operators.project_box,
        BALL | dict(target=PLAN),
        BAD_BALL
        | dict(
            mass=masses(1),
            target=TARGET,
            bounds=BOUNDS_NEEDED,
            lam=PER_SAMPLE,
            mu=MU,
            tol=POSITIVE,
            max_iterations=COUNT,
        ),
    ),
    "box_step": Function(
        operators.box_step,
        BALL | dict(plan=PLAN, gradient=MASS, step=0.1),
        BAD_BALL
        | dict(
            mass=masses(1),
            plan=TARGET,
            gradient=IMAGE,
            step=RADIUS,
            bounds=BOUNDS_NEEDED,
            lam=PER_SAMPLE,
            mu=MU,
            rounds=COUNT,
        ),
    ),
    "linear_minimizer": Function(
        operators.linear_minimizer,
        BALL | dict(gradient=MASS),
        BAD_BALL | dict(gradient=IMAGE, gamma=GAMMA_OR_ZERO, tol=POSITIVE),
    ),
    "sinkhorn": Function(
        operators.sinkhorn,
        BALL | dict(target=MASS, gamma=0.1),
        BAD_BALL | dict(target=IMAGE, gamma=POSITIVE, tol=POSITIVE, max_iterations=COUNT),
    ),
    "dykstra": Function(
        operators.dykstra, BALL | dict(target=PLAN), BAD_BALL | dict(target=TARGET, tol=POSITIVE, max_iterations=COUNT)
    ),
    "bisection_projection": Function(
        operators.bisection_projection, BALL | dict(target=PLAN), BAD_BALL | dict(target=TARGET, iterations=COUNT)
    ),
    "capacity_projection": Function(
        operators.capacity_projection,
        BALL | dict(target=PLAN, rounds=1),
        BAD_BALL | dict(mass=masses(1), target=TARGET, bounds=BOUNDS_NEEDED, rounds=COUNT, nesterov_steps=COUNT),
    ),
    "entropic_bisection_oracle": Function(
        operators.entropic_bisection_oracle,
        BALL | dict(gradient=MASS),
        BAD_BALL | dict(gradient=IMAGE, gamma=POSITIVE, iterations=COUNT),
    ),
    "minimize": Function(
        minimize,
        dict(objective=spread, mass=MASS, eps=0.1, cost=COST, steps=2),
        dict(objective=OBJECTIVES, mass=masses(), eps=RADIUS, cost=COSTS, method=METHODS, steps=COUNT, tol=POSITIVE),
    ),
    "minimize by Frank-Wolfe": Function(
        minimize,
        dict(objective=spread, mass=MASS, eps=0.1, cost=COST, method="frank-wolfe", steps=2),
        dict(objective=OBJECTIVES, steps=COUNT, tol=POSITIVE),
    ),
    "verify": Function(
        verify,
        dict(images=MASS, adversarial=MASS, eps=0.1, cost=COST, plan=PLAN),
        dict(
            images=masses(1),
            adversarial=ADVERSARIAL,
            eps=RADIUS,
            cost=COST_NEEDED,
            plan=CERTIFIED_PLANS,
            bounds=BOUNDS,
            tolerance=POSITIVE,
        ),
    ),
    "LocalCost": Function(LocalCost, {}, dict(window=WINDOWS, metric=METRICS, power=POWERS)),
    "DenseCost": Function(DenseCost, dict(matrix=POINTS.matrix), dict(matrix=MATRICES)),
    "WassersteinBall": Function(
        WassersteinBall,
        dict(mass=MASS, eps=0.1, bounds=(0, 1)),
        dict(mass=masses(1), eps=RADIUS, cost=COST_NEEDED, bounds=BOUNDS),
    ),
    "TransportPlan": Function(
        TransportPlan, dict(values=PLAN, cost=COST), dict(values=tensors(PLAN), cost=COST_NEEDED)
    ),
    "TransportPlan.identity": Function(
        TransportPlan.identity, dict(mass=MASS, cost=COST), dict(mass=masses(), cost=COST_NEEDED)
    ),
}


def cases() -> Iterator[Any]:
    for name, function in FUNCTIONS.items():
        for argument, table in function.bad.items():
            for bad in table:
                case = f"{name}-{argument}-{bad.name}"
                yield pytest.param(function, argument, bad, id=case)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_good_arguments_are_accepted(function: Function) -> None:
    function.call(**function.good)


@pytest.mark.parametrize(("function", "argument", "bad"), list(cases()))
def test_a_bad_argument_is_named(function: Function, argument: str, bad: Bad) -> None:
    with pytest.raises(ValueError, match=rf"(?s)^{argument}\b.*{re.escape(bad.seen)}"):
        function.call(**(function.good | {argument: bad.value}))


def test_a_step_beyond_the_largest_number_is_an_error() -> None:
    mass = MASS.float()
    with pytest.raises(ValueError, match=r"^(step|gradient)\b"):
        operators.project_step(COST.identity(mass), torch.full_like(mass, 1e38), 1e3, mass, 0.1, COST)
    with pytest.raises(ValueError, match=r"^step · gradient\b"):
        operators.box_step(COST.identity(mass), torch.full_like(mass, 1e38), 1e300, mass, 0.1, COST)


def test_the_budget_may_be_a_number_of_any_kind() -> None:
    numbers = [1, 1.0, MASS.new_tensor(1.0), torch.ones(2), torch.ones(2, dtype=torch.int64), MASS.numpy().max()]
    spent = [operators.project(PLAN.flip(1), MASS, budget, COST).spent.tolist() for budget in numbers]
    assert spent == [spent[0]] * len(numbers)
