"""Frank-Wolfe with the linear oracle (paper §4), in image space, with the pixel box as prices on full pixels."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from wasserball.attacks.attack import Ascent, Box, check_choice, check_momentum, random_directions
from wasserball.attacks.classifier import Classifier, Slope, largest_entry
from wasserball.attacks.drill import Drill
from wasserball.attacks.state import keep
from wasserball.attacks.trial import Report, Trial
from wasserball.kernels.interface import Mixture
from wasserball.operators import box_step, project_box
from wasserball.operators.oracle import mixture
from wasserball.operators.rounding import make_feasible, per_sample, restore_rows
from wasserball.sums import sample_sum

Schedule = Literal["harmonic", "short", "line-search"]
PRICE_RATE = 0.3
"""How fast the price of a pixel rises with what it holds above its capacity, in units of the steepest pixel."""
PENALTY = 1.0
"""What is added to the price for the present excess alone."""
FITS = 0.01
"""How much above its capacity a pixel may be where a sample is called done."""
ORACLE_ACCURACY = 1e-6
"""Of what the exact oracle's answer gains: it is a direction to go a share of the way, not yet an answer."""
REPAIR_ROUNDS = 20
"""Of the duals of ball and box, for where the attack ends; on training images they do what the full projection does."""
END_ROUNDS = 5
"""The same where nobody judges; by then next to nothing is left to cut off."""
SMALLEST_SCALE = 2.0**-20
"""Of a plan before it is written out: far from where its numbers would be too large, and seldom reached."""
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

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> result = wb.FrankWolfe(eps=0.5, steps=20)(model, images, labels)
    >>> int(result.success.sum()), bool(result.valid.all())
    (4, True)
    """

    gamma: float = 0.0
    """0: the exact oracle; above: the paper's entropic one, on gradients whose largest entry is 1."""
    schedule: Schedule = "harmonic"
    """The share of the way: 2/(t+1); a short step from the duality gap and the curvature seen; or a line search."""
    momentum: float = 0.9
    """How much of the last direction to keep in the next one; 0 is the paper."""
    box: Box = "loop"
    """When the pixel box is kept to: in every step, at the end, or never."""
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
        inside = self.box == "loop"
        flow = Flow.start(trial, trial.survivors(), with_plan=self.box != "off" or self.return_plan, priced=inside)
        if trial.gap is not None:
            trial.gap[flow.samples] = torch.inf
        lookout = trial.lookout()
        for number in range(self.steps):
            slope, fooled = trial.peek(flow.image, flow.samples, behind_clamp=not inside)
            if not inside:
                trial.pass_by(flow.samples, fooled)
            places = lookout.places(slope, fooled)
            if len(places):
                assert flow.plan is not None
                flow.fold(places, trial)
                held = trial.strike(flow.samples, flow.plan, places)
                # What does not fool the model as it would be returned goes on from there.
                slope, fooled = slope.keep(held), fooled.index_fill(0, places, False)[held]
                keep(flow, held)
            if self.gap_tolerance and not isinstance(trial, Drill) and len(flow.samples):
                slope, fooled = self._stop(number, flow, slope, fooled, trial)
            if len(flow.samples) == 0:
                return
            lookout.send(slope, fooled)
            flow.velocity.lerp_(slope.direction, 1 - self.momentum)
            toll = flow.charge(self.bounds[1])
            if start and number == 0:
                wanted = random_directions(flow.mass, self.seed, start)
                gradient = -wanted if toll is None else toll - wanted
            else:
                gradient = flow.descent(toll)
            if self.schedule == "harmonic":
                del slope, toll  # there is no room for what is not needed again
                best = self._oracle(gradient, flow.mass, flow.budget)
                share = torch.full_like(flow.spent, 2 / (number + 2))
            else:
                best = self._oracle(gradient, flow.mass, flow.budget)
                share = self._share(number, flow, slope, best, toll, trial)
                del slope, toll
            # Who is fooled stays there, until that has been judged.
            flow.move(best, share.masked_fill(fooled, 0))
            del gradient, best
            trial.report((number + 1) / self.steps, len(flow.samples))
        if isinstance(trial, Drill):
            trial.take(*self._end(flow))
            return
        slope, _ = trial.slope(flow.image, flow.samples)
        self._settle(flow, slope, torch.arange(len(flow.samples), device=flow.samples.device), trial)

    def _oracle(self, gradient: Tensor, mass: Tensor, budget: Tensor) -> Mixture:
        return mixture(
            gradient, mass, budget, self.cost, gamma=self.gamma, accuracy=ORACLE_ACCURACY, backend=self.backend
        )

    def _stop(self, number: int, flow: "Flow", slope: Slope, fooled: Tensor, trial: Trial) -> tuple[Slope, Tensor]:
        """Settle the samples whose gap is small enough, and go on with the others."""
        gap = self._gap(slope, flow.price, flow.image, flow.mass, flow.budget)
        flow.goal = self.gap_tolerance * gap if number == 0 else flow.goal
        done = gap <= flow.goal
        if self.box == "loop":  # an overflow makes the gap look smaller than it will be without
            done &= flow.image.flatten(1).amax(1) <= (1 + FITS) * self.bounds[1]
        places = done.nonzero().squeeze(1)
        if len(places) == 0:
            return slope, fooled
        self._settle(flow, slope, places, trial)
        held = (~done).nonzero().squeeze(1)
        keep(flow, held)
        return slope.keep(held), fooled[held]

    def _gap(self, slope: Slope, price: Tensor | None, image: Tensor, mass: Tensor, budget: Tensor) -> Tensor:
        """``max <∇loss, s − image>`` over all s in the ball, and where the box counts an upper bound on that in both:
        by weak duality, what overflows may be charged any prices ≥ 0, such as the present ones."""
        rise = slope.direction if price is None else slope.direction - price
        best = mixture(-rise, mass, budget, self.cost, backend=self.backend).image
        within = (rise * best).addcmul_(slope.direction, image, value=-1)
        if price is not None:
            within.add_(price, alpha=self.bounds[1])
        return (slope.scale * sample_sum(within.double())).clamp(min=0)

    def _share(
        self, number: int, flow: "Flow", slope: Slope, best: Mixture, toll: Tensor | None, trial: Trial
    ) -> Tensor:
        """How far to go, as a share of the way to the oracle's answer, for each sample."""
        way = best.image - flow.image
        if self.schedule == "line-search":
            return self._line_search(flow, way, slope.scale, trial)
        # The loss is taken for a parabola, loss + share·rise − share²·bend/2, whose bend the last step showed; what is
        # charged for overflow is one, or bends less.
        rise = slope.scale * sample_sum((slope.direction * way).double())
        charged = stiff = torch.zeros_like(rise)
        if toll is not None:
            charged = slope.scale * sample_sum((toll * way).double())
            stiff = slope.scale * PENALTY / self.bounds[1] * sample_sum(way.double().square())
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
            if flow.price is not None:
                excess = (image / self.bounds[1] - 1).double()
                charged = flow.price * excess + PENALTY / 2 * excess.clamp(min=0).square()
                value -= scale * self.bounds[1] * sample_sum(charged)
            chosen = torch.where(value > best, share, chosen)
            best = torch.maximum(value, best)
        return chosen

    def _end(self, flow: "Flow") -> tuple[Tensor, Tensor]:
        """The images where the flow ended and what they cost, in the box where that counts: nearly, and at once."""
        if flow.plan is None or self.box == "off":
            return flow.image, flow.spent
        flow.plan *= per_sample(flow.scale, flow.plan).to(flow.plan.dtype)
        still = flow.plan, torch.zeros_like(flow.mass), 0.0, flow.mass, flow.budget, self.cost, self.bounds
        near = box_step(*still, rounds=END_ROUNDS, backend=self.backend, out=flow.plan, validate=False)
        return near.image, near.spent

    def _settle(self, flow: "Flow", slope: Slope, places: Tensor, trial: Trial) -> None:
        """Offer where the flow ended at some places, with the box repaired where that is wanted."""
        flow.fold(places, trial)
        for at in trial.pieces(places):
            self._settle_some(flow, slope.keep(at), at, trial)

    def _settle_some(self, flow: "Flow", slope: Slope, at: Tensor, trial: Trial) -> None:
        samples, mass, budget, image = flow.samples[at], flow.mass[at], flow.budget[at], flow.image[at]
        plan = None if flow.plan is None else flow.plan[at]
        if plan is not None and self.box != "off":
            plan = self._repaired(plan, mass, budget)
            _, image, _ = make_feasible(plan, mass, budget, self.cost, self.bounds[1], out=plan)
        assert trial.gap is not None
        trial.gap[samples] = self._gap(slope, None if flow.price is None else flow.price[at], image, mass, budget)
        if plan is None:
            trial.offer_images(samples, image, flow.spent[at])
        else:
            trial.offer(samples, plan, settle=True)

    def _repaired(self, plan: Tensor, mass: Tensor, budget: Tensor) -> Tensor:
        """The projection onto ball and box: of where the prices led in the loop, which needs little, as a step that
        goes nowhere; where that is not enough, and for the paper, in full."""
        todo = torch.arange(len(plan), device=plan.device)
        if self.box == "loop":
            still = plan, torch.zeros_like(mass), 0.0, mass, budget, self.cost, self.bounds
            near = box_step(*still, rounds=REPAIR_ROUNDS, backend=self.backend, validate=False)
            assert near.plan is not None
            todo, answer = (~near.converged).nonzero().squeeze(1), near.plan
        else:
            answer = torch.empty_like(plan)
        if len(todo):
            whole = restore_rows(plan[todo], mass[todo], self.cost).to(plan.dtype)
            found = project_box(whole, mass[todo], budget[todo], self.cost, self.bounds).plan
            assert found is not None
            answer[todo] = found
        return answer


