"""One epoch: each batch is attacked, and the model takes a step on what the attack made of it."""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from wasserball.attacks.attack import Attack, seed_generators
from wasserball.attacks.classifier import frozen
from wasserball.attacks.inner import inner_maximum
from wasserball.evaluate.workers import Workers
from wasserball.train.augment import AUGMENTATIONS
from wasserball.train.average import Average
from wasserball.train.memory import Memory
from wasserball.train.muon import Muon
from wasserball.train.objective import Cast, objective
from wasserball.train.progress import Watch
from wasserball.train.radius import OwnRadii
from wasserball.train.recipe import Recipe
from wasserball.train.replay import Replay
from wasserball.train.samples import Samples
from wasserball.train.setting import Setting

LOOK = 20
"""Steps after which a GPU is waited for, to see how the loss is doing; a CPU is asked after each."""
DIVERGED = 10.0
"""A loss so many times that of a model that says nothing."""
MOMENTUM = 0.9


class Tally(NamedTuple):
    """An epoch on the training samples."""

    loss: float
    robust_accuracy: float


class Batch(NamedTuple):
    """Some training samples."""

    places: Tensor
    """Which of all."""
    images: Tensor
    labels: Tensor
    drawn: Tensor
    """Random numbers for each."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trainer:
    """What does not change from step to step."""

    model: Cast
    """As it is in training; whom the attack attacks."""
    learner: nn.Module
    """The same, or what makes it learn from the batches of all processes."""
    optimizer: Optimizer
    average: Average | None
    radii: OwnRadii | None
    memory: Memory | None = None
    recipe: Recipe
    setting: Setting
    samples: Samples
    workers: Workers = field(default_factory=Workers)

    @cached_property
    def _replay(self) -> Replay:
        return Replay(self.recipe.attack, self.model)

    def run(self, epoch: int, watch: Watch) -> Tally:
        """Epoch ``epoch``, from 1. All that is drawn at random depends on it and the seed alone, so that a training
        can be resumed."""
        device, steps = self.samples.device, self.setting.steps
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        with _training(self.learner), torch.random.fork_rng([device] if device.type == "cuda" else []):
            seed_generators(_mix(self.recipe.seed, epoch), device)
            # Batches of nearly one size: a last one of a single sample would break batch norms.
            whole = torch.randperm(len(self.samples)).tensor_split(steps)
            numbers = 1 + AUGMENTATIONS[self.recipe.augment].numbers
            chances = [torch.rand(len(places), numbers) for places in whole]
            mine = [_part(len(places), self.workers) for places in whole]
            batches = self.samples.batches([places[part] for places, part in zip(whole, mine, strict=True)])
            looked = 0
            for number, (images, labels) in enumerate(batches):
                step = (epoch - 1) * steps + number
                part = mine[number]
                batch = Batch(whole[number][part].to(device), images, labels, chances[number][part].to(device))
                sums += self._step(step, len(whole[number]), batch)
                if device.type == "cpu" or (number + 1) % LOOK == 0 or number + 1 == steps:
                    with naming(_steps(epoch, looked, number)):
                        loss, _, seen = self._look(sums)
                    looked = number + 1
                    watch.step(epoch, looked, loss / seen)
            if self.radii is not None:
                self.radii.share(self.workers)
            if self.memory is not None:
                self.memory.share(self.workers)
            loss, held, seen = self.workers.sum(sums).tolist()
        return Tally(loss / seen, held / seen)

    def radius(self, step: int) -> float:
        """The largest with which a step attacks."""
        return self.recipe.eps * self.setting.radius_share(step)

    def _step(self, step: int, count: int, batch: Batch) -> Tensor:
        """Attack, then descend; returns sums of the loss, of those that held, and of one for each sample. ``count`` is
        the size of the batch over all processes, of which these samples are a part."""
        labels, images = batch.labels, AUGMENTATIONS[self.recipe.augment].apply(batch.images, batch.drawn[:, 1:])
        if self.model.leak is not None:
            self.model.leak.slope.fill_(self.setting.leak_at(step))
        # The attack sees the model in evaluation mode, and leaves it as it was.
        adversarial = self._attacked(step, batch._replace(images=images))
        recipe = self.recipe
        if recipe.bounded_late:
            recipe = replace(recipe, bounded=self.setting.bounded_at(step))
        losses, logits = objective(self.learner, images, adversarial, labels, recipe)
        if self.radii is not None and recipe.focus:
            losses = losses * self.radii.weights(batch.places, recipe.focus, self.setting.late(step)).to(losses.dtype)
        self.optimizer.zero_grad()
        # Processes average their gradients.
        torch.autograd.backward(losses.sum() * (self.workers.count / count))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = self.setting.rate_at(step)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(step)
        held = logits.detach().argmax(1) == labels
        if self.radii is not None:
            self.radii.learn(batch.places, held)
        loss = losses.detach().double().sum() + 0 * norm  # which is NaN if the gradient is not finite
        return torch.stack([loss, held.double().sum(), torch.ones_like(loss) * len(labels)])

    def _attacked(self, step: int, batch: Batch) -> Tensor:
        places, images, labels, drawn = batch
        recipe, share = self.recipe, self.setting.radius_share(step)
        if recipe.eps * share == 0 and self.memory is None:  # which wants to hear of each sample
            return images
        attack = replace(recipe.attack, seed=_mix(recipe.attack.seed, step))
        if recipe.radius == "grown":
            return self._grown(attack, share, images, labels)
        radii = torch.full_like(drawn[:, 0], recipe.eps, dtype=torch.float64)
        if recipe.radius == "random":
            radii = recipe.low + (recipe.eps - recipe.low) * drawn[:, 0].double()
        elif self.radii is not None:
            radii = self.radii.of(places)
        lead = None
        if self.memory is not None:
            # Each epoch attacks all samples: after the first one all are known.
            lead = self.memory.recall(places, known=step >= self.setting.steps)
        if recipe.replay and images.is_cuda:
            adversarial = self._replay(images, labels, radii * share, lead)
        else:
            adversarial = inner_maximum(attack, self.model, images, labels, radii * share, lead)
        if self.memory is not None and lead is not None:
            self.memory.keep(places, lead)
        return adversarial

    def _grown(self, attack: Attack, share: float, images: Tensor, labels: Tensor) -> Tensor:
        """Images at the smallest of some radii, each so many times the last, at which they fool the model, or at the
        largest."""
        recipe = self.recipe
        attack = replace(attack, steps=max(1, attack.steps // recipe.stages))
        adversarial, holds = images, torch.ones_like(labels, dtype=torch.bool)
        for stage in range(recipe.stages):
            radius = recipe.low * (recipe.eps / recipe.low) ** (stage / max(1, recipe.stages - 1))
            left = holds.nonzero().squeeze(1)
            if len(left) == 0:
                break
            radii = torch.full((len(left),), radius * share, dtype=torch.float64, device=images.device)
            found = inner_maximum(attack, self.model, images[left], labels[left], radii)
            adversarial = adversarial.index_copy(0, left, found.to(images.dtype))
            with frozen(self.model), torch.no_grad():
                holds[left] = self.model(found).argmax(1) == labels[left]
        return adversarial

    def _look(self, sums: Tensor) -> tuple[float, float, float]:
        """What there is so far, if it is any good."""
        loss, held, seen = sums.tolist()
        if not math.isfinite(loss):
            raise ValueError("the loss or its gradient is not finite; a smaller rate or a longer warm_up may help")
        if loss / seen > DIVERGED * math.log(self.samples.classes) * (1 + self.recipe.trades):
            raise ValueError(
                f"the training diverges, its loss is {loss / seen:.3g}; a smaller rate, a longer warm_up or clip may "
                "help"
            )
        return loss, held, seen


def make_optimizer(parameters: list[nn.Parameter], recipe: Recipe) -> Optimizer:
    """As the recipe says; the rate is set in each step."""
    if recipe.optimizer == "adam":
        fused = parameters[0].is_cuda or None
        return Adam(parameters, lr=recipe.rate, weight_decay=recipe.weight_decay, fused=fused)
    if recipe.optimizer == "muon":
        return Muon(parameters, lr=recipe.rate, weight_decay=recipe.weight_decay)
    return SGD(parameters, lr=recipe.rate, momentum=MOMENTUM, nesterov=True, weight_decay=recipe.weight_decay)


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Errors say where in the training they came up."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Training mode inside; outside all modules are in the mode that they were in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _part(count: int, workers: Workers) -> slice:
    """Which of a batch are this process's."""
    return slice(count * workers.rank // workers.count, count * (workers.rank + 1) // workers.count)


def _steps(epoch: int, first: int, last: int) -> str:
    steps = f"step {last + 1}" if first == last else f"steps {first + 1} to {last + 1}"
    return f"epoch {epoch}, {steps}"


def _mix(seed: int, number: int) -> int:
    """A seed of 32 bits, which is all that torch's generators look at."""
    return zlib.crc32(f"{seed} {number}".encode())
