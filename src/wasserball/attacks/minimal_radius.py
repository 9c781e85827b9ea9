"""The smallest radius at which each sample falls: walks along the decision boundary instead of an attack a radius."""

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wasserball.attacks.attack import Attack
from wasserball.attacks.classifier import Classifier
from wasserball.attacks.losses import LossName, resolve_loss
from wasserball.attacks.pgd import LEAP, SATURATION, Walk
from wasserball.attacks.result import AttackResult
from wasserball.attacks.trial import Report, Trial, part_of
from wasserball.operators.leap import step_that_spends
from wasserball.operators.rounding import make_feasible, per_sample
from wasserball.threat import Cost, LocalCost

WALKS: tuple[tuple[LossName, int], ...] = (("ce", 0), ("margin", 0), ("ce", 2), ("ce", 3))
"""The loss of each walk and the rival that it aims at; as in :class:`Auto`, the second and the third are worth it."""
FIRST_RADIUS = 1 / 32
"""Of the largest one: where the first walk begins."""
PACE = math.log(2), 0.01
"""By how much the logarithm of the radius changes in the first step of a walk, and in the last."""
LAST_STEP = 0.05
"""The last step of a walk, relative to its first and to the radius."""
PATIENCE = 10
"""Steps in vain at the largest radius."""
SHRINKS = 8
"""Bisections between the clean image and the nearest one found."""


@dataclass(frozen=True, kw_only=True, repr=False)
class MinimalRadius(Attack):
    """The nearest image that fools the model, for each sample; ``distance`` is the smallest radius found.

    A projected gradient walk whose radius shrinks while the model is fooled and grows while it is not (as DDN, Rony et
    al. 2019, does for l2), ever more slowly, so that plan and duals stay warm; then again with another loss, and
    aimed at the runners-up. ``result.robust_accuracy(eps)`` is the whole curve, up to ``eps``, the largest radius
    looked at. ``loss`` is the margin, which all walks share.

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> result = wb.MinimalRadius(steps=20)(model, images, labels)
    >>> result.robust_accuracy(0.05), result.robust_accuracy(0.5)
    (1.0, 0.0)
    """

    eps: float | Tensor = 1.0
    """The largest radius to look at."""
    steps: int = 200
    """Of each walk."""
    cost: Cost = LocalCost(7)  # noqa: RUF009
    """With a larger window than elsewhere, which makes the nearest images nearer."""

    def _attack(
        self, classifier: Classifier, images: Tensor, labels: Tensor, eps: Tensor, report: Report
    ) -> AttackResult:
        started = time.perf_counter()
        trial = Trial(
            classifier=classifier,
            images=images,
            labels=labels,
            eps=eps,
            cost=self.cost,
            bounds=self.bounds,
            loss=resolve_loss("ce", self.targeted),
            targeted=self.targeted,
            keep_plans=self.return_plan,
            report=report,
        )
        samples = trial.survivors()
        if len(samples):
            nearest = Nearest(trial, samples, self.bounds[1])
            walks = [walk for walk in WALKS if not (self.targeted and walk[1])]
            for number, (loss, rival) in enumerate(walks):
                trial.aim(resolve_loss(loss, self.targeted or rival > 0), rival)
                trial.report = part_of(report, number / len(walks), (number + 1) / len(walks))
                self._walk(trial, nearest, fresh=rival > 0)
            nearest.shrink()
            trial.offer(samples, nearest.plan, settle=True)
        report(1.0, int((~trial.success).sum()))
        return replace(self._result(trial, time.perf_counter() - started), loss=trial.margin)

    def _walk(self, trial: Trial, nearest: "Nearest", *, fresh: bool) -> None:
        """Follow the decision boundary towards the clean image, from the nearest image so far or from the clean one."""
        walk = Walk.start(trial, nearest.samples)
        image = walk.mass
        if not fresh:
            walk.plan.copy_(nearest.plan)
            image = nearest.image
        largest = walk.budget
        known = torch.isfinite(nearest.spent)
        walk.budget = torch.where(known, nearest.spent, FIRST_RADIUS * largest)
        vain = torch.zeros_like(walk.samples)
        for number in range(self.steps):
            done = number / self.steps
            slope, places = trial.slope(image, walk.samples)
            if number == 0:
                wanted = LEAP * walk.budget
                leap = step_that_spends(slope.direction, walk.mass, wanted, SATURATION, self.cost, backend=self.backend)
                # A stochastic model can be fooled by the clean image, at no budget at all.
                leap = (leap / walk.budget).nan_to_num(0.0)
            fooled = torch.zeros_like(known)
            if len(places):
                fooled[places] = nearest.offer(walk.plan, walk.budget, places)
            pace = PACE[1] + (PACE[0] - PACE[1]) * (1 - done) ** 2
            nearer = torch.minimum(walk.budget, nearest.spent) * math.exp(-pace)
            budget = torch.where(fooled, nearer, walk.budget * math.exp(pace))
            # At the largest radius gradients can lead nowhere: who was there in vain for a while begins anew.
            vain = torch.where(budget > largest, vain + 1, 0)
            budget = torch.where(vain > PATIENCE, FIRST_RADIUS * largest, torch.minimum(budget, largest))
            walk.budget = torch.minimum(budget, (1 - PACE[1]) * nearest.spent)
            decay = LAST_STEP + (1 - LAST_STEP) * (1 + math.cos(math.pi * done)) / 2
            walk.step = decay * leap * walk.budget
            image = walk.advance(slope.direction, self.cost, self.bounds, self.backend)
            trial.report((number + 1) / self.steps, nearest.missing)


