"""Frank-Wolfe with the linear oracle (paper §4), in image space, with the pixel box as prices on full pixels."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from wasserball.attacks.attack import Ascent, Box, check_choice, check_momentum, random_directions
from wasserball.attacks.classifier import Classifier, Slope
from wasserball.attacks.trial import Report, Trial
from wasserball.operators import linear_minimizer, project_box
from wasserball.operators.rounding import per_sample, restore_rows
from wasserball.operators.solution import Solution
from wasserball.sums import sample_sum

Schedule = Literal["harmonic", "short", "line-search"]
PRICE_RATE = 0.3
"""How fast the price of a pixel rises with what it holds above its capacity, in units of the steepest pixel."""
PENALTY = 1.0
"""What is added to the price for the present excess alone."""
FITS = 0.01
"""How much above its capacity a pixel may be where a sample is called done."""
HALVINGS = 6
"""A line search looks at the shares 1, ½, ¼, … of the way."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FrankWolfe(Ascent):
    """Frank-Wolfe: ask the linear oracle where in the ball the gradient points, and go a share of the way.

    With ``box="loop"`` the pixel box is dualised: a pixel that overflows gets a price (an augmented Lagrangian), which
    the oracle sees as a change of its gradient, so that the average of its answers fits the box; the overflow that is
    left is sent back before an image is judged. A sample stops as soon as it is fooled. ``"final"`` and ``"off"``
    ignore the box in all steps, and repair the last plan (paper App. G) or do not, which is not ``valid``.

    One plan is kept as the witness and updated in place. With ``box="off"`` and without ``return_plan`` there is none,
    and memory is linear in the number of pixels.
    """

    gamma: float = 0.0
    """0: the exact oracle; above: the paper's entropic one, on gradients whose largest entry is 1."""
    schedule: Schedule = "harmonic"
    """The share of the way: 2/(t+1); a short step from the duality gap and the curvature seen; or a line search."""
    momentum: float = 0.9
    """How much of the last direction to keep in the next one; 0 is the paper."""
    box: Box = "loop"
    gap_tolerance: float = 0.0
    """Stop a sample whose duality gap has fallen to this share of its first one; 0: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, int | float) or not 0 <= self.gamma < torch.inf:
            raise ValueError(f"gamma must be a finite number >= 0, got {self.gamma!r}")
        tolerance = self.gap_tolerance
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
            raise ValueError(f"gap_tolerance must be a number in [0, 1), got {tolerance!r}")
        check_momentum(self.momentum)
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("box", self.box, get_args(Box))

    @property
    def _ignores_box(self) -> bool:
        return self.box == "off"

    def _trial(self, classifier: Classifier, images: Tensor, labels: Tensor, eps: Tensor, report: Report) -> Trial:
        trial = super()._trial(classifier, images, labels, eps, report)
        trial.gap = torch.zeros_like(trial.budget).masked_fill(trial.budget > 0, torch.inf)
        return trial

    def _search(self, trial: Trial, start: int) -> None:
        samples = trial.survivors()
        assert trial.gap is not None
        trial.gap[samples] = torch.inf
        flow = Flow.start(trial, samples, with_plan=self.box != "off" or self.return_plan)
        for number in range(self.steps):
            slope, fooled = trial.slope(flow.image, flow.samples, behind_clamp=self.box != "loop")
            if self.box == "loop" and fooled.any():
                assert flow.plan is not None
                held = ~fooled
                held[fooled] = ~trial.offer(flow.samples[fooled], flow.plan[fooled])
                flow, slope = flow.keep(held), slope.keep(held)
            if self.gap_tolerance and len(flow.samples):
                gap = self._gap(flow, slope, flow.image, trial)
                flow.goal = self.gap_tolerance * gap if number == 0 else flow.goal
                done = gap <= flow.goal
                if self.box == "loop":  # an overflow makes the gap look smaller than it will be without
                    done &= flow.image.flatten(1).amax(1) <= (1 + FITS) * self.bounds[1]
                self._settle(flow.keep(done), slope.keep(done), trial)
                flow, slope = flow.keep(~done), slope.keep(~done)
            if len(flow.samples) == 0:
                return
            flow.velocity = self.momentum * flow.velocity + (1 - self.momentum) * slope.direction
            direction = flow.velocity / _largest(flow.velocity)
            if start and number == 0:
                direction = random_directions(trial.images[flow.samples], self.seed, start)
            toll = torch.zeros_like(direction)
            if self.box == "loop":
                excess = flow.image / self.bounds[1] - 1
                flow.price = (flow.price + PRICE_RATE * excess).clamp(min=0)
                toll = flow.price + PENALTY * excess.clamp(min=0)
            best = self._oracle(flow, toll - direction, trial)
            flow.move(best, self._share(number, flow, slope, best, toll, trial))
            trial.report((number + 1) / self.steps, len(flow.samples))
        slope, _ = trial.slope(flow.image, flow.samples)
        self._settle(flow, slope, trial)

    def _oracle(self, flow: "Flow", gradient: Tensor, trial: Trial) -> Solution:
        mass, budget = trial.images[flow.samples], trial.budget[flow.samples]
        keep = flow.plan is not None
        return linear_minimizer(gradient, mass, budget, self.cost, gamma=self.gamma, return_plan=keep)

    def _gap(self, flow: "Flow", slope: Slope, image: Tensor, trial: Trial) -> Tensor:
        """``max <∇loss, s − image>`` over all s in the ball, and where the box counts an upper bound on that in both:
        by weak duality, what overflows may be charged any prices ≥ 0, such as the present ones."""
        mass, budget = trial.images[flow.samples], trial.budget[flow.samples]
        rise = slope.direction - flow.price
        best = linear_minimizer(-rise, mass, budget, self.cost).image
        within = sample_sum((rise * best - slope.direction * image + flow.price * self.bounds[1]).double())
        return (slope.scale * within).clamp(min=0)

    def _share(self, number: int, flow: "Flow", slope: Slope, best: Solution, toll: Tensor, trial: Trial) -> Tensor:
        """How far to go, as a share of the way to the oracle's answer, for each sample."""
        if self.schedule == "harmonic":
            return torch.full_like(flow.spent, 2 / (number + 2))
        way = best.image - flow.image
        if self.schedule == "line-search":
            return self._line_search(flow, way, slope.scale, trial)
        # The loss is taken for a parabola, loss + share·rise − share²·bend/2, whose bend the last step showed; what is
        # charged for overflow is one, or bends less.
        rise = slope.scale * sample_sum((slope.direction * way).double())
        charged = slope.scale * sample_sum((toll * way).double())
        stiff = slope.scale * PENALTY / self.bounds[1] * sample_sum(way.double().square()) * (self.box == "loop")
        seen = 2 * (flow.loss + flow.share * flow.rise - slope.loss) / flow.share.square()
        seen = torch.where(flow.share > 0, seen, 0.0)
        bend = torch.minimum(torch.maximum(seen, flow.bend / 2), 2 * flow.bend) if number else rise.abs()
        flow.bend = bend.clamp(min=torch.finfo(torch.float64).tiny)
        flow.loss, flow.rise = slope.loss, rise
        flow.share = ((rise - charged) / (flow.bend + stiff)).clamp(0, 1)
        return flow.share

    def _line_search(self, flow: "Flow", way: Tensor, scale: Tensor, trial: Trial) -> Tensor:
        """The best of the shares 1, ½, ¼, …: of the loss, less what the overflow is charged there."""
        best = torch.full_like(flow.spent, -torch.inf)
        chosen = torch.zeros_like(best)
        for halvings in range(HALVINGS + 1):
            share = 0.5**halvings
            image = flow.image + share * way
            value = trial.losses(image.clamp(0, self.bounds[1]), flow.samples)
            if self.box == "loop":
                excess = (image / self.bounds[1] - 1).double()
                charged = flow.price * excess + PENALTY / 2 * excess.clamp(min=0).square()
                value -= scale * self.bounds[1] * sample_sum(charged)
            chosen = torch.where(value > best, share, chosen)
            best = torch.maximum(value, best)
        return chosen

    def _settle(self, flow: "Flow", slope: Slope, trial: Trial) -> None:
        """Offer where the flow ended, with the box repaired where that is wanted."""
        if len(flow.samples) == 0:
            return
        image, plan = flow.image, flow.plan
        if self.box != "off":
            assert plan is not None
            mass, budget = trial.images[flow.samples], trial.budget[flow.samples]
            whole = restore_rows(plan, mass, self.cost).to(plan.dtype)
            repaired = project_box(whole, mass, budget, self.cost, self.bounds)
            image, plan = repaired.image, repaired.plan
        assert trial.gap is not None
        trial.gap[flow.samples] = self._gap(flow, slope, image, trial)
        if plan is None:
            trial.offer_images(flow.samples, image, flow.spent)
        else:
            trial.offer(flow.samples, plan, settle=True)


