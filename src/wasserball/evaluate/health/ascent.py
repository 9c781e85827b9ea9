"""The checks that attack again: whether the search was long and wide enough for its figures to be believed."""

from dataclasses import replace

import torch

from wasserball.attacks.auto import WIDER
from wasserball.attacks.losses import margin
from wasserball.evaluate.health.finding import FEW, POINT, POINTS, SOME, Finding, Status, judge
from wasserball.evaluate.health.probe import Probe
from wasserball.threat import LocalCost

STILL_RISING, FAR_FROM_DONE = 0.1, 0.5
"""What more steps may add to the rise of the margin so far, before an attack counts as not converged."""
NOTHING = 1e-3
"""Of the margin: an attack that did less to it did nothing, and what more steps add is not measured by that."""
AIMS = 1, 2, 3
"""The runners-up to aim at."""


def examine_convergence(probe: Probe) -> Finding:
    """Whether the loss of the survivors has stopped rising when the attack ends."""
    check, samples, steps = "converged", probe.survivors, probe.attack.steps
    if not len(samples.places):
        return _no_survivors(check, probe)
    with probe.asking(draws=probe.attack.eot) as classifier:
        start = margin(classifier.logits(samples.images), samples.labels).double().cpu().numpy()
    middle, end = probe.before(samples).margin, probe.longer.margin.cpu().numpy()
    # Of all samples together: on a single one, of which the attack made nothing, any rise would be infinite.
    before, after = float((middle - start).sum()), max(0.0, float((end - middle).sum()))
    more = after / max(before, NOTHING * float(abs(start).sum()), torch.finfo(torch.float64).tiny)
    seen = f"{probe.more_steps} steps instead of {steps} add {more:.0%} to the rise of the survivors' margin"
    if more < STILL_RISING or probe.surviving < POINT:
        return Finding(check, "pass", f"{seen}.")
    status: Status = "fail" if more >= FAR_FROM_DONE and probe.surviving >= POINTS else "warn"
    advice = f"the attack was stopped too early, so run it with --steps {probe.more_steps} or more"
    return Finding(check, status, f"{seen}: {advice}.")


def examine_steps(probe: Probe) -> Finding:
    """Whether more steps fool more."""
    check, steps = "more steps", probe.more_steps
    if not len(probe.survivors.places):
        return _no_survivors(check, probe)
    how = f"with {steps} steps instead of {probe.attack.steps}"
    return _judge_fall(check, probe, int(probe.longer.success.sum()), how, f"run with --steps {steps}")


def examine_restarts(probe: Probe) -> Finding:
    """Whether another start fools more."""
    check = "more restarts"
    if not len(probe.survivors.places):
        return _no_survivors(check, probe)
    # A seed of its own: the next start of the run's own seed is one that Auto has tried already.
    changes = dict(random_start=True, restarts=1, seed=(probe.attack.seed + 1) % 2**63)
    fallen = int(probe.run(probe.survivors, **changes).success.sum())
    more = probe.attack.restarts + 1
    return _judge_fall(check, probe, fallen, "to one more random start", f"run with restarts={more} or more")


def examine_targets(probe: Probe) -> Finding:
    """Whether attacks that are aimed at the runners-up fool more."""
    check, samples = "targeted", probe.survivors
    if probe.battery is not None:
        return Finding(check, "pass", "Auto aims at the runners-up itself, and the survivors survived that.")
    if not len(samples.places):
        return _no_survivors(check, probe)
    with probe.asking(draws=1) as classifier:
        classes = classifier.logits(samples.images[:1]).shape[1]
    if classes == 2:
        return Finding(check, "pass", "With two classes every attack is aimed at the other one.")
    aims = [aim for aim in AIMS if aim < classes]
    standing = torch.ones_like(samples.labels, dtype=torch.bool)
    for aim in aims:
        left = samples.keep(standing)
        if len(left.places):
            loss = "ce" if callable(probe.attack.loss) else probe.attack.loss
            standing[standing.clone()] = ~probe.run(left, rival=aim, loss=loss, restarts=1).success
    fallen = int((~standing).sum())
    how = f"when the attack is aimed at the runners-up ({', '.join(map(str, aims))})"
    return _judge_fall(check, probe, fallen, how, "run with rival=1, 2, 3")


def examine_window(probe: Probe) -> Finding:
    """Whether a larger window hurts the attack: it only adds moves."""
    check, samples, cost = "monotone in window", probe.correct, probe.attack.cost
    assert isinstance(cost, LocalCost)
    if not len(samples.places):
        return _no_survivors(check, probe)
    wider = replace(cost, window=cost.window + WIDER)
    before = int(probe.before(samples).holds.sum())
    after = int((~probe.run(samples, cost=wider).success).sum())
    status = judge(after - before, len(samples.places), probe.clean_accuracy)
    seen = (
        f"With a window of {wider.window}×{wider.window} instead of {cost.window}×{cost.window}, "
        f"{after} instead of {before} of {len(samples.places)} samples hold at eps {probe.eps:g}"
    )
    advice = "the search fails where it has more choice, so use more steps, restarts or --attack auto"
    return Finding(check, status, f"{seen}." if status == "pass" else f"{seen}: {advice}.")


def examine_unbounded(probe: Probe) -> Finding:
    """Whether an adversary with all the budget that can be spent wins."""
    check, samples, cost = "unbounded radius", probe.survivors, probe.attack.cost
    assert isinstance(cost, LocalCost)
    if not len(samples.places):
        return _no_survivors(check, probe)
    result = probe.run(samples, eps=max(cost.prices))
    with probe.asking(draws=1) as classifier:
        chance = 1 / classifier.logits(samples.images[:1]).shape[1]
    held, total = int((~result.success).sum()), len(samples.places)
    seen = f"{held} of {total} survivors hold even at eps {max(cost.prices):.3g}, where no move is too dear"
    share = held / total
    if held < FEW or share <= chance + SOME or share * probe.surviving < POINT:
        return Finding(check, "pass", f"{seen}.")
    status: Status = "fail" if share > (1 + chance) / 2 and share * probe.surviving >= POINTS else "warn"
    advice = "the attack may not see what it does, so suspect the gradients before you call the model robust"
    return Finding(check, status, f"{seen}: {advice}.")


def _judge_fall(check: str, probe: Probe, fallen: int, how: str, advice: str) -> Finding:
    """What to think of survivors that fall to a changed attack: as they do, so would others that were not probed."""
    total = len(probe.survivors.places)
    status = judge(fallen, total, probe.surviving)
    seen = f"{fallen} of {total} survivors at eps {probe.eps:g} fall {how}"
    more = "" if probe.battery else ", or with --attack auto"
    return Finding(check, status, f"{seen}." if status == "pass" else f"{seen}: {advice}{more}.")


def _no_survivors(check: str, probe: Probe) -> Finding:
    words = f"No sample that could be attacked holds at eps {probe.eps:g}: there is nothing to gain."
    return Finding(check, "pass", words)