@dataclass
class Flow:
    """Where Frank-Wolfe stands for each sample that it has not fooled yet."""

    samples: Tensor
    mass: Tensor
    budget: Tensor
    image: Tensor
    plan: Tensor | None
    scale: Tensor
    """What the plan is to be multiplied with. To go a share of the way is to shrink all of a plan and to add an answer,
    which has an entry or two in each row: so all of it is written only when somebody wants to see it."""
    spent: Tensor
    velocity: Tensor
    price: Tensor | None
    """Of a unit of mass that arrives at a pixel: the dual of its capacity. None where the box is ignored."""
    goal: Tensor
    loss: Tensor
    rise: Tensor
    share: Tensor
    bend: Tensor

    @classmethod
    def start(cls, trial: Trial, samples: Tensor, *, with_plan: bool, priced: bool) -> "Flow":
        """At the clean images."""
        mass, budget = trial.ball_of(samples)
        zeros = torch.zeros_like(budget)
        return cls(
            samples,
            mass,
            budget,
            mass.clone(),
            trial.cost.identity(mass) if with_plan else None,
            torch.ones_like(budget),
            zeros.clone(),
            torch.zeros_like(mass),
            torch.zeros_like(mass) if priced else None,
            *(zeros for _ in range(5)),
        )

    def charge(self, high: float) -> Tensor | None:
        """Raise the prices of pixels that overflow and lower the others; what a unit now pays, penalty included."""
        if self.price is None:
            return None
        excess = self.image - high
        self.price.add_(excess, alpha=PRICE_RATE / high).clamp_(min=0)
        return torch.add(self.price, excess.clamp_(min=0), alpha=PENALTY / high, out=excess)

    def descent(self, toll: Tensor | None) -> Tensor:
        """What the oracle is to make small: the toll, less the velocity over its largest entry."""
        tiny = torch.finfo(self.velocity.dtype).tiny
        largest = per_sample(largest_entry(self.velocity).clamp(min=tiny), self.velocity)
        return self.velocity / -largest if toll is None else torch.addcdiv(toll, self.velocity, largest, value=-1)

    def move(self, best: Mixture, share: Tensor) -> None:
        """Go a share of the way, in place."""
        self.image.lerp_(best.image, per_sample(share, self.image).to(self.image.dtype))
        self.spent.lerp_(best.spent, share)
        if self.plan is not None:
            left = torch.addcmul(self.scale, self.scale, share, value=-1)
            little = left < SMALLEST_SCALE
            self.scale = left.masked_fill(little, 1)
            best.blend(self.plan, torch.where(little, left, 1.0), share / self.scale)

    def fold(self, places: Tensor, trial: Trial) -> None:
        """Write out the plans at some places."""
        if self.plan is not None:
            for at in trial.pieces(places):
                self.plan[at] *= per_sample(self.scale[at], self.plan).to(self.plan.dtype)
            self.scale[places] = 1
