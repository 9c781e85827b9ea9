"""The models and images that the paper attacks, as far as they are to be had, with its radii and step sizes."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments._lab import ROOT, Setting
from wasserball import zoo

KEPT = ROOT / "experiments" / "weights"
"""Weights that were trained here, in half precision: what is attacked is just these."""


@dataclass(frozen=True)
class Victim:
    """A model, its data, and what the paper tries on it. Paths are within ``--data``."""

    network: str
    """By its name in the zoo."""
    weights: str
    """Nothing where the zoo has them."""
    data: str
    eps: tuple[float, ...]
    step: float
    """Of the paper's PGD."""
    gammas: tuple[float, ...]
    """Of projected Sinkhorn; with the last of them the paper met numerical issues."""

    small: bool = True
    """Whether images and plans take little room."""
    pieces: int = 10
    """In how many rows a thousand images are measured where an attack is slow: what is stopped loses no more."""
    made_by: str = ""
    """The command, where one has to make the weights first."""

    @property
    def model(self) -> str:
        """The name of the weights."""
        return Path(self.weights or self.network).stem

    def find(self, setting: Setting) -> Path | None:
        """The file of the weights, if there is one: among the data, or beside the results."""
        places = [setting.options.data / self.weights, KEPT / Path(self.weights).name]
        return next((path for path in places if path.exists()), None)

    def load(self, setting: Setting, first: int, last: int) -> tuple[nn.Module, Tensor, Tensor]:
        """The model, and some of the test images with their labels."""
        weights = (self.find(setting) or setting.data(self.weights)) if self.weights else None
        model = zoo.load_model(self.network, weights=weights).to(setting.device)
        # On a CPU large images take a quarter less time so, small ones as long as before; a GPU's matrix units want it.
        if not self.small or setting.device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # Gradients may be coarser where that is several times faster, if a judge sees to the answers.
        torch.backends.cudnn.allow_tf32 = coarse = self.data != "mnist"
        model = Judge(model) if coarse else model
        images, labels = zoo.load_data(setting.data(self.data), split="test").batch(first, last)
        return model, images.to(setting.device), labels.to(setting.device)


class Judge(nn.Module):
    """A model whose convolutions, on a GPU, see 10 bits of a number where a gradient is wanted and all of it where none
    is, which is how attacks ask for the answers that they judge by."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        usual = torch.backends.cudnn.allow_tf32
        try:
            torch.backends.cudnn.allow_tf32 = usual and torch.is_grad_enabled()
            logits: Tensor = self.model(images)
        finally:
            torch.backends.cudnn.allow_tf32 = usual
        return logits


MNIST = Victim(
    network="mnist",
    weights="checkpoints/mnist_standard.safetensors",
    data="mnist",
    eps=(0.1, 0.2, 0.3, 0.4, 0.5),
    step=0.1,
    gammas=(1 / 1000, 1 / 1500, 1 / 2000),
)
CIFAR = Victim(
    network="cifar-resnet20",
    weights="checkpoints/cifar10_resnet20.safetensors",
    data="cifar10",
    eps=(0.001, 0.002, 0.003, 0.004, 0.005),
    step=0.01,
    gammas=(1 / 3000, 1 / 10_000, 1 / 20_000),
)
IMAGENET = Victim(
    network="resnet50-keras",
    weights="checkpoints/resnet50.safetensors",
    data="imagenet",
    eps=(0.001, 0.002, 0.003, 0.004, 0.005),
    step=0.01,
    gammas=(1 / 100_000, 1 / 200_000, 1 / 1_000_000),
    small=False,
    pieces=100,
)
MNIST_FRANK_WOLFE = replace(MNIST, weights="checkpoints/mnist_frankwolfe_trained.safetensors")
MNIST_SINKHORN = replace(MNIST, weights="checkpoints/mnist_sinkhorn_trained.safetensors")
MNIST_ROBUST = replace(MNIST, network="mnist-robust", weights="")
"""Made by ``wasserball train --recipe mnist``, and bundled."""
CIFAR_RESNET18 = replace(
    CIFAR,
    network="cifar-resnet18",
    weights="checkpoints/cifar10_resnet18.safetensors",
    made_by="wasserball train --recipe cifar10-standard",
    pieces=20,
)
CIFAR_ROBUST = replace(
    CIFAR,
    network="cifar-resnet18-blur",
    weights="checkpoints/cifar10_robust.safetensors",
    made_by="wasserball train --recipe cifar10",
    pieces=20,
)
VICTIMS = {"mnist": MNIST, "cifar": CIFAR, "imagenet": IMAGENET}