@dataclass
class Flow:
    """Where Frank-Wolfe stands for each sample that it has not fooled yet."""

    samples: Tensor
    image: Tensor
    plan: Tensor | None
    spent: Tensor
    velocity: Tensor
    price: Tensor
    """Of a unit of mass that arrives at a pixel: the dual of its capacity."""
    goal: Tensor
    loss: Tensor
    rise: Tensor
    share: Tensor
    bend: Tensor

    @classmethod
    def start(cls, trial: Trial, samples: Tensor, *, with_plan: bool) -> "Flow":
        """At the clean images."""
        mass = trial.images[samples]
        zeros = torch.zeros_like(trial.budget[samples])
        plan = trial.cost.identity(mass) if with_plan else None
        still = torch.zeros_like(mass)
        return cls(samples, mass.clone(), plan, zeros.clone(), still, still, *(zeros for _ in range(5)))

    def keep(self, held: Tensor) -> "Flow":
        """The flow of some of the samples."""
        columns: dict[str, Tensor | None] = {item.name: getattr(self, item.name) for item in fields(self)}
        kept: dict[str, Any] = {name: None if column is None else column[held] for name, column in columns.items()}
        return Flow(**kept)

    def move(self, best: Solution, share: Tensor) -> None:
        """Go a share of the way, in place."""
        self.image.lerp_(best.image, per_sample(share, self.image).to(self.image.dtype))
        self.spent.lerp_(best.spent, share)
        if self.plan is not None and best.plan is not None:
            self.plan.lerp_(best.plan, per_sample(share, self.plan).to(self.plan.dtype))


def _largest(values: Tensor) -> Tensor:
    tiny = torch.finfo(values.dtype).tiny
    return per_sample(values.abs().flatten(1).amax(1).clamp(min=tiny), values)
