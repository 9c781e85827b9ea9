"""What is done to training images before they are attacked. All that is random is given, sample by sample, so that it
does not matter among how many processes a batch is split."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Augment = Literal["none", "crop-flip", "crop-flip-cut", "elastic", "elastic-mild"]

PADDING = 4
"""Pixels by which a crop moves, at most."""
CUT = 8
"""The side of a square that is cut out, in pixels."""
TURN, STRETCH, SHEAR = math.radians(12), 0.1, 0.1
"""Of an image as a whole, at most …"""
GRID = 5
BEND = 0.8
"""… and by how many pixels the points of a grid on it are pulled about, typically: what lies between them follows."""


MILD = 0.3
"""Of all that, where it is to be mild."""


class Augmentation(NamedTuple):
    """How many random numbers in [0, 1) an image takes, and what is done with them: images ``(B, C, H, W)`` and
    numbers ``(B, numbers)`` to images."""

    numbers: int
    apply: Callable[[Tensor, Tensor], Tensor]


def crop_and_flip(images: Tensor, drawn: Tensor) -> Tensor:
    """Mirror every second image, and move all by up to four pixels; black comes in from the rim. For photographs."""
    batch, channels, height, width = images.shape
    flipped = torch.where((drawn[:, 0] < 0.5).view(-1, 1, 1, 1), images.flip(3), images)
    down, right = (drawn[:, 1:] * (2 * PADDING + 1)).long().unbind(1)
    rows = down.view(-1, 1) + torch.arange(height, device=images.device)
    columns = right.view(-1, 1) + torch.arange(width, device=images.device)
    return F.pad(flipped, (PADDING,) * 4)[
        torch.arange(batch, device=images.device).view(-1, 1, 1, 1),
        torch.arange(channels, device=images.device).view(1, -1, 1, 1),
        rows.view(batch, 1, height, 1),
        columns.view(batch, 1, 1, width),
    ]


def crop_flip_and_cut(images: Tensor, drawn: Tensor) -> Tensor:
    """Mirror and move images, and make a square somewhere in them black (DeVries & Taylor 2017).

    For photographs of which a network would learn too many by heart.
    """
    images = crop_and_flip(images, drawn[:, :3])
    inside = []
    for size, place in zip(images.shape[2:], drawn[:, 3:].unbind(1), strict=True):
        # Its middle is anywhere, so that it is cut off itself at the rim.
        away = torch.arange(size, device=images.device) - (place * size).floor().view(-1, 1)
        inside.append((away >= -CUT // 2) & (away < CUT // 2))
    rows, columns = inside
    return images.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), 0)


def bend(images: Tensor, drawn: Tensor) -> Tensor:
    """Turn, stretch and shear images a little, and pull them about as if they were of rubber (Simard et al. 2003).
    For digits and letters."""
    batch, _, height, width = images.shape
    turn, wide, high, shear = (2 * drawn[:, :4] - 1).unbind(1)
    turn, wide, high, shear = TURN * turn, 1 + STRETCH * wide, 1 + STRETCH * high, SHEAR * shear
    cosine, sine, none = turn.cos(), turn.sin(), torch.zeros_like(turn)
    rows = wide * cosine, shear - wide * sine, none, high * sine + shear, high * cosine, none
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    pulled = (2 * drawn[:, 4:] - 1).view(batch, 2, GRID, GRID) * (math.sqrt(3) * BEND)
    pulled = F.interpolate(pulled, (height, width), mode="bicubic", align_corners=False).permute(0, 2, 3, 1)
    # Not times a tensor of the two: it would come from the host, and wait for the GPU.
    pulled = torch.stack((pulled[..., 0] * (2 / width), pulled[..., 1] * (2 / height)), 3)
    return F.grid_sample(images, grid + pulled, align_corners=False).clamp_(0, 1)


AUGMENTATIONS: dict[Augment, Augmentation] = {
    "none": Augmentation(0, lambda images, _: images),
    "crop-flip": Augmentation(3, crop_and_flip),
    "crop-flip-cut": Augmentation(5, crop_flip_and_cut),
    "elastic": Augmentation(4 + 2 * GRID**2, bend),
    "elastic-mild": Augmentation(4 + 2 * GRID**2, lambda images, drawn: bend(images, 0.5 + MILD * (drawn - 0.5))),
}