class Nearest:
    """The nearest image so far that fools the model, for each of ``samples``; the clean one where there is none."""

    def __init__(self, trial: Trial, samples: Tensor, high: float) -> None:
        self.trial, self.samples, self.high = trial, samples, high
        self.image = trial.images[samples].clone()
        self.plan = trial.cost.identity(self.image)
        self.spent = torch.full_like(trial.budget[samples], math.inf)
        self.missing = len(samples)

    def offer(self, plan: Tensor, budget: Tensor, places: Tensor) -> Tensor:
        """Propose the plans at some places; returns which of these fool the model as they would be returned."""
        fooled = torch.cat([self._offer(at, plan[at], budget[at]) for at in self.trial.pieces(places)])
        self.missing = int(torch.isinf(self.spent).sum())
        return fooled

    def _offer(self, places: Tensor, plan: Tensor, budget: Tensor) -> Tensor:
        """Propose plans, which are overwritten."""
        trial, index = self.trial, self.samples[places]
        _, image, spent = make_feasible(plan, trial.images[index], budget, trial.cost, self.high, out=plan)
        fooled = trial.fooled(trial.logits(image, index), index)
        better = (fooled & (spent < self.spent[places])).nonzero().squeeze(1)
        chosen = places[better]
        self.plan[chosen], self.image[chosen], self.spent[chosen] = plan[better], image[better], spent[better]
        return fooled

    def shrink(self) -> None:
        """Bisect on the way from the clean image to the nearest one: all of it is in the ball and in the box."""
        for at in self.trial.pieces(torch.isfinite(self.spent).nonzero().squeeze(1)):
            far, spent = self.plan[at], self.spent[at]
            home = self.trial.cost.identity(self.trial.images[self.samples[at]])
            low, high = torch.zeros_like(spent), torch.ones_like(spent)
            for _ in range(SHRINKS):
                share = (low + high) / 2
                plan = torch.lerp(home, far, per_sample(share, far).to(far.dtype))
                fooled = self._offer(at, plan, share * spent * (1 + 1e-6))
                high, low = torch.where(fooled, share, high), torch.where(fooled, low, share)
