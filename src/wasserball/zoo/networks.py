"""The networks of the experiments. All take pixels in [0, 1]: where one wants them normalised, that is its first layer.

Keys are those under which their weights are published.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


def mnist_network() -> nn.Sequential:
    """The paper's network for MNIST, ``(B, 1, 28, 28)``: two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def cifar_resnet(depth: int = 20) -> nn.Sequential:
    """A ResNet for CIFAR-10, ``(B, 3, 32, 32)``, of depth 20, 32, 44, 56, … (https://arxiv.org/abs/1512.03385, §4.2).

    Its shortcuts have no parameters (option A).
    """
    blocks, rest = divmod(depth - 2, 6)
    if blocks < 1 or rest:
        raise ValueError(f"depth must be 6n + 2 with n >= 1, got {depth}")

    def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        first = BasicBlock(inputs, outputs, stride)
        return nn.Sequential(first, *(BasicBlock(outputs, outputs) for _ in range(blocks - 1)))

    return nn.Sequential(
        OrderedDict(
            normalize=Normalize(IMAGENET_MEAN, IMAGENET_STD),
            conv1=nn.Conv2d(3, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu=nn.ReLU(),
            layer1=stage(16, 16, stride=1),
            layer2=stage(16, 32, stride=2),
            layer3=stage(32, 64, stride=2),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            linear=nn.Linear(64, 10),
        )
    )


def cifar_resnet18(blur: float = 0.0) -> nn.Sequential:
    """ResNet-18 for CIFAR-10 with activations before convolutions, ``(B, 3, 32, 32)`` (https://arxiv.org/abs/1603.05027).

    A ``blur`` above 0 is the width, in pixels, of a Gaussian that the image is seen through first. Mass that moves a
    pixel or two is then hardly seen to have moved: what is left of a unit that goes from one pixel to the next is
    0.8 / blur, of 2 without.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(blur=Blur(blur)) if blur else OrderedDict()
    layers.update(normalize=Normalize(CIFAR_MEAN, CIFAR_STD), conv1=nn.Conv2d(3, 64, 3, padding=1, bias=False))
    inputs = 64
    for number, (width, stride) in enumerate(((64, 1), (128, 2), (256, 2), (512, 2)), start=1):
        layers[f"layer{number}"] = nn.Sequential(
            PreactivationBlock(inputs, width, stride), PreactivationBlock(width, width)
        )
        inputs = width
    layers.update(bn=nn.BatchNorm2d(inputs), relu=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    layers.update(linear=nn.Linear(inputs, 10))
    return nn.Sequential(layers)


def resnet50(convention: Literal["torchvision", "keras"] = "torchvision") -> nn.Sequential:
    """ResNet-50 for ImageNet, ``(B, 3, 224, 224)``, with torchvision's keys (https://arxiv.org/abs/1512.03385).

    Published weights belong to one of two conventions. ``"torchvision"`` halves the resolution in a block's 3×3
    convolution and normalises by mean and deviation; ``"keras"``, as the authors first did, halves it in the 1×1
    convolution before that and subtracts the mean from pixels up to 255, and its batch norms have an ``eps`` of 1e-3.
    """
    if convention == "torchvision":
        normalize, early, eps = Normalize(IMAGENET_MEAN, IMAGENET_STD), False, 1e-5
    elif convention == "keras":
        normalize, early, eps = Normalize((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255,) * 3), True, 1e-3
    else:
        raise ValueError(f"convention must be 'torchvision' or 'keras', got {convention!r}")

    def stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        first = Bottleneck(inputs, width, stride, early=early, eps=eps)
        return nn.Sequential(first, *(Bottleneck(4 * width, width, eps=eps) for _ in range(blocks - 1)))

    return nn.Sequential(
        OrderedDict(
            normalize=normalize,
            conv1=nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            bn1=nn.BatchNorm2d(64, eps),
            relu=nn.ReLU(),
            maxpool=nn.MaxPool2d(3, stride=2, padding=1),
            layer1=stage(64, 64, blocks=3, stride=1),
            layer2=stage(256, 128, blocks=4, stride=2),
            layer3=stage(512, 256, blocks=6, stride=2),
            layer4=stage(1024, 512, blocks=3, stride=2),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(2048, 1000),
        )
    )


class Normalize(nn.Module):
    """``(x − mean) / std`` for each channel, no part of the weights.

    >>> layer = wb.zoo.Normalize([0.5], [0.25])
    >>> layer(torch.tensor([[[[0.5, 1.0]]]]))
    tensor([[[[0., 2.]]]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        numbers = [*mean, *std]
        if not mean or len(mean) != len(std) or not all(map(math.isfinite, numbers)) or not min(std) > 0:
            raise ValueError(f"mean and std must be finite, as many, and std > 0, got {tuple(mean)} and {tuple(std)}")
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-3] != len(self.mean):  # one of them 1, the other would be repeated without a word
            raise ValueError(f"images must have {len(self.mean)} channels to be normalised, got {tuple(images.shape)}")
        return (images - self.mean) / self.std


class Blur(nn.Module):
    """A Gaussian of width ``sigma`` over each channel; beyond the rim the image goes on as it is there."""

    kernel: Tensor

    def __init__(self, sigma: float) -> None:
        super().__init__()
        if not 0 < sigma < math.inf:
            raise ValueError(f"sigma must be a finite number above 0, got {sigma!r}")
        self.reach = math.ceil(2.5 * sigma)
        bell = torch.exp(-torch.arange(-self.reach, self.reach + 1).square() / (2 * sigma**2))
        # Part of the weights: whoever loads them shall have it.
        self.register_buffer("kernel", torch.outer(bell, bell) / bell.sum().square())

    def forward(self, images: Tensor) -> Tensor:
        channels = images.shape[1]
        kernel = self.kernel.to(images.dtype).expand(channels, 1, -1, -1)
        return F.conv2d(F.pad(images, (self.reach,) * 4, mode="replicate"), kernel, groups=channels)


class PreactivationBlock(nn.Module):
    """Two 3×3 convolutions, each after a batch norm and a ReLU, beside a shortcut, which is a 1×1 convolution where
    the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        active = F.relu(self.bn1(features))
        shortcut = features if self.shortcut is None else self.shortcut(active)
        change: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return change + shortcut


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which takes every ``stride``-th pixel and pads channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, features: Tensor) -> Tensor:
        change = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(features)))))
        stride, missing = self.conv1.stride[0], self.conv1.out_channels - self.conv1.in_channels
        shortcut = F.pad(features[:, :, ::stride, ::stride], (0, 0, 0, 0, missing // 2, missing - missing // 2))
        return F.relu(shortcut + change)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut, which is itself one where the shape changes.

    The stride sits in the first of them where ``early``, else in the second.
    """

    def __init__(self, inputs: int, width: int, stride: int = 1, *, early: bool = False, eps: float) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, stride if early else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps)
        self.conv2 = nn.Conv2d(width, width, 3, 1 if early else stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs, eps)
        self.downsample = nn.Sequential()
        if inputs != outputs:
            self.downsample.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.downsample.append(nn.BatchNorm2d(outputs, eps))

    def forward(self, features: Tensor) -> Tensor:
        change = F.relu(self.bn1(self.conv1(features)))
        change = F.relu(self.bn2(self.conv2(change)))
        return F.relu(self.downsample(features) + self.bn3(self.conv3(change)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mnist": mnist_network,
    "cifar-resnet20": lambda: cifar_resnet(20),
    "cifar-resnet56": lambda: cifar_resnet(56),
    "cifar-resnet18": cifar_resnet18,
    "cifar-resnet18-blur": lambda: cifar_resnet18(blur=1.5),
    "resnet50": resnet50,
    "resnet50-keras": lambda: resnet50("keras"),
}
"""The networks by the names under which :func:`~wasserball.zoo.load_model` knows them."""
