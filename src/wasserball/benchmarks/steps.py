"""One step of a whole attack beside the model's own forward and backward pass, and beside the paper's plain step."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wasserball.operators as ops
from wasserball import zoo
from wasserball.attacks import PGD, Attack, AttackResult, FrankWolfe
from wasserball.benchmarks.meter import Meter
from wasserball.benchmarks.problem import random_images
from wasserball.threat import LocalCost, WassersteinBall

UNREACHABLE = -1e3
"""The logit of a class that no image is ever taken for."""
STEPS = 20
QUICK_STEPS = 4
ROUNDS = 3
PLAIN_STEPS = 3
SKIPPED = 2
"""Steps of an attack at its start that are not counted: the first one also looks for a step size."""
MEMORY_STEPS = 3


@dataclass(frozen=True)
class StepRow:
    """One step of an attack on one model."""

    model: str
    batch: int
    attack: str
    milliseconds: float
    model_milliseconds: float
    """The model's own forward and backward pass."""
    over_model: float
    plain_milliseconds: float
    """The same pass and the paper's algorithm without the box, written plainly."""
    ratio: float
    plan_buffers: float
    """Peak memory of the attack beyond that of the model's pass, in plans of the batch."""
    image_buffers: float
    fooled: int
    """Samples that did not stay until the end, which would make later steps cheaper: none, if all is well."""


class Enough(Exception):
    """All that was to be measured has been."""


class Watched(nn.Module):
    """A model that notes when it is called, with one more class that no image can be taken for.

    An attack that aims there keeps all its samples to the end, whatever the radius.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.model = model.to(device).eval().requires_grad_(False)
        self.device = device
        self.marks: list[float | torch.cuda.Event] = []
        self.last = math.inf
        self.shown = 0
        """How many images it was last called with."""

    def forward(self, images: Tensor) -> Tensor:
        self.shown = len(images)
        self.mark()
        return F.pad(self.model(images), (0, 1), value=UNREACHABLE)

    def mark(self) -> None:
        """Note the time: on a GPU that of its own clock, without waiting for it."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self.marks.append(event)
        else:
            self.marks.append(perf_counter())
        if len(self.marks) > self.last:
            raise Enough

    def pace(self, work: Callable[[], object], first: int, last: int) -> float:
        """Milliseconds from one mark to the next, on average from the ``first`` to the ``last``; what work would do
        after that is not waited for."""
        self.marks.clear()
        self.last = last
        with suppress(Enough):
            work()
        self.last = math.inf
        start, end = self.marks[first], self.marks[last]
        if isinstance(start, float) and isinstance(end, float):
            return 1e3 * (end - start) / (last - first)
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        end.synchronize()
        return float(start.elapsed_time(end)) / (last - first)


@dataclass(frozen=True)
class Victim:
    """A model, its images, and the settings of the paper for them."""

    name: str
    model: Watched
    images: Tensor
    labels: Tensor
    """The unreachable class."""
    eps: float
    step: float
    cost: LocalCost

    @classmethod
    def of(cls, name: str, model: nn.Module, images: Tensor, eps: float, step: float, device: torch.device) -> "Victim":
        """All of it on the device."""
        watched, images = Watched(model, device), images.to(device)
        with torch.no_grad():
            labels = torch.full((len(images),), watched(images[:1]).shape[1] - 1, device=device)
        return cls(name, watched, images, labels, eps, step, LocalCost(5))

    @property
    def budget(self) -> Tensor:
        """Of the ball around each image."""
        return WassersteinBall(self.images, self.eps, self.cost).budget

    def gradient(self, image: Tensor) -> Tensor:
        """The model's own forward and backward pass."""
        leaf = image.detach().requires_grad_()
        loss = F.cross_entropy(self.model(leaf), self.labels, reduction="sum")
        return torch.autograd.grad(loss, leaf)[0]

    def passes(self, count: int) -> None:
        """The model alone, as often as an attack with so many steps."""
        for _ in range(count):
            self.gradient(self.images)
        self.model.mark()

    def downhill(self, image: Tensor) -> Tensor:
        """The normalised gradient of what the attack makes small, where the image is clamped to the box."""
        slope = self.gradient(image.clamp(0, 1))
        return slope / slope.abs().amax((1, 2, 3), keepdim=True).clamp(min=torch.finfo(slope.dtype).tiny)

    def plain_pgd(self) -> None:
        """The paper's projected gradient without the box."""
        plan, image, budget = self.cost.identity(self.images), self.images, self.budget
        for _ in range(PLAIN_STEPS):
            target = plan - self.step * self.cost.gather(self.downhill(image))
            found = ops.bisection_projection(target, self.images, budget, self.cost)
            assert found.plan is not None
            plan, image = found.plan, found.image
        self.model.mark()

    def plain_frank_wolfe(self) -> None:
        """The paper's Frank-Wolfe without the box."""
        plan, image, budget = self.cost.identity(self.images), self.images, self.budget
        for number in range(PLAIN_STEPS):
            found = ops.entropic_bisection_oracle(self.downhill(image), self.images, budget, self.cost)
            assert found.plan is not None
            plan = plan + 2 / (number + 2) * (found.plan - plan)
            image = self.cost.scatter(plan)
        self.model.mark()

    def attack(self, name: str, steps: int) -> AttackResult:
        """One of ours on the whole batch at once, with its defaults but for the radius."""
        make = ATTACKS[name]
        attack = make(eps=self.eps, steps=steps, cost=self.cost, targeted=True, batch_size=len(self.images))
        return attack(self.model, self.images, self.labels)


