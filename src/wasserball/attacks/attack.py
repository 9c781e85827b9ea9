"""What all attacks share: their arguments, the checks of what they are given, and the batches they work in."""

import math
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from wasserball.attacks.bound import BoundAttack
from wasserball.attacks.classifier import Classifier, Model, frozen
from wasserball.attacks.losses import Loss, LossName, resolve_loss
from wasserball.attacks.result import AttackResult, Queries
from wasserball.attacks.trial import Report, Trial, no_report, part_of
from wasserball.checks import check_bounds, check_count, check_floating, check_per_sample, check_range
from wasserball.kernels import Backend
from wasserball.operators.rounding import per_sample
from wasserball.plan import TransportPlan
from wasserball.threat import Cost, LocalCost, check_cost

Box = Literal["loop", "final", "off"]
BATCH_ENTRIES = 2**25
"""Plan entries in a batch whose size is left to us: about a hundred bytes of memory for each."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Attack(ABC):
    """An attack on classifiers inside the Wasserstein ball; call it with a model, images and labels.

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> attack = wb.PGD(eps=torch.tensor([0.1, 0.1, 0.3, 0.3]), steps=10, seed=1)
    >>> attack(model, images, labels).adversarial.shape
    torch.Size([4, 1, 28, 28])
    """

    eps: float | Tensor
    """The radius, relative to the mass of an image; a tensor ``(B,)`` gives each image its own."""
    steps: int = 100
    """Of the search from each starting point."""
    cost: Cost = LocalCost()  # noqa: RUF009
    """What moving mass costs, and how far it may go."""
    bounds: tuple[float, float] = (0, 1)
    """The pixel box: 0, and the value of a white pixel."""
    targeted: bool = False
    """Whether the labels are the answers to provoke, rather than those to avoid."""
    seed: int = 0
    """Of random starts, and of what a stochastic model draws."""
    eot: int = 1
    """Over how many draws of a stochastic model to average logits and gradients."""
    batch_size: int | None = None
    """Images at a time; None: as many as make up 32 million plan entries."""
    progress: bool | Report = False
    """A bar on the terminal, or a callable that is told the share of the work that is done and how many samples of
    the batch at hand hold."""
    backend: Backend | None = None
    """Who computes the steps: "torch", "numba" or "cuda"; None: the fastest that there is for the device."""
    return_plan: bool = False
    """Whether the result keeps the transport plan, the witness of each image."""

    def __post_init__(self) -> None:
        radii = self.eps if isinstance(self.eps, Tensor) and self.eps.ndim else torch.zeros(1)
        check_per_sample("eps", self.eps, radii)
        check_count("steps", self.steps)
        check_count("eot", self.eot)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be an integer from 0 to 2**63 - 1, got {self.seed!r}")
        if self.backend is not None and self.backend not in get_args(Backend):
            raise ValueError(f"backend must be None or one of {', '.join(get_args(Backend))}, got {self.backend!r}")
        check_cost(self.cost)
        check_bounds(self.bounds)

    def __call__(self, model: Model, images: Tensor, labels: Tensor) -> AttackResult:
        """Attack ``model`` on ``images`` in ``bounds``, ``(B, C, H, W)``, with their ``labels``, ``(B,)``.

        The model is asked in evaluation mode, without gradients of its parameters, and left as it was found.
        """
        if not callable(model):
            raise ValueError(f"model must be callable, got {type(model).__name__}")
        clean, labels = self._check_images(images), _check_labels(labels, images)
        radii = check_per_sample("eps", self.eps, clean) if len(clean) else clean.new_zeros(0, dtype=torch.float64)
        size = self.batch_size or max(1, BATCH_ENTRIES // (math.prod(self._largest_cost.plan_shape(clean)[1:]) or 1))
        results: list[AttackResult] = []
        with (
            frozen(model),
            torch.random.fork_rng([clean.device] if clean.is_cuda else []),
            progress_bar(type(self).__name__, len(clean), self.progress) as report,
        ):
            seed_generators(self.seed, clean.device)
            classifier = Classifier(model, images, self.eot)
            for first in range(0, len(clean), size):
                some = slice(first, first + size)
                watch = part_of(report, first / len(clean), min(1.0, (first + size) / len(clean)))
                results.append(self._attack(classifier, clean[some], labels[some], radii[some], watch))
                classifier.check_labels(labels)  # of later batches too: better now than hours later
        return AttackResult.join(results) if results else self._nothing(clean, labels, radii, model)

    def __repr__(self) -> str:
        """As Python would write it, defaults left out, functions by their names: the same from run to run."""
        values = ((item.name, getattr(self, item.name), item.default) for item in fields(self))
        words = (
            f"{name}={getattr(value, '__qualname__', repr(value))}"
            for name, value, usual in values
            if isinstance(value, Tensor) or value != usual
        )
        return f"{type(self).__name__}({', '.join(words)})"

    def bind(self, model: Model) -> BoundAttack:
        """``(images, labels) -> adversarial images``, for code that wants just that."""
        return BoundAttack(self, model)

    @property
    def _largest_cost(self) -> Cost:
        """The cost whose plans are the largest that this attack makes."""
        return self.cost

    @abstractmethod
    def _attack(
        self, classifier: Classifier, images: Tensor, labels: Tensor, eps: Tensor, report: Report
    ) -> AttackResult:
        """Attack one batch."""

    def _result(self, trial: Trial, seconds: float) -> AttackResult:
        return AttackResult(
            **self._setting(trial.images, trial.labels, trial.eps, trial.classifier.model),
            adversarial=trial.adversarial,
            success=trial.success,
            prediction=trial.prediction,
            on_the_way=trial.on_the_way | trial.success,
            distance=trial.distance,
            mass_error=trial.mass_error,
            box_error=trial.box_error,
            valid=trial.valid,
            loss=trial.value,
            margin=trial.margin,
            queries=trial.queries(),
            seconds=seconds,
            plan=None if trial.plan is None else TransportPlan(trial.plan, self.cost),
            gap=trial.gap,
        )

    def _nothing(self, images: Tensor, labels: Tensor, eps: Tensor, model: Model) -> AttackResult:
        """The result for no samples: any empty column will do."""
        return AttackResult(
            **self._setting(images, labels, eps, model),
            adversarial=images,
            success=eps > 0,
            prediction=labels,
            on_the_way=eps > 0,
            distance=eps,
            mass_error=eps,
            box_error=eps,
            valid=eps > 0,
            loss=eps,
            margin=eps,
            queries=Queries(labels, labels),
            seconds=0.0,
        )

    def _setting(self, images: Tensor, labels: Tensor, eps: Tensor, model: Model) -> dict[str, Any]:
        """What of a result was known before the attack."""
        mine = dict(attack=repr(self), cost=self.cost, bounds=self.bounds, targeted=self.targeted)
        return dict(mine, images=images, labels=labels, eps=eps, model=model)

    def _check_images(self, images: object) -> Tensor:
        if not isinstance(images, Tensor):
            raise ValueError(f"images must be a torch.Tensor, got {type(images).__name__}")
        if not images.is_floating_point():
            raise ValueError(f"images must be floating point, in {self.bounds}, got {images.dtype}")
        clean = images.detach().contiguous()
        clean = clean if clean.dtype == torch.float64 else clean.float()
        if clean.ndim == 0 or len(clean):
            check_floating("images", clean)
            self.cost.check_mass("images", clean)
            check_range("images", clean, 0, check_bounds(self.bounds))
        return clean


@dataclass(frozen=True, kw_only=True, repr=False)
class Ascent(Attack):
    """An attack that makes one loss large, from one or several starting points."""

    loss: LossName | Loss = "ce"
    """What is made large: a name, or a callable ``(logits, labels) -> (B,)`` that rises towards success."""
    rival: int = 0
    """Aim at the wrong class that is nearest on the clean image (1), second (2), …; any wrong answer still counts."""
    restarts: int = 1
    """How often to start: first at the clean image, then at random."""
    random_start: bool = False
    """Start at random already the first time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("restarts", self.restarts)
        resolve_loss(self.loss, self.targeted)
        if isinstance(self.rival, bool) or not isinstance(self.rival, int) or self.rival < 0:
            raise ValueError(f"rival must be an integer >= 0, got {self.rival!r}")
        if self.rival and self.targeted:
            raise ValueError("rival must be 0 where targeted is True: the labels are the targets")

    def _attack(
        self, classifier: Classifier, images: Tensor, labels: Tensor, eps: Tensor, report: Report
    ) -> AttackResult:
        """Attack one batch."""
        started = time.perf_counter()
        trial = self._trial(classifier, images, labels, eps, report)
        for restart in range(self.restarts):
            if len(trial.survivors()) == 0:
                break
            trial.report = part_of(report, restart / self.restarts, (restart + 1) / self.restarts)
            self._search(trial, restart + self.random_start)
        report(1.0, int((~trial.success).sum()))
        return self._result(trial, time.perf_counter() - started)

    @abstractmethod
    def _search(self, trial: Trial, start: int) -> None:
        """Look for better images of the trial's survivors, from the ``start``-th point: the clean one, then random."""

    def _trial(self, classifier: Classifier, images: Tensor, labels: Tensor, eps: Tensor, report: Report) -> Trial:
        return Trial(
            classifier=classifier,
            images=images,
            labels=labels,
            eps=eps,
            cost=self.cost,
            bounds=self.bounds,
            loss=resolve_loss(self.loss, self.targeted or self.rival > 0),
            targeted=self.targeted,
            rival=self.rival,
            keep_plans=self.return_plan,
            report=report,
            ignore_box=self._ignores_box,
        )

    @property
    def _ignores_box(self) -> bool:
        return False


