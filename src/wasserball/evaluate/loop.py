"""The work itself: each attack with each radius on each batch, into the run folder; then the verdict."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wasserball.attacks import Attack
from wasserball.attacks.classifier import Classifier, Model, frozen
from wasserball.checks import check_count
from wasserball.evaluate.folder import StoreError, locked
from wasserball.evaluate.health import examine
from wasserball.evaluate.outcomes import read_outcomes
from wasserball.evaluate.plans import SparsePlans
from wasserball.evaluate.progress import Watch, checking, watching
from wasserball.evaluate.report import write_report
from wasserball.evaluate.rows import make_rows
from wasserball.evaluate.setting import (
    Setting,
    Unit,
    check_radii,
    default_batch_size,
    fingerprint_data,
    fingerprint_model,
    name_attacks,
)
from wasserball.evaluate.store import Batch, Run
from wasserball.evaluate.summary import describe_environment, summarize, write_summary
from wasserball.evaluate.workers import join_workers
from wasserball.threat import LocalCost
from wasserball.zoo import Data, load_data, load_model, model_name


def evaluate(
    model: str | Model,
    data: Any,
    *,
    eps: float | Sequence[float],
    out: str | os.PathLike[str],
    attacks: Sequence[str | Attack] = ("pgd", "fw", "auto"),
    limit: int | None = None,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    resume: bool = False,
    probes: int = 32,
    progress: bool = False,
    name: str | None = None,
    command: str | None = None,
) -> Run:
    """Attack ``model`` on ``data`` with each of ``attacks`` and each radius, and write a run folder to ``out``.

    ``model`` and ``data`` are objects, or what :func:`zoo.load_model` and :func:`zoo.load_data` understand; ``attacks``
    are names or attacks, whose own radius does not count; ``limit`` takes the first so many samples. What is finished
    stays: with ``resume`` a run that was stopped, in whatever way, goes on where it was, and gives what it would have
    given. Under ``torchrun`` the processes share the work, in one folder that all of them see.

    At the end health checks look for what makes such figures wrong, with a few more attacks on ``probes`` samples
    (0: none), and ``report.html`` shows it all. ``name`` and ``command`` are for that page.

    >>> attacks = [wb.PGD(eps=0, steps=5)]
    >>> run = wb.evaluate("mnist-standard", "mnist-sample", attacks=attacks, eps=[0.1], out="run", limit=4, probes=0)
    >>> run.summary["samples"], run.summary["clean_accuracy"]
    (4, 1.0)
    """
    started = time.perf_counter()
    chosen, radii = name_attacks(attacks), check_radii(eps)
    if limit is not None:
        check_count("limit", limit)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if isinstance(probes, bool) or not isinstance(probes, int) or probes < 0:
        raise ValueError(f"probes must be an integer >= 0, got {probes!r}")
    words = name or (model_name(model) if isinstance(model, str) else type(model).__name__)
    victim = load_model(model) if isinstance(model, str) else model
    images = data if isinstance(data, Data) else load_data(data)
    samples = len(images) if limit is None else min(limit, len(images))
    if samples == 0:
        raise ValueError(f"data must hold at least one sample, got {images.name} with none")
    place = _place(victim) if device is None else torch.device(device)
    check_fit(victim, images, place)
    fingerprint, shape = fingerprint_data(images, samples)
    setting = Setting(
        model=words,
        model_fingerprint=fingerprint_model(victim),
        data=images.name,
        data_fingerprint=fingerprint,
        samples=samples,
        shape=shape,
        classes=images.classes,
        attacks={key: repr(attack) for key, attack in chosen.items()},
        costs={key: repr(attack._largest_cost) for key, attack in chosen.items()},
        eps=radii,
        batch_size=batch_size or default_batch_size(chosen, shape, place.type),
        device=place.type,
    )
    command = (
        command
        or f"wb.evaluate({words!r}, {images.name!r}, attacks={list(setting.attacks.values())}, eps={list(radii)})"
    )
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    with join_workers() as workers, locked(out, wanted=workers.leads):
        workers.first(partial(Run.begin, out, setting, command, resume=resume or restarted))
        run = Run(out, setting, command)
        if not (run.folder / "config.json").exists():
            raise StoreError(f"{out} must be a folder that all workers share, worker {workers.rank} does not see it")
        missing = workers.first(run.missing)
        mine = missing[workers.rank :: workers.count]
        with watching(mine, shown=progress and workers.leads) as watch:
            if progress and workers.leads:
                _recall(run, watch)
            _work(run, mine, victim, images, chosen, place, watch)
        workers.wait()
        if workers.leads and (missing or not (run.folder / "summary.json").exists()):
            with checking(shown=progress):
                _conclude(run, victim, images, chosen, place, probes, workers.count, started)
        workers.wait()
    return run


def _work(
    run: Run,
    units: Sequence[Unit],
    model: Model,
    data: Data,
    attacks: dict[str, Attack],
    device: torch.device,
    watch: Watch,
) -> None:
    held: tuple[tuple[int, int], Tensor, Tensor] | None = None
    for unit in units:
        if held is None or held[0] != (unit.first, unit.last):
            held = (unit.first, unit.last), *load_batch(data, unit.first, unit.last, device)
        _, images, labels = held
        report = partial(watch.advance, unit)
        result = replace(attacks[unit.attack], eps=unit.eps, progress=report)(model, images, labels)
        plans = None if result.plan is None else SparsePlans.pack(result.plan)
        cost = result.cost
        assert isinstance(cost, LocalCost)
        batch = Batch(unit, images, result.adversarial, plans, cost)
        run.write(batch, make_rows(unit, result))
        watch.finish(unit, int((~result.success).sum()))


def _conclude(
    run: Run,
    model: Model,
    data: Data,
    attacks: dict[str, Attack],
    device: torch.device,
    probes: int,
    workers: int,
    started: float,
) -> None:
    """The verdict, once all the work is done."""
    outcomes = read_outcomes(run)
    worked = time.perf_counter()
    health = examine(outcomes, model, data, attacks, device, probes)
    examined = time.perf_counter()
    environment = describe_environment(device, workers)
    environment["seconds"] = dict(work=round(worked - started, 3), health=round(examined - worked, 3))
    write_summary(run, summarize(run, outcomes, health, environment))
    write_report([run], run.folder / "report.html")


def load_batch(data: Data, first: int, last: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Some samples, where the model is; all of them with a label."""
    images, labels = data.batch(first, last)
    unknown = (labels < 0).nonzero().flatten()
    if len(unknown):
        raise ValueError(f"data must have labels to evaluate on, {data.where(first + int(unknown[0]))} has none")
    return images.to(device), labels.to(device)


def check_fit(model: Model, data: Data, device: torch.device) -> Any:
    """See that the model can take such images at all: torch's own errors speak of layers, not of data. Returns what it
    makes of the first of them."""
    images, _ = data.batch(0, 1)
    try:
        with frozen(model), torch.no_grad():
            return model(images.to(device, Classifier(model, images, draws=1).dtype))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"model must take images of {data.name}, {tuple(images.shape[1:])}, but: {reason}") from error


def _recall(run: Run, watch: Watch) -> None:
    """Count what earlier runs have done."""
    for unit in run.done():
        success = run.rows([unit], ["success"]).column("success")
        watch.count(unit, len(success) - sum(success.to_pylist()))


def _place(model: Model) -> torch.device:
    """Where the model is."""
    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    return tensors[0].device if tensors else torch.device("cpu")
