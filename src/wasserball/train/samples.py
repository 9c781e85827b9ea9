"""The images that a model learns from and those by which it is judged: which they are, and how they get to it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from wasserball.zoo import Data
from wasserball.zoo.data import Arrays

RESIDENT = {"cpu": 2**30, "cuda": 2**33}
"""Bytes of arrays that are held where the model is, as they are, from the beginning."""


def split(taken: int, held_out: int) -> tuple[Tensor, Tensor]:
    """Which of ``taken`` samples to train on and which to hold out, always the same: one of each stretch of the data,
    which may be sorted by class, and not at equal distances, where samples may be alike (MNIST's 60,000 are, in turn,
    of two groups of writers, and one is easier to read)."""
    ends = torch.arange(held_out + 1) * taken // max(1, held_out)
    within = torch.rand(held_out, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    held = ends[:-1] + within.mul_(ends.diff()).long()
    others = torch.ones(max(taken, 1), dtype=torch.bool)
    others[held] = False
    return others[:taken].nonzero().squeeze(1), held


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of the data, on a device."""

    data: Data
    numbers: Tensor
    """Which."""
    device: torch.device
    classes: int
    """How many the model knows."""
    readers: int = 0
    """Processes that read images beside this one."""
    resident: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, data: Data, numbers: Tensor, device: torch.device, classes: int, readers: int) -> "Samples":
        """With what is in memory anyway moved to the device, and looked at once."""
        if not isinstance(data, Arrays) or not data.fits(RESIDENT[device.type]):
            return cls(data, numbers, device, classes, readers)
        images, labels = data.tensors(numbers)
        _check_labels(data, numbers, labels, classes)
        return cls(data, numbers, device, classes, readers, (images.to(device), labels.to(device)))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> torch.Size:
        """Of an image."""
        return self.data[int(self.numbers[0])][0].shape

    def batches(self, order: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """The images and labels of each batch; ``order`` counts these samples from 0."""
        if self.resident is not None:
            images, labels = self.resident
            for places in order:
                at = places.to(self.device)
                yield _pixels(images[at]), labels[at]
            return
        numbers = [self.numbers[places].tolist() for places in order]
        pinned = self.device.type == "cuda"
        # A loader draws a seed for its readers: not from the generator that the model or the caller draws from.
        own = torch.Generator().manual_seed(torch.initial_seed())
        loader = DataLoader(
            self.data, batch_sampler=numbers, num_workers=self.readers, pin_memory=pinned, generator=own
        )
        for batch, (images, labels) in zip(numbers, loader, strict=True):
            _check_labels(self.data, torch.tensor(batch), labels, self.classes)
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def _pixels(images: Tensor) -> Tensor:
    pixels = images.to(torch.float32)
    return pixels.div_(255) if images.dtype == torch.uint8 else pixels


def _check_labels(data: Data, numbers: Tensor, labels: Tensor, classes: int) -> None:
    unknown = (labels < 0).nonzero().flatten()
    if len(unknown):
        raise ValueError(f"data must have labels to train on, {data.where(int(numbers[unknown[0]]))} has none")
    beyond = (labels >= classes).nonzero().flatten()
    if len(beyond):
        first = int(beyond[0])
        raise ValueError(
            f"data must have labels from 0 to {classes - 1}, the model has {classes} classes: "
            f"{data.where(int(numbers[first]))} of {data.name} has {int(labels[first])}"
        )
