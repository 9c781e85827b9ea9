"""Health checks: what makes a robustness figure wrong, looked for in the rows of a run and with a few more attacks."""

import warnings
from collections.abc import Callable, Iterator

import torch

from wasserball.attacks import Attack
from wasserball.attacks.classifier import Model
from wasserball.evaluate.health.ascent import (
    examine_convergence,
    examine_restarts,
    examine_steps,
    examine_targets,
    examine_unbounded,
    examine_window,
)
from wasserball.evaluate.health.finding import Finding
from wasserball.evaluate.health.model import examine_answers, examine_gradients, examine_outputs
from wasserball.evaluate.health.probe import Probe
from wasserball.evaluate.health.rows import (
    examine_certificates,
    examine_clean_accuracy,
    examine_radii,
    examine_strongest,
    examine_the_way,
)
from wasserball.evaluate.outcomes import Outcomes
from wasserball.zoo import Data

__all__ = ["Finding", "examine"]

Check = Callable[[Probe], Finding]
OF_THE_MODEL: dict[str, Check] = {
    "deterministic": examine_answers,
    "logits": examine_outputs,
    "gradients": examine_gradients,
}
OF_THE_SEARCH: dict[str, Check] = {
    "converged": examine_convergence,
    "more steps": examine_steps,
    "more restarts": examine_restarts,
    "targeted": examine_targets,
    "monotone in window": examine_window,
    "unbounded radius": examine_unbounded,
}


def examine(
    outcomes: Outcomes, model: Model, data: Data, attacks: dict[str, Attack], device: torch.device, probes: int
) -> list[Finding]:
    """What the checks say of a run: the same each time, however it was interrupted.

    Those that ask the model again do so on at most ``probes`` samples; with 0 they are left out, as is what a run of
    one radius says nothing about.
    """
    labels = next(iter(outcomes.values()))["label"]
    classes = max(2, int(labels.max()) + 1, len(data.classes or ()))
    return [
        examine_clean_accuracy(outcomes, classes),
        examine_certificates(outcomes),
        *(_probe(Probe(model, data, device, outcomes, attacks, probes)) if probes else ()),
        examine_the_way(outcomes, attacks),
        *examine_radii(outcomes),
        examine_strongest(outcomes, attacks),
    ]


def _probe(probe: Probe) -> Iterator[Finding]:
    """The checks with further questions and attacks. Whatever goes wrong in one of them is its finding, and no more:
    an evaluation of hours is not to be lost over it."""
    for name, check in (OF_THE_MODEL | (OF_THE_SEARCH if probe.eps > 0 else {})).items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run's own attacks have said it before
                yield check(probe)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            advice = "make sure that the model answers whenever it is asked"
            yield Finding(name, "fail", f"The check could not be made ({reason}): {advice}.")
