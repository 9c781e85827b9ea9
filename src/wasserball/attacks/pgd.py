"""Projected gradient ascent in coupling space (paper §3), with the pixel box inside the loop."""

import math
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import get_args

import torch
from torch import Tensor

from wasserball.attacks.attack import Ascent, Box, check_choice, check_momentum, random_directions
from wasserball.attacks.classifier import Slope
from wasserball.attacks.trial import Trial
from wasserball.checks import check_positive
from wasserball.operators import box_step, project_box, project_step
from wasserball.operators.leap import step_that_spends
from wasserball.operators.rounding import per_sample
from wasserball.threat import Cost

LEAP = 32.0
"""The first step would, unprojected, spend this many budgets …"""
SATURATION = 0.75
"""… or this share of all that any step could spend, if that is less."""
MOMENTUM = 0.75
PATIENCE = 0.75
"""The share of the steps between two checkpoints that must raise the loss for the step size to stay."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PGD(Ascent):
    """Projected gradient ascent over transport plans: a step along the normalised gradient, then the projection.

    With ``box="loop"`` each step is projected onto ball and pixel box together, a sample stops as soon as it is fooled,
    and what is returned for the others is their best iterate. ``"final"`` is the paper: the box is ignored for all
    steps, and the last plan repaired by the projection of its App. G. ``"off"`` is the paper without the repair. In
    both the model is shown clamped images on the way; ``"off"`` is judged on the unclamped last one, not ``valid``.

    Without a ``step`` of its own, each sample starts with one that fits its budget and halves it when the loss no
    longer rises, going back to its best plan, as in APGD (Croce & Hein 2020).
    """

    step: float | None = None
    """A fixed step size, as in the paper: 0.1 for MNIST, 0.01 for CIFAR-10 and ImageNet. None: adaptive."""
    momentum: float | None = None
    """How much of the last direction is added to the next one. None: 0.75, or 0 for a fixed step, as in the paper."""
    box: Box = "loop"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step is not None:
            check_positive("step", self.step)
        if self.momentum is not None:
            check_momentum(self.momentum)
        check_choice("box", self.box, get_args(Box))

    @property
    def _ignores_box(self) -> bool:
        return self.box == "off"

    def _search(self, trial: Trial, start: int) -> None:
        samples = trial.survivors()
        walk = Walk.start(trial, samples)
        checks = checkpoints(self.steps)
        momentum = self.momentum if self.momentum is not None else MOMENTUM if self.step is None else 0.0
        for number in range(self.steps):
            slope, fooled = trial.slope(walk.image, walk.samples, behind_clamp=self.box != "loop")
            if self.box == "loop" and fooled.any():
                held = ~fooled
                held[fooled] = ~trial.offer(walk.samples[fooled], walk.plan[fooled])
                walk, slope = walk.keep(held), slope.keep(held)
                if len(walk.samples) == 0:
                    return
            walk.remember(slope)
            direction = slope.direction
            if start and number == 0:
                direction = random_directions(trial.images[walk.samples], self.seed, start)
            if number == 0 or (start and number == 1):
                walk.step = self._first_step(direction, trial, walk.samples)
            if self.step is None and number in checks:
                direction = walk.control(number - checks[number], direction)
            walk.velocity = direction = momentum * walk.velocity + direction
            mass, budget = trial.images[walk.samples], trial.budget[walk.samples]
            walk.advance(direction, mass, budget, self.cost, self.bounds if self.box == "loop" else None)
            trial.report((number + 1) / self.steps, len(walk.samples))
        if self.box == "loop":
            trial.offer(walk.samples, walk.plan, settle=True)
            held = ~trial.success[walk.samples]
            if held.any():
                trial.offer(walk.samples[held], walk.best_plan[held], settle=True)
        else:
            trial.offer(walk.samples, self._repaired(walk, trial), settle=True)

    def _first_step(self, direction: Tensor, trial: Trial, samples: Tensor) -> Tensor:
        if self.step is not None:
            return torch.full_like(trial.budget[samples], self.step)
        leap = LEAP * trial.budget[samples]
        return step_that_spends(direction, trial.images[samples], leap, SATURATION, trial.cost)

    def _repaired(self, walk: "Walk", trial: Trial) -> Tensor:
        if self.box == "off":
            return walk.plan
        mass, budget = trial.images[walk.samples], trial.budget[walk.samples]
        plan = project_box(walk.plan, mass, budget, self.cost, self.bounds).plan
        assert plan is not None
        return plan


@dataclass
class Walk:
    """Where the ascent stands for each sample that it has not fooled yet."""

    samples: Tensor
    plan: Tensor
    image: Tensor
    lam: Tensor
    mu: Tensor
    velocity: Tensor
    step: Tensor
    loss: Tensor
    fits: Tensor
    """Whether the plan is in ball and box, nearly. One that is not is shown to the model for its gradient only: its
    loss can be higher than any that an attack could return."""
    best_fits: Tensor
    best_loss: Tensor
    best_plan: Tensor
    best_direction: Tensor
    rises: Tensor
    """Steps since the last checkpoint that raised the loss."""
    reference: Tensor
    """The best loss at the last checkpoint."""
    halved: Tensor
    """Whether the step size was halved there."""

    @classmethod
    def start(cls, trial: Trial, samples: Tensor) -> "Walk":
        """At the clean images."""
        mass = trial.images[samples]
        plan = trial.cost.identity(mass)
        zeros = torch.zeros_like(trial.budget[samples])
        worst, nobody = torch.full_like(zeros, -math.inf), torch.zeros_like(samples, dtype=torch.bool)
        return cls(
            samples=samples,
            plan=plan,
            image=mass,
            lam=zeros,
            mu=torch.zeros_like(mass),
            velocity=torch.zeros_like(mass),
            step=zeros,
            loss=worst,
            fits=nobody,
            best_fits=nobody,
            best_loss=worst,
            best_plan=plan.clone(),
            best_direction=torch.zeros_like(mass),
            rises=zeros,
            reference=worst,
            halved=~nobody,
        )

    def keep(self, held: Tensor) -> "Walk":
        """The walk of some of the samples."""
        return Walk(*(getattr(self, item.name)[held] for item in fields(self)))

    def advance(
        self, direction: Tensor, mass: Tensor, budget: Tensor, cost: Cost, bounds: tuple[float, float] | None
    ) -> None:
        """A step along ``direction``, and the projection onto the ball, or ball and box where there are ``bounds``."""
        if bounds is None:
            moved = project_step(self.plan, direction, self.step, mass, budget, cost, lam=self.lam)
        else:
            moved = box_step(self.plan, direction, self.step, mass, budget, cost, bounds, lam=self.lam, mu=self.mu)
            assert moved.mu is not None
            self.mu = moved.mu
        assert moved.plan is not None
        self.plan, self.image, self.lam, self.fits = moved.plan, moved.image, moved.lam, moved.converged

    def remember(self, slope: Slope) -> None:
        """Note the loss of the current plan, and the plan if it is the best so far, or the last if none has fitted."""
        better = torch.where(self.best_fits, self.fits & (slope.loss > self.best_loss), True)
        self.rises = self.rises + (slope.loss > self.loss)
        self.loss = slope.loss
        self.best_fits = self.best_fits | self.fits
        self.best_loss = torch.where(better, slope.loss, self.best_loss)
        self.best_plan[better], self.best_direction[better] = self.plan[better], slope.direction[better]

    def control(self, since: int, direction: Tensor) -> Tensor:
        """Halve the step size of samples that no longer gain, and go on from their best plan, whose gradient that of
        ``direction`` becomes."""
        stalled = (self.rises < PATIENCE * since) | (~self.halved & (self.best_loss <= self.reference))
        self.step = torch.where(stalled, self.step / 2, self.step)
        self.rises = torch.zeros_like(self.rises)
        self.reference, self.halved = self.best_loss, stalled
        self.plan[stalled] = self.best_plan[stalled]
        self.velocity[stalled] = 0
        return torch.where(per_sample(stalled, direction), self.best_direction, direction)


def checkpoints(steps: int) -> dict[int, int]:
    """The steps at which the step size is looked at, each with the one before it; ever more often (APGD)."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    numbers = [math.ceil(share * steps) for share in shares]
    return {number: last for last, number in pairwise(numbers) if last < number < steps}
