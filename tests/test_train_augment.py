"""What is done to training images before they are attacked, against the same written pixel by pixel."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import pupils
from tests.pupils import QUICK, Steps, bars, perceptron
from wasserball.train import train, trainer
from wasserball.train.augment import AUGMENTATIONS, BEND, CUT, GRID, PADDING, SHEAR, STRETCH, TURN

LARGEST = 1 - 2**-24
"""The largest number in float32 that is ever drawn."""


def random_case(how: Any, count: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = AUGMENTATIONS[how].numbers
    return torch.rand(count, *shape, generator=generator), torch.rand(count, numbers, generator=generator)


def moved(image: Tensor, flipped: bool, down: int, right: int) -> Tensor:
    """The image on black ground, seen through a window of its own size."""
    channels, height, width = image.shape
    answer = torch.zeros_like(image)
    for channel, row, column in product(range(channels), range(height), range(width)):
        y, x = row + down - PADDING, column + right - PADDING
        if 0 <= y < height and 0 <= x < width:
            answer[channel, row, column] = image[channel, y, width - 1 - x if flipped else x]
    return answer


def test_images_are_flipped_and_moved_as_is_drawn() -> None:
    images, drawn = random_case("crop-flip", 40, 2, 5, 7)
    drawn[0], drawn[1] = 0, LARGEST
    answer = AUGMENTATIONS["crop-flip"].apply(images, drawn)
    choices = 2 * PADDING + 1
    for image, found, (flip, down, right) in zip(images, answer, drawn.tolist(), strict=True):
        assert torch.equal(found, moved(image, flip < 0.5, math.floor(down * choices), math.floor(right * choices)))


def test_a_square_is_cut_out_where_is_drawn() -> None:
    images, drawn = random_case("crop-flip-cut", 40, 2, 11, 14)
    images += 0.1
    drawn[0], drawn[1] = 0, LARGEST
    answer = AUGMENTATIONS["crop-flip-cut"].apply(images, drawn)
    whole = AUGMENTATIONS["crop-flip"].apply(images, drawn[:, :3])
    for before, after, (y, x) in zip(whole, answer, drawn[:, 3:].tolist(), strict=True):
        top, left = math.floor(y * 11) - CUT // 2, math.floor(x * 14) - CUT // 2
        for row, column in product(range(11), range(14)):
            gone = top <= row < top + CUT and left <= column < left + CUT
            assert torch.equal(after[:, row, column], torch.zeros(2) if gone else before[:, row, column])


def cubic(distance: float) -> float:
    """The weight of a point in cubic convolution, as pictures are resized."""
    far = abs(distance)
    if far <= 1:
        return 1.25 * far**3 - 2.25 * far**2 + 1
    return -0.75 * (far**3 - 5 * far**2 + 8 * far - 4) if far < 2 else 0.0


def pull(points: list[list[float]], y: float, x: float) -> float:
    """Between the points of a grid; beyond its rim it goes on as it is there."""
    top, left = math.floor(y), math.floor(x)
    total = 0.0
    for row, column in product(range(top - 1, top + 3), range(left - 1, left + 3)):
        inside = points[min(max(row, 0), GRID - 1)][min(max(column, 0), GRID - 1)]
        total += cubic(y - row) * cubic(x - column) * inside
    return total


def pixel(image: Tensor, y: float, x: float) -> float:
    """Between pixels, which are black beyond the rim."""
    height, width = image.shape
    top, left = math.floor(y), math.floor(x)
    total = 0.0
    for row, column in product((top, top + 1), (left, left + 1)):
        if 0 <= row < height and 0 <= column < width:
            total += (1 - abs(y - row)) * (1 - abs(x - column)) * float(image[row, column])
    return total


def bent(image: Tensor, drawn: list[float]) -> Tensor:
    """Where each pixel comes from: turned, stretched, sheared, then pulled."""
    height, width = image.shape
    signs = [2 * number - 1 for number in drawn]
    turn, wide, high, shear = TURN * signs[0], 1 + STRETCH * signs[1], 1 + STRETCH * signs[2], SHEAR * signs[3]
    pulls = [math.sqrt(3) * BEND * sign for sign in signs[4:]]
    right, down = ([pulls[start + row * GRID :][:GRID] for row in range(GRID)] for start in (0, GRID**2))
    answer = torch.zeros_like(image)
    for row, column in product(range(height), range(width)):
        v, u = (2 * row + 1) / height - 1, (2 * column + 1) / width - 1
        x = wide * math.cos(turn) * u + (shear - wide * math.sin(turn)) * v
        y = (high * math.sin(turn) + shear) * u + high * math.cos(turn) * v
        at = (row + 0.5) * GRID / height - 0.5, (column + 0.5) * GRID / width - 0.5
        x, y = (x + 1) * width / 2 - 0.5 + pull(right, *at), (y + 1) * height / 2 - 0.5 + pull(down, *at)
        answer[row, column] = pixel(image, y, x)
    return answer


@pytest.mark.parametrize("shape", [(7, 9), (12, 12), (3, 4)])
def test_images_are_bent_as_is_drawn(shape: tuple[int, int]) -> None:
    images, drawn = random_case("elastic", 5, 2, *shape)
    drawn[0], drawn[1] = 0, LARGEST
    answer = AUGMENTATIONS["elastic"].apply(images, drawn)
    for image, found, numbers in zip(images, answer, drawn.tolist(), strict=True):
        expected = torch.stack([bent(channel, numbers) for channel in image])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_what_is_drawn_in_the_middle_bends_nothing() -> None:
    images, drawn = random_case("elastic", 3, 1, 8, 8)
    torch.testing.assert_close(AUGMENTATIONS["elastic"].apply(images, drawn.fill_(0.5)), images, atol=1e-5, rtol=0)


def test_a_mild_bend_is_one_drawn_from_near_the_middle() -> None:
    images, drawn = random_case("elastic-mild", 3, 1, 8, 8)
    near = 0.35 + 0.3 * drawn
    found = AUGMENTATIONS["elastic-mild"].apply(images, drawn)
    torch.testing.assert_close(found, AUGMENTATIONS["elastic"].apply(images, near), atol=1e-5, rtol=0)


@pytest.mark.parametrize("how", AUGMENTATIONS)
def test_images_stay_in_the_box_and_have_no_say_in_others(how: Any) -> None:
    images, drawn = random_case(how, 6, 3, 8, 10)
    kept = images.clone()
    found = AUGMENTATIONS[how].apply(images, drawn)
    assert (found.shape, found.dtype) == (images.shape, images.dtype)
    assert found.min() >= 0
    assert found.max() <= 1
    assert torch.equal(images, kept)
    torch.testing.assert_close(AUGMENTATIONS[how].apply(images[2:4], drawn[2:4]), found[2:4])


@pytest.mark.parametrize("how", AUGMENTATIONS)
def test_images_are_augmented_before_they_are_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    steps = Steps()
    monkeypatch.setattr(trainer, "objective", steps)
    train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK, warm_up=0, augment=how)
    originals = {tuple(image.flatten().tolist()) for image in bars()[0][pupils.KEPT]}
    seen, adversarial = (torch.cat(tensors) for tensors in zip(*steps, strict=True))
    unchanged = sum(tuple(image.flatten().tolist()) in originals for image in seen)
    assert unchanged == len(seen) if how == "none" else unchanged < 0.1 * len(seen)
    first, second = ({tuple(image.flatten().tolist()) for image in half} for half in seen.tensor_split(2))
    assert len(first & second) == (len(originals) if how == "none" else pytest.approx(0, abs=10))
    mass, moved_mass = seen.flatten(1).sum(1), adversarial.flatten(1).sum(1)
    torch.testing.assert_close(moved_mass, mass, rtol=0.02, atol=1e-3)
