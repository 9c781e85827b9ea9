"""One epoch: each batch is attacked, and the model takes a step on what the attack made of it."""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from wasserball.attacks import Attack
from wasserball.attacks.attack import seed_generators
from wasserball.train.progress import Watch
from wasserball.train.setting import Setting
from wasserball.zoo import Data


class Tally(NamedTuple):
    """An epoch on the training samples."""

    loss: float
    robust_accuracy: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Trainer:
    """What does not change from step to step."""

    model: nn.Module
    optimizer: Optimizer
    attack: Attack
    data: Data
    setting: Setting
    device: torch.device

    def run(self, epoch: int, watch: Watch) -> Tally:
        """Epoch ``epoch``, from 1. All that is drawn at random depends on it and the seed alone, so that a training
        can be resumed."""
        setting, seen, loss, held = self.setting, 0, 0.0, 0
        with _training(self.model), torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            seed_generators(_mix(setting.seed, epoch), self.device)
            # Batches of nearly one size: a last one of a single sample would break batch norms.
            batches = torch.randperm(setting.samples).tensor_split(setting.steps)
            loader = DataLoader(self.data, batch_sampler=[batch.tolist() for batch in batches])
            for number, (images, labels) in enumerate(loader):
                with naming(f"epoch {epoch}, step {number + 1}"):
                    step = (epoch - 1) * setting.steps + number
                    value, holding = self._step(step, images.to(self.device), labels.to(self.device))
                seen, loss, held = seen + len(labels), loss + value * len(labels), held + holding
                watch.step(epoch, number + 1, loss / seen)
        return Tally(loss / seen, held / seen)

    def radius(self, step: int) -> float:
        """With which a step attacks."""
        return float(self.attack.eps) * self.setting.radius_share(step)

    def _step(self, step: int, images: Tensor, labels: Tensor) -> tuple[float, int]:
        """Attack, then descend; returns the loss and on how many samples the attack failed."""
        if (labels < 0).any():
            raise ValueError(f"data must have labels to train on, {self.data.name} has samples without")
        # The attack sees the model in evaluation mode, and leaves it as it was. It stops at the first image that fools.
        attack = replace(self.attack, eps=self.radius(step), seed=_mix(self.attack.seed, step))
        result = attack(self.model, images, labels)
        loss = adversarial_loss(self.model, images, result.adversarial, labels, self.setting.clean_share)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ValueError(f"the loss is {value}; a smaller rate or a longer warm_up may help")
        if not _finite_gradients(self.model):
            raise ValueError("the gradient of the loss is not finite; a smaller rate or a longer warm_up may help")
        for group in self.optimizer.param_groups:
            group["lr"] = self.setting.rate_at(step)
        self.optimizer.step()
        return value, int((~result.success).sum())


def adversarial_loss(
    model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor, clean_share: float
) -> Tensor:
    """The cross entropy on adversarial images (Madry et al. 2018), ``clean_share`` of it on the clean ones."""
    loss = F.cross_entropy(model(adversarial), labels)
    return loss if clean_share == 0 else (1 - clean_share) * loss + clean_share * F.cross_entropy(model(images), labels)


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Errors say where in the training they came up: also those of an attack, which meets bad logits first."""
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


def _finite_gradients(model: nn.Module) -> bool:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return bool(torch.stack([gradient.isfinite().all() for gradient in gradients]).all())


def _mix(seed: int, number: int) -> int:
    """A seed of 32 bits, which is all that torch's generators look at."""
    return zlib.crc32(f"{seed} {number}".encode())
