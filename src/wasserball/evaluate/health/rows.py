"""The checks that need no more than the rows of a run."""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from wasserball.attacks import Attack, Auto
from wasserball.evaluate.health.finding import FEW, POINT, POINTS, SOME, Finding, Status
from wasserball.evaluate.outcomes import Outcome, Outcomes

NEAR_CHANCE = 0.03
"""An accuracy that is above chance by no more than this is not one of a model that was made for these labels."""
ALONE, ALONE_POINTS = 1 / 3, 0.1
"""An attack stands alone if no other finds this share of what all find together, and if that is so much accuracy."""


def examine_clean_accuracy(outcomes: Outcomes, classes: int) -> Finding:
    """Whether the model knows what is in the images at all."""
    check = "clean accuracy"
    first = next(iter(outcomes.values()))
    right, total = int(first.correct.sum()), len(first)
    chance = 1 / classes
    allowance = max(NEAR_CHANCE, 2 * math.sqrt(chance * (1 - chance) / total))
    seen = f"{right} of {total} samples are classified correctly before any attack"
    if right / total <= chance + allowance:
        advice = "labels, normalisation or data do not fit the model, so fix that before you believe any other figure"
        return Finding(check, "fail", f"{seen}, about chance with {classes} classes: {advice}.")
    return Finding(check, "pass", f"{seen}.")


def examine_certificates(outcomes: Outcomes) -> Finding:
    """Whether every image is inside ball and box with its mass kept."""
    check = "certificates"
    bad = {pair: int((~outcome["valid"].astype(bool)).sum()) for pair, outcome in outcomes.items()}
    attack, eps = max(bad, key=lambda pair: bad[pair])
    outcome, count = outcomes[attack, eps], bad[attack, eps]
    if count == 0:
        total = sum(map(len, outcomes.values()))
        return Finding(check, "pass", f"All {total} images lie inside ball and box with their mass kept.")
    seen = f"{count} of {len(outcome)} images of {attack} at eps {eps:g} fail their certificate"
    if any((~outcome["valid"].astype(bool) & ~outcome.holds).any() for outcome in outcomes.values()):
        advice = 'leave that attack out, or give it box="loop" if it has a box'
        return Finding(check, "fail", f"{seen}, and what such images fool the model with does not count: {advice}.")
    return Finding(check, "warn", f"{seen}, though none of these fools the model: do not use them as examples.")


def examine_the_way(outcomes: Outcomes, attacks: Mapping[str, Attack]) -> Finding:
    """Whether an attack had images that it then lost."""
    check = "kept on the way"
    # The others judge at once what fools the model on the way: if that does not last, it was a little out of the ball.
    forgetful = {pair: outcome for pair, outcome in outcomes.items() if _forgets(attacks[pair[0]])}
    if not forgetful:
        words = "Every attack judges at once, as it would be returned, what fools the model on the way."
        return Finding(check, "pass", words)
    lost = {pair: outcome["on_the_way"].astype(bool) & outcome.holds for pair, outcome in forgetful.items()}
    attack, eps = max(lost, key=lambda pair: int(lost[pair].sum()))
    count, total = int(lost[attack, eps].sum()), len(outcomes[attack, eps])
    seen = f"{attack} at eps {eps:g} fooled the model on the way, but not at the end, on {count} of {total} samples"
    if count < max(FEW, POINT * total):
        return Finding(check, "pass", f"{seen}.")
    # What another attack found all the same does not make the verdict wrong.
    unseen = int((lost[attack, eps] & worst_case(outcomes, eps)).sum())
    status: Status = "fail" if unseen >= max(FEW, POINTS * total) else "warn"
    return Finding(check, status, f'{seen}, so its accuracy is too high: give it box="loop", or use --attack auto.')


def examine_radii(outcomes: Outcomes) -> Iterator[Finding]:
    """Whether more budget helps, as it must: the balls are nested. Nothing to say of one radius."""
    check = "monotone in eps"
    pairs = list(_neighbours(outcomes))
    if not pairs:
        return
    total = len(next(iter(outcomes.values())))
    rises = [int(large.holds.sum()) - int(small.holds.sum()) for _, small, large in pairs]
    back = [int((large.holds & ~small.holds).sum()) for _, small, large in pairs]
    worst, missed = int(np.argmax(rises)), int(np.argmax(back))
    advice = "the larger radius was not searched well, so use more steps, restarts or --attack auto"
    if rises[worst] >= max(FEW, POINT * total):
        seen = f"{rises[worst]} samples more hold under {pairs[worst][0]}"
        yield Finding(check, "fail", f"{seen}, of {total}: {advice}.")
    elif back[missed] >= max(FEW, SOME * total):
        seen = f"{back[missed]} of {total} samples that {pairs[missed][0].replace(' than at', ' hold, but not at')}"
        yield Finding(check, "warn", f"{seen}: {advice}.")
    else:
        yield Finding(check, "pass", "No attack leaves more samples standing at a larger radius.")


def examine_strongest(outcomes: Outcomes, attacks: Mapping[str, Attack]) -> Finding:
    """Whether one attack finds what no other does: then who knows what a further one would find."""
    check = "one attack alone"
    if len(attacks) == 1:
        (name, attack) = next(iter(attacks.items()))
        if isinstance(attack, Auto):
            return Finding(check, "pass", "Only auto ran, which is a battery of several attacks by itself.")
        advice = "nothing says that another would not find more, so add --attack auto"
        return Finding(check, "warn", f"Only {name} ran: {advice}.")
    worst: tuple[float, str] | None = None
    for eps in dict.fromkeys(radius for _, radius in outcomes):
        fooled = {name: outcomes[name, eps].correct & ~outcomes[name, eps].holds for name, r in outcomes if r == eps}
        total = len(next(iter(fooled.values())))
        by_any = int(np.logical_or.reduce(list(fooled.values())).sum())
        for name, mine in fooled.items():
            others = np.logical_or.reduce([theirs for other, theirs in fooled.items() if other != name])
            alone = int((mine & ~others).sum())
            enough = alone >= max(FEW, ALONE_POINTS * total, ALONE * by_any)
            if enough and (worst is None or alone / by_any > worst[0]):
                seen = f"Of {by_any} samples that are fooled at eps {eps:g}, {alone} are by {name} alone"
                worst = alone / by_any, seen
    if worst is None:
        return Finding(check, "pass", f"No attack is far stronger than all others ({', '.join(attacks)}).")
    advice = "the others are too weak to confirm it or the gradients mislead them, so look for a stronger one still"
    return Finding(check, "warn", f"{worst[1]}: {advice}.")


def worst_case(outcomes: Outcomes, eps: float) -> npt.NDArray[np.bool_]:
    """Which samples hold against every attack with this radius."""
    holds: npt.NDArray[np.bool_] = np.logical_and.reduce(
        [outcome.holds for (_, radius), outcome in outcomes.items() if radius == eps]
    )
    return holds


def _neighbours(outcomes: Outcomes) -> Iterator[tuple[str, Outcome, Outcome]]:
    """Each two radii that follow each other, for each attack, with words for them."""
    for name in dict.fromkeys(attack for attack, _ in outcomes):
        radii = sorted(eps for attack, eps in outcomes if attack == name)
        for small, large in pairwise(radii):
            words = f"{name} at eps {large:g} than at eps {small:g}"
            yield words, outcomes[name, small], outcomes[name, large]


def _forgets(attack: Attack) -> bool:
    """Whether only the last image of an attack counts, as in the paper."""
    return getattr(attack, "box", "loop") != "loop"
