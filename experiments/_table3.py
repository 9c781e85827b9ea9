"""The paper's Table 3 and App. F: accuracies that attacks leave, beside the paper's own, for one model after another.

A row is for a thousand images, or on a CPU for few where an attack is slow: a long table can be made in many sittings.
The paper's attacks are judged by their last images, ours by any image that is inside ball and box.
"""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

import wasserball as wb
from experiments import _paper
from experiments._examples import save_examples
from experiments._lab import Experiment, Ledger, Row, Setting, markdown, whole_number
from experiments._victims import Victim

CHUNK = 1000
EXAMPLES = 50
"""Images that are kept with their plans."""
BYTES = 300
"""Of a GPU's memory for each entry of a plan: three times what an attack takes, for the model and for others."""
FEW, FEW_STEPS = 10, 20
"""Images and steps of which dual iterations are counted."""
REPAIRED_PGD, REPAIRED_FW = "the paper's PGD, repaired", "the paper's Frank-Wolfe, repaired"
IGNORED_PGD, IGNORED_FW = "the paper's PGD, box ignored", "the paper's Frank-Wolfe, box ignored"
OURS = ("PGD", "FrankWolfe", "Auto")

DUAL = dict.fromkeys((REPAIRED_PGD, IGNORED_PGD, REPAIRED_FW, IGNORED_FW), 15)
"""Iterations of the paper's bisection, everywhere."""

Published = Mapping[str, Sequence[float | None]]
"""The paper's accuracies by method, one for each radius; None where it met numerical issues."""


@dataclass(frozen=True)
class Plan:
    """What to run on a victim."""

    victim: Victim
    samples: int
    published: Published
    steps: Mapping[str, int] = field(default_factory=dict)
    """Of the paper's attacks, where not 300."""
    iterations: Mapping[str, int] = field(default_factory=dict)
    """The paper's dual iterations a step, at the radius in the middle."""

    def methods(self) -> list[str]:
        """From the weakest to the strongest."""
        names = [sinkhorn_name(gamma) for gamma in self.victim.gammas]
        return [*names, REPAIRED_PGD, IGNORED_PGD, REPAIRED_FW, IGNORED_FW, *OURS]

    def batch(self, method: str, device: torch.device) -> int:
        """How many images are a row."""
        quick = method in OURS or (method in DUAL and self.victim.network.startswith("mnist"))
        return CHUNK if quick or device.type == "cuda" else CHUNK // self.victim.pieces


def sinkhorn_name(gamma: float) -> str:
    return f"projected Sinkhorn, γ=1/{1 / gamma:.0f}"


def make_attack(method: str, victim: Victim, eps: float, steps: int | None, seed: int) -> wb.Attack:
    """By its name in the table."""
    few: dict[str, Any] = {} if steps is None else dict(steps=steps)
    options: dict[str, Any] = dict(seed=seed, **few)
    sinkhorns = {sinkhorn_name(gamma): gamma for gamma in victim.gammas}
    if method in sinkhorns:
        return _paper.sinkhorn(eps, gamma=sinkhorns[method], **options)
    if method in (REPAIRED_PGD, IGNORED_PGD):
        return _paper.pgd(eps, step=victim.step, box="final" if method == REPAIRED_PGD else "off", **options)
    if method in (REPAIRED_FW, IGNORED_FW):
        return _paper.frank_wolfe(eps, box="final" if method == REPAIRED_FW else "off", **options)
    ours: dict[str, type[wb.Attack]] = {"PGD": wb.PGD, "FrankWolfe": wb.FrankWolfe, "Auto": wb.Auto}
    return ours[method](eps=eps, **options)


