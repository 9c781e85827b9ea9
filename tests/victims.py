"""Small models to attack, and images for them: seeded, so that a test meets the same ones every time."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from wasserball.sums import sample_sum

SIDE, CLASSES = 6, 4


def grey_images(count: int, side: int = SIDE, channels: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Noise with some black and some white pixels."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.rand(count, channels, side, side, generator=generator, dtype=torch.float64)
    return (1.6 * noise - 0.3).clamp(0, 1).to(dtype)


def network(features: int = SIDE * SIDE, classes: int = CLASSES, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A perceptron with random weights, steep enough that little mass has to move."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, classes)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 2 / parameter.shape[-1] ** 0.5)
    return model


def convolutions(classes: int = CLASSES) -> nn.Sequential:
    """A network with random weights for images of any size."""
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, classes),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 1.5 / max(1, parameter[0].numel()) ** 0.5)
    return model


class OneByOne(nn.Module):
    """A model that is shown each image on its own, so that no bit of its answer depends on batch mates."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each image."""
        return torch.cat([self.model(image.clone().unsqueeze(0)) for image in images])


class Noisy(nn.Module):
    """A model whose logits are a little different each time."""

    def __init__(self, model: nn.Module, strength: float = 0.3) -> None:
        super().__init__()
        self.model, self.strength = model, strength

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each image, with noise from torch's own generator."""
        noisy = images * (1 + self.strength * torch.randn_like(images))
        logits: Tensor = self.model(noisy)
        return logits


def predictions(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """What the model, as it is, says of the images."""
    with torch.no_grad():
        return model(images).argmax(1)


def linear(weight: Tensor, bias: float) -> Callable[[Tensor], Tensor]:
    """A model of two classes, the second ahead by ``<weight, image> − bias``, in float64."""

    def logits(images: Tensor) -> Tensor:
        ahead = sample_sum(images.double() * weight) - bias
        return torch.stack([-ahead / 2, ahead / 2], dim=1)

    return logits