ATTACKS: dict[str, Callable[..., Attack]] = {
    "PGD": PGD,
    'PGD, box="off"': partial(PGD, box="off"),
    "FrankWolfe": FrankWolfe,
    'FrankWolfe, box="off"': partial(FrankWolfe, box="off"),
}


def victims(device: torch.device, *, quick: bool = False) -> Iterator[Victim]:
    """The bundled model on bundled digits, and on a GPU a ResNet-50 with random weights on random pictures."""
    digits, _ = zoo.load_sample()
    batch = 4 if quick else 1000 if device.type == "cuda" else 256
    repeated = digits.repeat(-(-batch // len(digits)), 1, 1, 1)[:batch]
    yield Victim.of("mnist-standard", zoo.load_model("mnist-standard"), repeated, 0.1, 0.1, device)
    if device.type == "cuda" and not quick:
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            network = zoo.resnet50()
        yield Victim.of("ResNet-50", network, random_images((50, 3, 224, 224), generator), 0.001, 0.01, device)


def measure_steps(meter: Meter, say: Callable[[str], None], *, quick: bool = False) -> Iterator[StepRow]:
    """All attacks on all models, row by row."""
    for victim in victims(meter.device, quick=quick):
        steps, rounds = (QUICK_STEPS, 1) if quick else (STEPS, ROUNDS)
        title = f"{victim.name} ×{len(victim.images)}"
        say(f"{title}: peak memory")
        peaks = _peaks(victim, meter)
        left: dict[str, int] = {}
        seen = []
        for number in range(rounds):
            say(f"{title}: steps of the attacks, of the paper's and of the model alone; round {number + 1} of {rounds}")
            seen.append(_paces(victim, steps, left))
        took = {name: median(paces[name] for paces in seen) for name in seen[0]}
        image_bytes = victim.images.numel() * victim.images.element_size()
        for name in ATTACKS:
            plain = took["plain FrankWolfe" if name.startswith("FrankWolfe") else "plain PGD"]
            yield StepRow(
                model=victim.name,
                batch=len(victim.images),
                attack=name,
                milliseconds=took[name],
                model_milliseconds=took["model"],
                over_model=took[name] / took["model"],
                plain_milliseconds=plain,
                ratio=plain / took[name],
                plan_buffers=peaks[name] / (image_bytes * victim.cost.window**2),
                image_buffers=peaks[name] / image_bytes,
                fooled=len(victim.images) - left[name],
            )


def _peaks(victim: Victim, meter: Meter) -> dict[str, int]:
    """The bytes that each attack, complete but short, needs beyond the model's own."""
    victim.passes(1)  # what the device keeps from now on, such as room for its libraries, is nobody's
    own = meter.peak_bytes(partial(victim.passes, 1))
    return {name: meter.peak_bytes(partial(victim.attack, name, MEMORY_STEPS)) - own for name in ATTACKS}


def _paces(victim: Victim, steps: int, left: dict[str, int]) -> dict[str, float]:
    """The time of a step of each, one after the other; ``left`` becomes the number of samples that an attack still
    had in the end."""
    pace = victim.model.pace
    took = {
        "model": pace(partial(victim.passes, steps), SKIPPED, steps),
        "plain PGD": pace(victim.plain_pgd, 1, PLAIN_STEPS),
        "plain FrankWolfe": pace(victim.plain_frank_wolfe, 1, PLAIN_STEPS),
    }
    for name in ATTACKS:
        # The first mark of an attack is for its look at the clean images.
        took[name] = pace(partial(victim.attack, name, steps), 1 + SKIPPED, steps)
        left[name] = victim.model.shown
    return took