def at_once(images: Tensor) -> int | None:
    """How many images to attack at a time: on a GPU as many as it has room for, not as many as any machine has."""
    if not images.is_cuda:
        return None
    entries, memory = math.prod(wb.LocalCost().plan_shape(images[:1])), torch.cuda.mem_get_info(images.device)[1]
    return max(1, memory // (BYTES * entries))


def run(tried: wb.Attack, model: nn.Module, images: Tensor, labels: Tensor, last: _paper.Last) -> wb.AttackResult:
    """An attack as it is judged here."""
    if not isinstance(tried, wb.ProjectedSinkhorn):
        return last(tried, model, images, labels) if is_papers(tried) else tried(model, images, labels)
    result = _paper.to_the_end(tried, model, images, labels)  # it would stop as soon as it can
    answers = predict(model, result.adversarial)
    return replace(result, prediction=answers, success=answers != labels)


def figures(tried: wb.Attack, result: wb.AttackResult) -> dict[str, Any]:
    """How many images hold, and at what cost."""
    held = dict(held=int((~result.success).sum()))
    if isinstance(tried, wb.ProjectedSinkhorn):  # the rest would be of an attack that never succeeds
        return held
    distance = result.distance[result.success & (result.distance > 0)]
    return held | dict(
        valid=int(result.valid.sum()),
        distance=float(distance.mean()) if len(distance) else None,
        forward=int(result.queries.forward.sum()),
        backward=int(result.queries.backward.sum()),
        seconds=round(result.seconds, 2),
    )


def is_papers(tried: wb.Attack) -> TypeGuard[wb.PGD | wb.FrankWolfe]:
    """Whether it ignores the box, at first or for good."""
    return isinstance(tried, wb.PGD | wb.FrankWolfe) and tried.box != "loop"


def measure(plan: Plan, setting: Setting, ledger: Ledger) -> None:
    """All that is not there yet."""
    options = setting.options
    methods = options.attack or plan.methods()
    for method in methods:
        if method not in plan.methods():
            raise ValueError(f"--attack must be among {'; '.join(plan.methods())}, got {method}")
    quick = max(2, 200 // plan.victim.pieces)
    samples, last_run = options.samples or (quick if setting.quick else plan.samples), _paper.Last()
    if options.first < 0:
        raise ValueError(f"--first must be at least 0, got {options.first}")
    end = options.first + samples
    for first in range(options.first, end, CHUNK):
        last = min(first + CHUNK, end)
        model, images, labels = plan.victim.load(setting, first, last)
        key = dict(model=plan.victim.model, first=first, samples=last - first, method="none")
        ledger.row(key, partial(clean, model, images, labels))
        for method in methods if first == 0 else ():
            if method != "Auto":
                few = images[:FEW], labels[:FEW]
                count_iterations(plan, method, model, *few, options.seed, ledger)
        for eps in options.eps or plan.victim.eps[: 2 if setting.quick else None]:
            for start, method in product(range(first, last, CHUNK // plan.victim.pieces), methods):
                size = plan.batch(method, setting.device)
                if (start - first) % size:
                    continue
                stop = min(start + size, last)
                kept = examples_path(ledger, plan.victim, method, eps)
                judged = ledger.find(model=plan.victim.model, method=method, eps=eps)
                known = is_among(judged, start, stop)
                shown = kept.exists() or start > 0 or not plan.victim.small
                if known and shown:
                    continue
                setting.console.print(f"[dim]{method}, eps {eps:g}, images {start} to {stop - 1}")
                steps = 10 if setting.quick else plan.steps.get(method)
                tried = make_attack(method, plan.victim, eps, steps, options.seed)
                tried = replace(tried, batch_size=at_once(images))
                key = dict(model=plan.victim.model, first=start, samples=stop - start, method=method, eps=eps)
                taken = slice(start - first, (stop if not known else EXAMPLES) - first)
                some = images[taken], labels[taken]
                result = run(replace(tried, return_plan=not shown), model, *some, last_run)
                if not known:
                    ledger.row(key, partial(figures, tried, result))
                if not shown:
                    keep_examples(kept, some[0], result)


def is_among(rows: Sequence[Row], start: int, stop: int) -> bool:
    """Whether images are all among those of some rows."""
    for row in sorted(rows, key=lambda row: int(row["first"])):
        if row["first"] <= start:
            start = max(start, row["first"] + row["samples"])
    return start >= stop


def count_iterations(
    plan: Plan, method: str, model: nn.Module, images: Tensor, labels: Tensor, seed: int, ledger: Ledger
) -> None:
    """The dual iterations of a step, at the radius in the middle."""
    eps = plan.victim.eps[len(plan.victim.eps) // 2]
    tried = make_attack(method, plan.victim, eps, FEW_STEPS, seed)
    key = dict(model=plan.victim.model, method=method, radius=eps, images=FEW, steps=FEW_STEPS)
    ledger.row(key, partial(_paper.dual_iterations, tried, model, images, labels))


def keep_examples(path: Path, images: Tensor, result: wb.AttackResult) -> None:
    """The first images of a result, with their plans."""
    assert result.plan is not None
    few = slice(0, EXAMPLES)
    plan = replace(result.plan, values=result.plan.values[few])
    save_examples(path, images[few], result.adversarial[few], result.prediction[few], plan)


def examples_path(ledger: Ledger, victim: Victim, method: str, eps: float) -> Path:
    """Beside the results."""
    words = re.sub(r"[^\w.=-]+", "-", method.replace("γ=1/", "gamma-")).replace("-s-", "s-")
    return ledger.path.with_suffix("") / f"{victim.model}-{words}-{eps:g}.npz"


def clean(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    return dict(held=count_right(model, images, labels))


def count_right(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    return int((predict(model, images) == labels).sum())


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(some).argmax(1) for some in torch.split(images, 250)])


def accuracy(rows: Sequence[Row]) -> str:
    """In %."""
    if not rows:
        return "–"
    rows = apart(rows)
    return f"{100 * sum(row['held'] for row in rows) / sum(row['samples'] for row in rows):.1f}"


def apart(rows: Sequence[Row]) -> list[Row]:
    """The first images, each once: without rows that are the beginning of another, since somebody had asked for few at
    first, and without those beyond a gap (``--first``)."""
    largest = {(row.get("eps"), row["first"]): row for row in sorted(rows, key=lambda row: int(row["samples"]))}
    found: list[Row] = []
    for (eps, first), row in sorted(largest.items(), key=lambda item: int(item[0][1])):
        if first == sum(before["samples"] for before in found if before.get("eps") == eps):
            found.append(row)
    return found


def beside(ours: str, paper: str | None) -> str:
    """Ours, and in brackets the paper's."""
    return ours if paper is None else f"{ours} ({paper})"


def table(ledger: Ledger, plan: Plan) -> str:
    """Radius by radius, in brackets the paper's figures."""
    mine = ledger.find(model=plan.victim.model)
    eps = sorted({row["eps"] for row in mine if "held" in row and "eps" in row})
    lines = []
    for method in plan.methods():
        rows = [row for row in mine if row["method"] == method]
        judged = [row for row in rows if "held" in row]
        if not judged:
            continue
        paper = dict(zip(plan.victim.eps, plan.published.get(method, ()), strict=False))
        cells = [method, count(judged)]
        for radius in eps:
            theirs = paper.get(radius)
            found = accuracy([row for row in judged if row["eps"] == radius])
            cells.append(beside(found, None if theirs is None else f"{theirs:.1f}"))
        turns = [f"{row['iterations']:.0f}" for row in rows if "iterations" in row]
        theirs = plan.iterations.get(method)
        cells.append(beside(turns[0], None if theirs is None else str(theirs)) if turns else "–")
        lines.append(cells)
    headings = ["attack", "images", *(f"eps {radius:g}" for radius in eps), "dual iterations"]
    start = f"`{plan.victim.model}`, clean accuracy {accuracy(ledger.find(model=plan.victim.model, method='none'))}%:"
    return f"{start}\n\n{markdown(headings, lines)}"


def count(rows: Sequence[Row]) -> str:
    """Of the images; where it is not the same for all radii, from the fewest on."""
    found = apart(rows)
    counts = sorted(
        {sum(row["samples"] for row in found if row["eps"] == eps) for eps in {row["eps"] for row in found}}
    )
    return "–".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", nargs="+", metavar="NAME", help="some of the models, by the names of their weights")
    parser.add_argument("--attack", nargs="+", metavar="NAME", help="some of the attacks, by their names in the table")
    parser.add_argument("--eps", nargs="+", type=float, help="some of the radii")
    parser.add_argument("--samples", type=whole_number, help="how many images, all of the table's if not given")
    parser.add_argument("--first", type=int, default=0, help="where they begin; the table is of those from 0 on")


def experiment(name: str, summary: str, *plans: Plan) -> Experiment:
    """A table for each of some victims."""

    def measure_all(setting: Setting, ledger: Ledger) -> None:
        known = {plan.victim.model: plan for plan in plans}
        for model in setting.options.model or known:
            if model not in known:
                raise ValueError(f"--model must be among {', '.join(known)}, got {model}")
            victim = known[model].victim
            if setting.options.model is None and victim.made_by and victim.find(setting) is None:
                setting.console.print(f"Left out: {model}. First make {victim.weights}: {victim.made_by}")
            else:
                measure(known[model], setting, ledger)

    def tables(ledger: Ledger) -> str:
        return "\n\n".join(table(ledger, plan) for plan in plans if ledger.find(model=plan.victim.model))

    return Experiment(name=name, summary=summary, measure=measure_all, table=tables, add_options=add_options)
