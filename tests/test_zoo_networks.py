"""The ResNet-18 for CIFAR-10, and the blur that it may see images through."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from wasserball import zoo
from wasserball.zoo.networks import Blur, PreactivationBlock, cifar_resnet18

NAMES = ("cifar-resnet18", "cifar-resnet18-blur")


def test_resnet18_is_the_published_one() -> None:
    with torch.device("meta"):
        networks = {name: zoo.NETWORKS[name]() for name in NAMES}
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    convolutions = 3 * 64 * 9 + sum(inputs * width * 9 + width**2 * 9 for inputs, width in pairwise(widths))
    shortcuts = sum(width * 2 * width for width in (64, 128, 256))
    norms = 2 * (sum(inputs + width for inputs, width in pairwise(widths)) + 512)
    count = convolutions + shortcuts + norms + 512 * 10 + 10
    assert round(count / 1e6, 2) == 11.17
    for network in networks.values():
        assert sum(parameter.numel() for parameter in network.parameters()) == count
        main = [layer for name, layer in network.named_modules() if "shortcut" not in name]
        assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in main) == 18
        assert network(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)
    features = networks[NAMES[0]].get_submodule("layer4")
    assert features(torch.empty(1, 256, 8, 8, device="meta")).shape == (1, 512, 4, 4)


def test_a_block_is_activated_before_it_convolves() -> None:
    block = PreactivationBlock(4, 4).eval()
    features = torch.randn(2, 4, 6, 6)
    active = F.relu(F.batch_norm(features, torch.zeros(4), torch.ones(4)))
    second = F.relu(F.batch_norm(F.conv2d(active, block.conv1.weight, padding=1), torch.zeros(4), torch.ones(4)))
    expected = features + F.conv2d(second, block.conv2.weight, padding=1)
    torch.testing.assert_close(block(features), expected)
    wider = PreactivationBlock(4, 8, stride=2).eval()
    assert wider.shortcut is not None
    nn.init.zeros_(wider.conv2.weight)
    torch.testing.assert_close(wider(features), wider.shortcut(active))


def plain_blur(image: Tensor, sigma: float) -> Tensor:
    """One image ``(H, W)``, pixel by pixel, in float64: a bell cut off at 2.5 widths, over an image that goes on as it
    ends."""
    height, width = image.shape
    reach = math.ceil(2.5 * sigma)
    bell = [math.exp(-(step**2) / (2 * sigma**2)) for step in range(-reach, reach + 1)]
    answer = torch.zeros_like(image, dtype=torch.float64)
    for row in range(height):
        for column in range(width):
            for down, one in zip(range(-reach, reach + 1), bell, strict=True):
                for right, other in zip(range(-reach, reach + 1), bell, strict=True):
                    y, x = min(max(row + down, 0), height - 1), min(max(column + right, 0), width - 1)
                    answer[row, column] += one * other * image[y, x].double()
    return answer / sum(bell) ** 2


@pytest.mark.parametrize("sigma", [0.3, 1.0, 1.7])
def test_a_blur_is_a_gaussian(sigma: float) -> None:
    images = torch.rand(2, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    blur = Blur(sigma)
    found = blur(images)
    expected = torch.stack([torch.stack([plain_blur(channel, sigma) for channel in image]) for image in images])
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)
    assert blur.kernel.sum().item() == pytest.approx(1)
    assert torch.equal(blur.kernel, blur.kernel.T)
    torch.testing.assert_close(blur(torch.full((1, 2, 5, 5), 0.7)), torch.full((1, 2, 5, 5), 0.7))
    torch.testing.assert_close(blur(images.double()), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_a_unit_that_moves_by_a_pixel_is_hardly_seen(sigma: float) -> None:
    images = torch.zeros(2, 1, 31, 31)
    images[0, 0, 15, 15] = images[1, 0, 15, 16] = 1
    here, there = Blur(sigma)(images)
    assert (here - there).abs().sum().item() == pytest.approx(0.8 / sigma, rel=0.1)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_a_blur_has_a_width(sigma: float) -> None:
    with pytest.raises(ValueError, match="sigma must be a finite number above 0, got"):
        Blur(sigma)


def test_a_network_and_its_blurred_twin_are_told_apart_by_their_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.rand(1, 3, 32, 32)
    for name in NAMES:
        network, file = zoo.NETWORKS[name]().eval(), tmp_path / f"{name}.safetensors"
        save_file(network.state_dict(), file)
        found = zoo.load_model(file)
        assert torch.equal(found(images), network(images))
        assert isinstance(found.get_submodule(""), nn.Sequential)
        assert any(isinstance(layer, Blur) for layer in found) == name.endswith("blur")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"do not fit cifar-resnet18: unexpected: blur\.kernel"):
        zoo.load_model(NAMES[0], weights=tmp_path / f"{NAMES[1]}.safetensors")


def test_the_width_of_the_blur_comes_with_the_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kernel = Blur(1.4).kernel
    assert kernel.shape == Blur(1.5).kernel.shape
    network = cifar_resnet18(blur=1.4).eval()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    found = zoo.load_model(tmp_path / "w.safetensors")
    assert torch.equal(found.state_dict()["blur.kernel"], kernel)
