"""A second look at a finished run: its certificates, rows and summary from its files alone, trusting none of them."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from wasserball.evaluate.outcomes import Outcome, read_outcomes
from wasserball.evaluate.setting import Unit
from wasserball.evaluate.store import Batch, Run
from wasserball.evaluate.summary import count_up
from wasserball.verify import Certificate, verify

PLAN_ENTRIES = 2**24
"""Of dense plans, at a time."""
SLACK = 1e-9
"""Of the radius: on another machine the same entries may be added up in another order."""


class Check(NamedTuple):
    """What a look at one unit came to."""

    unit: Unit
    images: int
    certified: int
    """Of them, found to be inside ball and box with their mass kept."""
    problems: list[str]


def recheck(run: Run, *, exact: bool = False) -> Iterator[Check]:
    """Check unit after unit; with ``exact`` by solving optimal transport anew instead of trusting the stored plans.

    A problem is a row that claims more than its images bear out, and a claim that contradicts another.
    """
    for unit in run.done():
        batch, rows = run.read(unit), run.rows([unit])
        certificate = _certify(batch, exact)
        valid = certificate.valid.numpy()
        problems = [f"{_name(unit, sample)}: {words}" for sample, words in _compare(unit, Outcome(rows), certificate)]
        if {*zip(rows["attack"].to_pylist(), rows["eps"].to_pylist(), strict=True)} != {(unit.attack, unit.eps)}:
            problems.append(f"{run.shard(unit)} holds rows of another attack or radius")
        if repr(batch.cost) != run.setting.costs[unit.attack]:
            problems.append(f"{run.images(unit)} has the cost {batch.cost!r}, not {run.setting.costs[unit.attack]}")
        yield Check(unit, len(valid), int(valid.sum()), problems)


def recheck_summary(run: Run) -> list[str]:
    """What ``summary.json`` says that the rows do not."""
    said, counted = run.summary, count_up(run, read_outcomes(run))
    problems = [
        f"{name} is {said.get(name)!r}, the rows give {figure!r}"
        for name, figure in counted.items()
        if name != "results" and said.get(name) != figure
    ]
    figures = {(row["attack"], row["eps"]): row for row in counted["results"]}
    for row in said["results"]:
        figure = figures.pop((row["attack"], row["eps"]), None)
        if row != figure:
            problems.append(f"{row['attack']} at {row['eps']} is {row}, the rows give {figure}")
    problems += [f"{attack} at {eps} is missing" for attack, eps in figures]
    return [f"{run.folder / 'summary.json'}: {problem}" for problem in problems]


def _certify(batch: Batch, exact: bool) -> Certificate:
    """The certificate of each image, from the plan that lies beside it."""
    pieces = []
    few = max(1, PLAN_ENTRIES // math.prod(batch.cost.plan_shape(batch.clean[:1])))
    for first in range(0, len(batch.clean), few):
        last = min(first + few, len(batch.clean))
        plan = None
        if batch.plans is not None and not exact:
            plan = batch.plans.unpack(batch.clean, batch.cost, first, last)
        pieces.append(
            verify(
                batch.clean[first:last],
                batch.adversarial[first:last],
                eps=batch.unit.eps,
                plan=plan,
                cost=batch.cost,
            )
        )
    columns = ("valid", "distance", "mass_error", "box_error", "exact")
    return Certificate(
        **{name: torch.cat([getattr(piece, name) for piece in pieces]) for name in columns},
        faults=tuple(fault for piece in pieces for fault in piece.faults),
    )


def _compare(unit: Unit, outcome: Outcome, certificate: Certificate) -> Iterator[tuple[int, str]]:
    """The samples of which too much is claimed, and what."""
    size = unit.last - unit.first
    if len(outcome) != size or not np.array_equal(outcome["index"], np.arange(unit.first, unit.last)):
        yield 0, f"the rows must be those of samples {unit.first} to {unit.last - 1}"
        return
    distance, success = certificate.distance.numpy(), outcome["success"].astype(bool)
    for sample in range(size):
        if outcome["valid"][sample]:
            if not certificate.valid[sample]:
                yield sample, f"is called valid, but {'; '.join(certificate.faults[sample])}"
            elif distance[sample] > outcome["distance"][sample] + SLACK * unit.eps and not certificate.exact[sample]:
                yield sample, f"is called {outcome['distance'][sample]:.6f} away, its plan costs {distance[sample]:.6f}"
        if success[sample] != (outcome["prediction"][sample] != outcome["label"][sample]):
            yield sample, "success contradicts the prediction"


def _name(unit: Unit, sample: int) -> str:
    return f"{unit.attack}, eps {unit.eps:g}, sample {unit.first + sample}"
