"""Projected gradient ascent in coupling space (paper §3), with the pixel box inside the loop."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor

from wasserball.attacks.attack import Ascent, Box, check_choice, check_momentum, random_directions
from wasserball.attacks.classifier import Slope
from wasserball.attacks.drill import Drill
from wasserball.attacks.state import keep
from wasserball.attacks.trial import Trial
from wasserball.checks import check_positive
from wasserball.kernels import Backend
from wasserball.operators import box_step, project_box, project_step
from wasserball.operators.leap import step_that_spends
from wasserball.operators.projection import check_step
from wasserball.operators.rounding import per_sample
from wasserball.threat import Cost

LEAP = 32.0
"""The first step would, unprojected, spend this many budgets …"""
SATURATION = 0.75
"""… or this share of all that any step could spend, if that is less."""
MOMENTUM = 0.75
ROUNDS = 3
"""Of the duals of ball and box in a step: where it leads is only where the next one starts …"""
LAST_ROUNDS = 12
"""… but for the last one, where nobody judges and repairs it …"""
RETURNING_ROUNDS = 6
"""… or fewer, where the first step went nearly all the way and the duals are warm."""
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

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> result = wb.PGD(eps=0.3, steps=20)(model, images, labels)
    >>> int(result.success.sum()), bool(result.valid.all())
    (4, True)
    """

    step: float | None = None
    """A fixed step size, as in the paper: 0.1 for MNIST, 0.01 for CIFAR-10 and ImageNet. None: adaptive."""
    momentum: float | None = None
    """How much of the last direction is added to the next one. None: 0.75, or 0 for a fixed step, as in the paper."""
    box: Box = "loop"
    """When the pixel box is kept to: in every step, at the end, or never."""

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
        inside, drilled = self.box == "loop", isinstance(trial, Drill)
        walk = Walk.start(trial, trial.survivors())
        # Who comes again goes on where this search ends: there is no best plan to go back to.
        returning = isinstance(trial, Drill) and trial.lead is not None
        controlled = self.step is None and not returning
        best = Best.start(walk) if controlled or (inside and not drilled) else None
        checks = checkpoints(self.steps) if controlled else {}
        momentum = self.momentum if self.momentum is not None else MOMENTUM if self.step is None else 0.0
        last_rounds = RETURNING_ROUNDS if returning else LAST_ROUNDS if drilled else ROUNDS
        image, velocity = walk.mass, None
        lookout = trial.lookout()
        for number in range(self.steps):
            slope, fooled = trial.peek(image, walk.samples, behind_clamp=not inside)
            del image  # there is no room for what is not needed again
            if not inside:
                trial.pass_by(walk.samples, fooled)
            if best is not None:
                best.remember(walk, slope, fooled)
            places = lookout.places(slope, fooled)
            if len(places):
                assert best is not None
                held = trial.strike(walk.samples, best.plan, places)
                if len(held) == 0:
                    return
                best.release(places)
                slope, fooled, velocity = slope.keep(held), fooled[held], None if velocity is None else velocity[held]
                keep(walk, held)
                keep(best, held)
            lookout.send(slope, fooled)
            direction = slope.direction
            del slope
            if start and number == 0:
                direction = random_directions(walk.mass, self.seed, start)
            if number == 0 or (start and number == 1):
                walk.step = self._first_step(direction, walk)
            if number in checks and best is not None:
                direction = best.control(walk, number - checks[number], direction, velocity)
            if momentum and velocity is not None:
                direction = torch.add(direction, velocity, alpha=momentum, out=velocity)
            velocity = direction if momentum else None
            rounds = last_rounds if number == self.steps - 1 else ROUNDS
            image = walk.advance(direction, self.cost, self.bounds if inside else None, self.backend, rounds)
            trial.report((number + 1) / self.steps, len(walk.samples))
        if isinstance(trial, Drill):
            trial.take(*self._end(walk, image))
            trial.leave(direction)
            return
        del image, direction, velocity
        if inside:
            assert best is not None
            trial.offer(walk.samples, walk.plan, settle=True)
            trial.offer(walk.samples, best.plan, (~trial.success[walk.samples]).nonzero().squeeze(1), settle=True)
        else:
            self._offer_repaired(walk, trial)

    def _first_step(self, direction: Tensor, walk: "Walk") -> Tensor:
        if self.step is None:
            return step_that_spends(
                direction, walk.mass, LEAP * walk.budget, SATURATION, self.cost, backend=self.backend
            )
        step = torch.full_like(walk.budget, self.step)
        check_step(step, direction)
        return step

    def _end(self, walk: "Walk", image: Tensor) -> tuple[Tensor, Tensor]:
        """The images where the walk ended and what they cost; those that are still to see the box do so now, nearly."""
        if self.box == "final":
            walk.lam = torch.zeros_like(walk.lam)
            still = torch.zeros_like(walk.mass)
            image = walk.advance(still, self.cost, self.bounds, self.backend, LAST_ROUNDS)
        return image, walk.spent

    def _offer_repaired(self, walk: "Walk", trial: Trial) -> None:
        for at in trial.pieces(torch.arange(len(walk.samples), device=walk.samples.device)):
            trial.offer(walk.samples[at], self._repaired(walk.plan[at], walk.mass[at], walk.budget[at]), settle=True)

    def _repaired(self, plan: Tensor, mass: Tensor, budget: Tensor) -> Tensor:
        if self.box == "off":
            return plan
        repaired = project_box(plan, mass, budget, self.cost, self.bounds).plan
        assert repaired is not None
        return repaired


