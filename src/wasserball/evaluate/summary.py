"""From rows to ``summary.json``: accuracies with confidence intervals, distances, times, and what to think of them."""

import json
import math
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wasserball import __version__
from wasserball.evaluate.folder import write_whole
from wasserball.evaluate.health import Finding
from wasserball.evaluate.outcomes import Outcome, Outcomes
from wasserball.evaluate.store import Run
from wasserball.hardware import hardware_name

CONFIDENCE = 1.959964
"""Standard deviations on each side of a 95% interval."""


def count_up(run: Run, outcomes: Outcomes) -> dict[str, Any]:
    """What the rows come to."""
    setting = run.setting
    first = next(iter(outcomes.values()))
    counted: dict[str, Any] = dict(
        model=setting.model,
        data=setting.data,
        samples=len(first),
        clean_accuracy=float(first.correct.mean()),
        results=[dict(attack=attack, eps=eps, **_figures(outcome)) for (attack, eps), outcome in outcomes.items()],
    )
    if len(setting.attacks) > 1:
        counted["worst_case"] = [_worst_case(outcomes, eps) for eps in setting.eps]
    return counted


def summarize(run: Run, outcomes: Outcomes, health: Sequence[Finding], environment: dict[str, Any]) -> dict[str, Any]:
    """The content of ``summary.json``."""
    verdict = dict(health=[finding._asdict() for finding in health], environment=environment)
    return count_up(run, outcomes) | verdict


def _figures(outcome: Outcome) -> dict[str, Any]:
    holds = outcome.holds
    moved = outcome["distance"][~holds & (outcome["distance"] > 0)]
    return dict(
        robust_accuracy=float(holds.mean()),
        valid_fraction=float(outcome["valid"].mean()),
        mean_distance=float(moved.mean()) if len(moved) else None,
        seconds=round(float(outcome["seconds"].sum()), 3),
        confidence_interval=confidence_interval(int(holds.sum()), len(holds)),
    )


def _worst_case(outcomes: Outcomes, eps: float) -> dict[str, Any]:
    """What holds against every attack with this radius."""
    holds = np.logical_and.reduce([outcome.holds for (_, radius), outcome in outcomes.items() if radius == eps])
    interval = confidence_interval(int(holds.sum()), len(holds))
    return dict(eps=eps, robust_accuracy=float(holds.mean()), confidence_interval=interval)


def confidence_interval(count: int, total: int) -> list[float]:
    """Wilson's 95% interval for a share: unlike the normal one it is sound for 0 of n, too."""
    share, spread = count / total, CONFIDENCE**2 / total
    middle = share + spread / 2
    half = CONFIDENCE * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return [max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))]


def describe_environment(device: torch.device, workers: int) -> dict[str, Any]:
    """Where it was run, and with what."""
    return dict(
        wasserball=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=np.__version__,
        platform=platform.platform(),
        hardware=hardware_name(device),
        threads=torch.get_num_threads(),
        workers=workers,
    )


def write_summary(run: Run, summary: dict[str, Any]) -> None:
    """Put it into the run folder."""
    text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(run.folder / "summary.json", text.encode())
