"""A batch under attack: what may be tried, what was found so far, and a judge who trusts nobody."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from wasserball.attacks.classifier import Classifier, Slope
from wasserball.attacks.losses import Loss, evaluate, margin
from wasserball.attacks.result import Queries, is_fooled
from wasserball.operators.rounding import make_feasible
from wasserball.operators.solution import chunks
from wasserball.threat import Cost, WassersteinBall
from wasserball.verify import verify

PIECES = 32
"""Of a batch, at least, in which proposals are judged."""
Report = Callable[[float, int], None]
"""Told the share of the work that is done and how many samples hold so far."""


@dataclass(eq=False)
class Trial:
    """The best image so far for each of ``B`` samples, judged on exactly this image and certified.

    Solvers propose plans (:meth:`offer`); a proposal is made strictly feasible, shown to the model as it would be
    returned, and checked in float64 by code that does not trust the solver. What fails is dropped.
    """

    classifier: Classifier
    images: Tensor
    labels: Tensor
    eps: Tensor
    cost: Cost
    bounds: tuple[float, float]
    loss: Loss
    targeted: bool
    keep_plans: bool
    report: Report
    ignore_box: bool = False
    """Whether images may leave the box; their certificate then says that they are not valid."""
    rival: int = 0
    budget: Tensor = field(init=False)
    total: Tensor = field(init=False)

    def __post_init__(self) -> None:
        ball = WassersteinBall(self.images, self.eps, self.cost, self.bounds)
        self.budget, self.total = ball.budget, ball.total
        batch, device = len(self.images), self.images.device
        self.gap: Tensor | None = None
        self._forward = torch.zeros(batch, dtype=torch.int64, device=device)
        self._backward = torch.zeros_like(self._forward)
        # A step asks about the same samples as the last one, mostly: what that takes is not done anew each time.
        self._asked = torch.arange(batch, device=device)
        self._times = [0, 0]
        self._labels: Tensor | None = None
        self.adversarial = self.images.clone()
        self.plan = self.cost.identity(self.images) if self.keep_plans else None
        self.distance = torch.zeros_like(self.budget)
        self.mass_error, self.box_error = torch.zeros_like(self.budget), torch.zeros_like(self.budget)
        self.valid = torch.ones(batch, dtype=torch.bool, device=device)
        everyone = torch.arange(batch, device=device)
        logits = self.logits(self.images, everyone)
        self.classifier.check_labels(self.labels)
        self._wrong = logits.scatter(1, self.labels.unsqueeze(1), -torch.inf).argsort(1, descending=True)[:, :-1]
        self.aim(self.loss, self.rival)
        self.success = is_fooled(logits, self.labels, self.targeted)
        self.on_the_way = self.success.clone()
        self.prediction = logits.argmax(1)
        self.margin = margin(logits, self.labels, targeted=self.targeted).double()
        self.value = self._loss(logits, everyone)

    def aim(self, loss: Loss, rival: int) -> None:
        """What to make large from now on, and for which class: the label, or the ``rival``-th nearest wrong one."""
        self.loss = loss
        self.aims = self._wrong[:, min(rival, self._wrong.shape[1]) - 1] if rival else self.labels
        self._labels = None

    def survivors(self) -> Tensor:
        """The samples that could still be fooled; without mass or budget an image can only stay what it is."""
        return (~self.success & (self.budget > 0)).nonzero().squeeze(1)

    def lookout(self) -> "Lookout":
        """Who watches a search for samples that are fooled."""
        return Lookout(self)

    def ball_of(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """The clean images and the budgets of ``samples``, without a copy where these are all."""
        if len(samples) == len(self.images):
            return self.images, self.budget
        return self.images[samples], self.budget[samples]

    def logits(self, images: Tensor, samples: Tensor) -> Tensor:
        """What the model says of ``images`` in the place of ``samples``."""
        self._ask(samples, forward=1, backward=0)
        return self.classifier.logits(images)

    def slope(self, images: Tensor, samples: Tensor, *, behind_clamp: bool = False) -> tuple[Slope, Tensor]:
        """The loss and its gradient at ``images`` in the place of ``samples``, and the places of those fooled there."""
        slope, fooled = self.peek(images, samples, behind_clamp=behind_clamp)
        places = Lookout(self, wait=True).places(slope, fooled)
        self.on_the_way[samples[places]] = True
        return slope, places

    def peek(self, images: Tensor, samples: Tensor, *, behind_clamp: bool = False) -> tuple[Slope, Tensor]:
        """:meth:`slope` without a look at what came out: whether each sample is fooled is left on its device.

        The model is shown images clamped to the box. With ``behind_clamp`` this is part of the loss, as for the paper's
        authors: it does not rise where a pixel is above the box already.
        """
        self._ask(samples, forward=1, backward=1)
        if self._labels is None:
            self._labels, self._aims = self.labels[samples], self.aims[samples]
        slope = self.classifier.slope(images, self._aims, self.loss, high=self.bounds[1])
        fooled = is_fooled(slope.logits, self._labels, self.targeted)
        return slope.only(images <= self.bounds[1]) if behind_clamp else slope, fooled

    def pass_by(self, samples: Tensor, fooled: Tensor) -> None:
        """Note who is fooled and forget it again, as the paper's attacks do: only their last images count."""
        self.on_the_way[samples] |= fooled
        fooled.fill_(False)

    def fooled(self, logits: Tensor, samples: Tensor) -> Tensor:
        """Whether the answers for ``samples`` are what the attack wants."""
        return is_fooled(logits, self.labels[samples], self.targeted)

    def losses(self, images: Tensor, samples: Tensor) -> Tensor:
        """The loss of ``images`` in the place of ``samples``."""
        return self._loss(self.logits(images, samples), samples)

    def pieces(self, places: Tensor) -> Iterator[Tensor]:
        """``places``, so many at a time that there is room for a few plans of theirs in float64: beside those of the
        batch they shall not count for much."""
        entries = self.cost.plan_shape(self.images[:1])
        few = max(8, len(self.images) // PIECES)
        for some in chunks(len(places), 2 * math.prod(entries), places.device):
            yield from torch.split(places[some], few)

    def offer(self, samples: Tensor, plan: Tensor, places: Tensor | None = None, *, settle: bool = False) -> Tensor:
        """Propose plans, those at some ``places``, and see which of them fool the model; with ``settle`` the best of
        them count all the same."""
        everyone = torch.arange(len(samples), device=samples.device)
        fooled = [
            self._propose(samples[at], plan[at], settle) for at in self.pieces(everyone if places is None else places)
        ]
        return torch.cat(fooled) if fooled else torch.zeros_like(samples[:0], dtype=torch.bool)

    def strike(self, samples: Tensor, plan: Tensor, places: Tensor) -> Tensor:
        """Propose the plans at some ``places``; returns the places of all ``samples`` that hold."""
        self.on_the_way[samples[places]] = True
        holds = torch.ones_like(samples, dtype=torch.bool)
        holds[places] = ~self.offer(samples, plan, places)
        return holds.nonzero().squeeze(1)

    def offer_images(self, samples: Tensor, image: Tensor, spent: Tensor) -> Tensor:
        """Propose images without a plan, at the price that their maker accounts for: nothing certifies them."""
        return self._judge(samples, image, spent, None, settle=True)

    def _propose(self, samples: Tensor, plan: Tensor, settle: bool) -> Tensor:
        """Propose plans, which are overwritten."""
        high = None if self.ignore_box else self.bounds[1]
        _, image, spent = make_feasible(plan, self.images[samples], self.budget[samples], self.cost, high, out=plan)
        return self._judge(samples, image, spent, plan, settle)

    def _judge(self, samples: Tensor, image: Tensor, spent: Tensor, plan: Tensor | None, settle: bool) -> Tensor:
        logits = self.logits(image, samples)
        fooled = self.fooled(logits, samples)
        value = self._loss(logits, samples)
        better = fooled | (~self.success[samples] & (value > self.value[samples])) if settle else fooled
        if not better.any():
            return fooled & False
        chosen = better.nonzero().squeeze(1)
        index = samples[chosen]
        if plan is None:
            distance = torch.where(self.total[index] > 0, spent[chosen] / self.total[index], 0.0)
            valid = torch.zeros_like(self.valid[index])
            mass_error = box_error = torch.full_like(distance, torch.nan)
        else:
            certificate = verify(
                self.images[index],
                image[chosen],
                eps=self.eps[index],
                plan=plan[chosen],
                cost=self.cost,
                bounds=self.bounds,
            )
            distance, valid = certificate.distance, certificate.valid
            mass_error, box_error = certificate.mass_error, certificate.box_error
            if not self.ignore_box:
                columns = (chosen, index, distance, mass_error, box_error, valid)
                chosen, index, distance, mass_error, box_error, valid = (column[valid] for column in columns)
        self.adversarial[index] = image[chosen]
        if self.plan is not None and plan is not None:
            self.plan[index] = plan[chosen]
        self.success[index], self.value[index] = fooled[chosen], value[chosen]
        self.prediction[index] = logits[chosen].argmax(1)
        self.margin[index] = margin(logits[chosen], self.labels[index], targeted=self.targeted).double()
        self.distance[index], self.valid[index] = distance, valid
        self.mass_error[index], self.box_error[index] = mass_error, box_error
        return self.success[samples] & fooled

    def queries(self) -> Queries:
        """How often the model was asked about each sample."""
        self._ask(self._asked[:0], forward=0, backward=0)
        return Queries(self._forward, self._backward)

    def _ask(self, samples: Tensor, *, forward: int, backward: int) -> None:
        if samples is not self._asked:
            for queries, times in zip((self._forward, self._backward), self._times, strict=True):
                queries.index_add_(0, self._asked, torch.full_like(self._asked, times * self.classifier.draws))
            self._asked, self._times, self._labels = samples, [0, 0], None
        self._times = [self._times[0] + forward, self._times[1] + backward]

    def _loss(self, logits: Tensor, samples: Tensor) -> Tensor:
        with torch.no_grad():
            return evaluate(self.loss, logits.double(), self.aims[samples]).double()


class Lookout:
    """Finds out which samples of a batch need the host: those fooled, and those that something is wrong with.

    On a GPU it knows of each step only when the next one is under way: had the host to wait for the step itself, the
    GPU would have to wait for its next orders. With ``wait`` it does all the same.
    """

    def __init__(self, trial: Trial, *, wait: bool = False) -> None:
        self.trial = trial
        self.late = trial.images.is_cuda and not wait
        self._sent: tuple[Slope, Tensor, torch.cuda.Event] | None = None

    def places(self, slope: Slope, fooled: Tensor) -> Tensor:
        """The places of those fooled in this step or, where news come late, in the one that was last sent."""
        if not self.late:
            return self._places(slope, slope.trouble | fooled)
        if self._sent is None:
            return torch.zeros(0, dtype=torch.int64, device=fooled.device)
        sent, noted, arrived = self._sent
        arrived.synchronize()
        return self._places(sent, noted).to(fooled.device)

    def send(self, slope: Slope, fooled: Tensor) -> None:
        """The news of this step, for the next."""
        if self.late:
            noted = (slope.trouble | fooled).to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(torch.cuda.current_stream(fooled.device))
            self._sent = slope._replace(direction=slope.loss), noted, arrived

    def _places(self, slope: Slope, noted: Tensor) -> Tensor:
        places = noted.nonzero().squeeze(1)
        if len(places):
            self.trial.classifier.check(slope)
        return places


def no_report(_share: float, _holding: int) -> None:
    """The report of a trial that nobody watches."""


def part_of(report: Report, first: float, last: float) -> Report:
    """The report of a piece of the work, which takes it from the share ``first`` to ``last``."""
    return partial(_scaled, report, first, last)


def _scaled(report: Report, first: float, last: float, share: float, holding: int) -> None:
    report(first + (last - first) * share, holding)