@dataclass
class Walk:
    """Where the ascent stands for each sample that it has not fooled yet."""

    samples: Tensor
    mass: Tensor
    budget: Tensor
    plan: Tensor
    lam: Tensor
    mu: Tensor | None
    step: Tensor
    spent: Tensor
    fits: Tensor
    """Whether the plan is in ball and box, nearly. One that is not is shown to the model for its gradient only: its
    loss can be higher than any that an attack could return."""

    @classmethod
    def start(cls, trial: Trial, samples: Tensor) -> "Walk":
        """At the clean images."""
        mass, budget = trial.ball_of(samples)
        zeros, nobody = torch.zeros_like(budget), torch.zeros_like(samples, dtype=torch.bool)
        return cls(samples, mass, budget, trial.cost.identity(mass), zeros, None, zeros, zeros, nobody)

    def advance(
        self,
        direction: Tensor,
        cost: Cost,
        bounds: tuple[float, float] | None,
        backend: Backend | None,
        rounds: int = ROUNDS,
    ) -> Tensor:
        """A step along ``direction``, and the projection onto the ball, or ball and box where there are ``bounds``;
        returns the images that this leads to."""
        problem = self.plan, direction, self.step, self.mass, self.budget, cost
        how: dict[str, Any] = dict(lam=self.lam, backend=backend, out=self.plan, validate=False)
        if bounds is None:
            moved = project_step(*problem, **how)
        else:
            moved = box_step(*problem, bounds, mu=self.mu, rounds=rounds, **how)
        self.lam, self.mu, self.spent, self.fits = moved.lam, moved.mu, moved.spent, moved.converged
        return moved.image


@dataclass
class Best:
    """The best plan of a walk so far, and whether it is time for smaller steps."""

    loss: Tensor
    fits: Tensor
    won: Tensor
    """Whether the model is fooled there, as far as it was seen: nothing is better before that has been judged."""
    plan: Tensor
    direction: Tensor
    last: Tensor
    """The loss one step ago."""
    rises: Tensor
    """Steps since the last checkpoint that raised the loss."""
    reference: Tensor
    """The best loss at the last checkpoint."""
    halved: Tensor
    """Whether the step size was halved there."""

    @classmethod
    def start(cls, walk: Walk) -> "Best":
        """Nothing so far, so that whatever comes first is the best."""
        worst = torch.full_like(walk.budget, -math.inf)
        plan, direction = torch.empty_like(walk.plan), torch.empty_like(walk.mass)
        nobody = torch.zeros_like(walk.fits)
        return cls(worst, nobody, nobody, plan, direction, worst, torch.zeros_like(worst), worst, ~nobody)

    def remember(self, walk: Walk, slope: Slope, fooled: Tensor) -> None:
        """Note the loss of the current plan, and the plan if it fools the model or is the best so far, or the last if
        none has fitted."""
        better = ~self.won & (fooled | ~self.fits | walk.fits & (slope.loss > self.loss))
        self.rises = self.rises + (slope.loss > self.last)
        self.last = slope.loss
        self.won = self.won | fooled
        self.fits = self.fits | walk.fits
        self.loss = torch.where(better, slope.loss, self.loss)
        replace_(self.plan, walk.plan, better)
        replace_(self.direction, slope.direction, better)

    def release(self, places: Tensor) -> None:
        """Begin anew where a plan did not fool the model as it would be returned."""
        self.won = self.won.index_fill(0, places, False)
        self.fits = self.fits.index_fill(0, places, False)
        self.loss = self.loss.index_fill(0, places, -math.inf)

    def control(self, walk: Walk, since: int, direction: Tensor, velocity: Tensor | None) -> Tensor:
        """Halve the step size of samples that no longer gain, and go on from their best plan, whose gradient that of
        ``direction`` becomes."""
        stalled = (self.rises < PATIENCE * since) | (~self.halved & (self.loss <= self.reference))
        walk.step = torch.where(stalled, walk.step / 2, walk.step)
        self.rises = torch.zeros_like(self.rises)
        self.reference, self.halved = self.loss, stalled
        replace_(walk.plan, self.plan, stalled)
        if velocity is not None:
            velocity.masked_fill_(per_sample(stalled, velocity), 0)
        return torch.where(per_sample(stalled, direction), self.direction, direction)


def replace_(values: Tensor, other: Tensor, chosen: Tensor) -> None:
    """Put ``other`` into ``values`` for the chosen samples: without a copy, and without asking a GPU which they are."""
    torch.where(per_sample(chosen, values), other, values, out=values)


def checkpoints(steps: int) -> dict[int, int]:
    """The steps at which the step size is looked at, each with the one before it; ever more often (APGD)."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    numbers = [math.ceil(share * steps) for share in shares]
    return {number: last for last, number in pairwise(numbers) if last < number < steps}
