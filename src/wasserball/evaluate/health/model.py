"""The checks of the model itself: whether its answers and its gradients are what an attack takes them for."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from wasserball.attacks.attack import seed_generators
from wasserball.attacks.classifier import Classifier
from wasserball.attacks.losses import margin
from wasserball.evaluate.health.finding import Finding, Status, judge
from wasserball.evaluate.health.probe import Probe
from wasserball.sums import sample_sum
from wasserball.threat import LocalCost

ALONE = 8
"""Samples that are shown to the model one by one."""
DIFFERENT = 0.01
"""Of the largest logit: what is more is not rounding, whatever the precision."""
UNIT_SUM = 1e-3
VANISHING = 0.01
"""A gradient has vanished if all mass, moved as far as the window allows, could not change the margin by this share."""
STEPS = 1 / 255, 1 / 2550
"""Steps along the gradient that are too small to see, of the largest value of a pixel: a level, and a tenth of it."""


def examine_answers(probe: Probe) -> Finding:
    """Whether the same question has the same answer, with or without batch mates."""
    check, samples = "deterministic", probe.shown
    with probe.asking(draws=1) as classifier:
        first, second = classifier.logits(samples.images), classifier.logits(samples.images)
        alone = torch.cat([classifier.logits(image.unsqueeze(0)) for image in samples.images[:ALONE]])
        # GPUs convolve in TF32 by default, whose numbers are as short as those of float16.
        dtype = torch.float16 if samples.images.is_cuda and torch.backends.cudnn.allow_tf32 else classifier.dtype
        rounding = min(torch.finfo(dtype).eps ** 0.5, DIFFERENT)
    again, apart = _difference(first, second), _difference(first[:ALONE], alone)
    random = again > rounding
    difference, other = (again, second) if random else (apart, alone)
    changed = int((first[: len(other)].argmax(1) != other.argmax(1)).sum())
    if difference <= rounding:
        words = "The same images get the same logits each time, alone or in a batch."
        return Finding(check, "pass", words)
    seen = f"logits change by {difference:.2g} of the largest, the answer for {changed} of {len(other)} images"
    if random:
        eot = min(attack.eot for attack in probe.attacks.values())
        advice = "switch its randomness off, or give the attacks eot=16 or more" if eot == 1 else "try other seeds, too"
        status: Status = "fail" if eot == 1 and (changed or difference > DIFFERENT) else "warn"
        return Finding(check, status, f"The model is not deterministic (asked twice, {seen}): {advice}.")
    advice = "let the model use fixed statistics, as batch normalisation does in evaluation mode"
    status = "fail" if changed or difference > DIFFERENT else "warn"
    return Finding(check, status, f"Answers depend on the batch (alone, {seen}): {advice}.")


def examine_outputs(probe: Probe) -> Finding:
    """Whether the model ends in its logits."""
    check = "logits"
    with probe.asking(draws=1) as classifier:
        outputs = classifier.logits(probe.shown.images).double()
    inside = bool(((outputs >= 0) & (outputs <= 1)).all())
    advice = "gradients vanish where it is sure, so return what goes into the last layer instead"
    if inside and bool(((outputs.sum(1) - 1).abs() < UNIT_SUM).all()):
        return Finding(check, "fail", f"The model returns probabilities (a softmax at its end): {advice}.")
    if inside:
        return Finding(check, "warn", f"All outputs lie in [0, 1], as after a sigmoid: {advice} if there is one.")
    if bool((outputs.logsumexp(1).abs() < UNIT_SUM).all()):
        return Finding(check, "pass", "The model returns log-probabilities, which are as good as logits.")
    return Finding(check, "pass", "The outputs look like logits.")


def examine_gradients(probe: Probe) -> Finding:
    """Whether gradients are there, and point to where the loss rises."""
    check, samples = "gradients", probe.correct
    if not len(samples.places):
        return Finding(check, "warn", "No sample with mass is classified correctly: there is no gradient to look at.")
    high = probe.attack.bounds[1]
    with probe.asking(draws=probe.attack.eot) as classifier:
        slope = classifier.slope(samples.images, samples.labels, partial(margin))
        classifier.check(slope)
        gain = slope.scale * _best_gain(slope.direction, samples.images, probe.attack.cost)
        flat = gain <= VANISHING * slope.loss.abs()
        misled = torch.zeros_like(flat)
        for step in STEPS:
            moved = (samples.images + step * high * slope.direction).clamp(0, high)
            promised = slope.scale * sample_sum((slope.direction * (moved - samples.images)).double())
            seed_generators(probe.attack.seed, probe.device)  # let a stochastic model draw what it drew before
            risen = margin(classifier.logits(moved), samples.labels).double() - slope.loss
            readable = promised > _resolution(classifier, slope.logits)
            misled |= readable & (risen <= 0) & ~flat
    total, none, few, wrong = len(samples.places), int((slope.scale == 0).sum()), int(flat.sum()), int(misled.sum())
    advice = "gradient attacks are blind here, so attack a smooth stand-in for the model (no rounding, no saturation)"
    if (status := judge(few, total, 1.0)) != "pass":
        seen = f"{few} of {total} gradients have vanished, {none} of them are exactly 0"
        return Finding(check, status, f"{seen}: {advice}.")
    if (status := judge(wrong, total, 1.0)) != "pass":
        seen = f"A small step along the gradient does not raise the loss on {wrong} of {total} samples"
        return Finding(check, status, f"{seen}: {advice}.")
    return Finding(check, "pass", f"Gradients are there and the loss rises along them ({total} samples).")


def _difference(logits: Tensor, others: Tensor) -> float:
    """The largest, relative to the largest logit."""
    scale = logits.abs().amax(1).clamp(min=torch.finfo(logits.dtype).tiny)
    return float(((logits - others).abs().amax(1) / scale).max())


def _best_gain(direction: Tensor, images: Tensor, cost: object) -> Tensor:
    """By how much the loss would rise to first order if each pixel sent all its mass to the best place in reach."""
    assert isinstance(cost, LocalCost)
    best = F.max_pool2d(direction, cost.window, stride=1, padding=cost.window // 2)
    return sample_sum((images * (best - direction)).double())


def _resolution(classifier: Classifier, logits: Tensor) -> Tensor:
    """The smallest difference of logits that rounding leaves."""
    return 8 * torch.finfo(classifier.dtype).eps * logits.abs().amax(1).double()