def _check_labels(labels: object, images: Tensor) -> Tensor:
    if (
        not isinstance(labels, Tensor)
        or labels.is_floating_point()
        or labels.is_complex()
        or labels.dtype == torch.bool
    ):
        seen = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"labels must be a tensor of integers, got {seen}")
    if tuple(labels.shape) != (len(images),):
        raise ValueError(f"labels must have shape ({len(images)},), got {tuple(labels.shape)}")
    return labels.to(images.device, torch.int64)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that a model on ``device`` draws from, and no others: only these are put back afterwards."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def progress_bar(name: str, samples: int, shown: bool | Report) -> Iterator[Report]:
    """A bar on the terminal with the samples done, the time left and the accuracy so far, where it is wanted."""
    if not shown or callable(shown):
        yield shown or no_report
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task(name, total=samples)
        yield lambda share, holding: bar.update(
            task, completed=share * samples, description=f"{name}, {holding} of this batch hold"
        )


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_momentum(value: float) -> None:
    """A number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"momentum must be a number in [0, 1), got {value!r}")


def random_directions(images: Tensor, seed: int, start: int) -> Tensor:
    """Noise with a largest entry of 1, drawn for each image from its own pixels, so that batch mates do not matter."""
    noise = []
    for image in images.detach().cpu():
        # One number of 32 bits for all three: torch ignores the others of a seed.
        own = zlib.crc32(f"{seed} {start}".encode(), zlib.crc32(image.contiguous().numpy().tobytes()))
        generator = torch.Generator().manual_seed(own)
        noise.append(torch.randn(image.shape, generator=generator, dtype=image.dtype))
    directions = torch.stack(noise)
    return (directions / per_sample(directions.abs().flatten(1).amax(1), directions)).to(images.device)
