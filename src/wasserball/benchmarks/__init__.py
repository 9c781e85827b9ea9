"""What wasserball costs: operators and attack steps beside the paper's algorithms, and how time grows. All in one run.

``wasserball bench`` and ``make bench`` run this. Times depend on the machine and its load, ratios less. Only torch and
numpy are needed to measure.
"""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

import torch

from wasserball.benchmarks.art import check_art, measure_art
from wasserball.benchmarks.meter import Meter
from wasserball.benchmarks.operators import measure_operators
from wasserball.benchmarks.report import Machine, Record
from wasserball.benchmarks.scaling import measure_scaling
from wasserball.benchmarks.steps import measure_steps
from wasserball.benchmarks.training import measure_training

__all__ = ["USUAL", "Part", "Record", "check_device", "run"]


class Part(StrEnum):
    """What can be measured on its own."""

    OPERATORS = "operators"
    STEPS = "steps"
    SCALING = "scaling"
    TRAINING = "training"
    ART = "art"


USUAL = tuple(part for part in Part if part != Part.ART)
"""What is measured unless something else is asked for: ART's attack takes many minutes, and its package."""


def run(
    device: str = "cpu",
    parts: Sequence[str] = USUAL,
    *,
    quick: bool = False,
    out: Path | None = None,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Record:
    """Measure the parts on a device, and write tables, JSON and a picture into the folder ``out`` where one is given.

    Takes minutes; ``quick`` takes seconds, at sizes too small to mean anything. ``say`` is told what is being measured.
    Ctrl-C ends it early, with what was measured so far.
    """
    place, wanted = check_device(device), _check_parts(parts)
    meter = Meter(place, repeats=2, burst=0.0, copied=2**20) if quick else Meter(place)
    say("memory bandwidth")
    bandwidth = meter.bandwidth()
    record = Record(Machine.of(place, bandwidth), quick)
    try:
        if Part.OPERATORS in wanted:
            for operator in measure_operators(meter, bandwidth, say, quick=quick):
                record.operators.append(operator)
        if Part.STEPS in wanted:
            for step in measure_steps(meter, say, quick=quick):
                record.steps.append(step)
        if Part.SCALING in wanted:
            for scaling in measure_scaling(meter, say, quick=quick):
                record.scaling.append(scaling)
        if Part.TRAINING in wanted:
            for training in measure_training(meter, say, quick=quick):
                record.training.append(training)
        if Part.ART in wanted:
            for attack in measure_art(meter, say, quick=quick):
                record.art.append(attack)
        record.complete = True
    except KeyboardInterrupt:
        say("stopped")
    if out is not None:
        say(f"wrote {', '.join(map(str, record.write(out)))}")
    return record


def check_device(name: str) -> torch.device:
    """The device of that name, if there is one that can be measured; ``ValueError`` if not."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be available, got {name!r}: torch sees no GPU")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device must be available, got {name!r}: torch sees {torch.cuda.device_count()} GPUs")
    return device


def _check_parts(parts: Sequence[str]) -> set[str]:
    for part in parts:
        if part not in set(Part):
            raise ValueError(f"parts must be of {', '.join(Part)}, got {part!r}")
    if Part.ART in parts:
        check_art()
    return set(parts)
