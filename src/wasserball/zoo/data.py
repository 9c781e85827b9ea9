"""Images and their labels, wherever they come from, as everything else takes them: in [0, 1], a batch at a time."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from wasserball.zoo.pictures import is_grey, read_picture
from wasserball.zoo.pixels import Array, image_of, labels_of, stack_of, to_float

PIECE = 4096
"""Samples to look at at a time."""


class Data(Dataset[tuple[Tensor, int]], ABC):
    """Labelled images. What :func:`~wasserball.zoo.load_data` returns.

    A label of −1 means that it is not known. Values are looked at when they are read: an image that is not in [0, 1],
    or one of another shape than the rest, is a ``ValueError`` that names it.

    >>> data = wb.zoo.load_data("mnist-sample")
    >>> image, label = data[0]
    >>> data.name, len(data), image.shape, label
    ('mnist-sample', 200, torch.Size([1, 28, 28]), 7)
    """

    name: str
    """Short and stable, for a caption or a table; never a path."""
    classes: tuple[str, ...] | None
    """What the labels are called, where that is known."""

    def __init__(self, name: str, classes: Sequence[str] | None = None) -> None:
        self.name = name
        self.classes = None if classes is None else tuple(classes)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _read(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """The samples of a range that is there: float32 images, whose values nobody has looked at, and labels."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"index must be in [0, {len(self)}), got {index}")
        images, labels = self.batch(index, index + 1)
        return images[0], int(labels[0])

    def batch(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """The samples ``first`` to ``last − 1``: images float32 ``(B, C, H, W)`` in [0, 1], labels int64 ``(B,)``."""
        if not 0 <= first < last <= len(self):
            raise ValueError(f"first and last must be a range within [0, {len(self)}], got {first} and {last}")
        images, labels = self._read(first, last)
        inside = ((images >= 0) & (images <= 1)).flatten(1).all(1)
        if not inside.all():
            self._name_the_bad_pixel(images, first, int((~inside).nonzero()[0]))
        unknown = (labels < -1).nonzero().flatten().tolist()
        if unknown:
            seen = int(labels[unknown[0]])
            raise ValueError(f"{self.name}: the label of {self.where(first + unknown[0])} must be >= 0, got {seen}")
        return images, labels

    def where(self, index: int) -> str:
        """What to call a sample in a message or a caption."""
        return f"sample {index}"

    def _name_the_bad_pixel(self, images: Tensor, first: int, sample: int) -> None:
        image = images[sample]
        position = (~((image >= 0) & (image <= 1))).nonzero()[0].tolist()
        value = image[tuple(position)].item()
        hint = ". 8-bit images are given as uint8; normalisation is the model's (normalize=)" if value == value else ""
        raise ValueError(
            f"{self.name}: {self.where(first + sample)} must be in [0, 1], got {value:g} at {tuple(position)}{hint}"
        )


class Arrays(Data):
    """Images of one shape in one tensor or array, which may be a file that is mapped into memory.

    They stay as they are, so that 8-bit images take a byte a pixel; a batch is converted when it is asked for.
    """

    def __init__(self, name: str, images: Array, labels: Array, classes: Sequence[str] | None = None) -> None:
        super().__init__(name, classes)
        try:
            self._images, self._labels = stack_of(images), labels_of(labels)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if self._labels.shape != self._images.shape[:1] or not len(self._images):
            found = f"{len(self._images)} images and labels {tuple(self._labels.shape)}"
            raise ValueError(f"{name}: images and labels must be as many, and at least one, got {found}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image."""
        return tuple(self._images.shape[1:])

    def __len__(self) -> int:
        return len(self._images)

    def fits(self, limit: int) -> bool:
        """Whether the images take no more than so many bytes."""
        size = 1 if self._images.dtype in (torch.uint8, np.uint8) else 4
        return size * math.prod(self._images.shape) <= limit

    def tensors(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The samples of these numbers, in copies: images uint8 where they are stored so, else float32 and looked at as
        in :meth:`Data.batch`, and labels."""
        if self._images.dtype in (torch.uint8, np.uint8):
            chosen = self._images[numbers] if isinstance(self._images, Tensor) else self._images[numbers.numpy()]
            images = torch.from_numpy(chosen.copy(order="C")) if isinstance(chosen, np.ndarray) else chosen.cpu()
            return images.contiguous(), self._labels[numbers]
        end = int(numbers.max()) + 1
        pieces = [self.batch(first, min(first + PIECE, end))[0] for first in range(0, end, PIECE)]
        return torch.cat(pieces)[numbers], self._labels[numbers]

    def _read(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        return to_float(self._images[first:last]), self._labels[first:last].clone()


class Source(Protocol):
    """A map-style data set: any :class:`torch.utils.data.Dataset` that has a length."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Items(Data):
    """Images that are read one at a time, from any source of pairs (image, label).

    An image is a tensor ``(C, H, W)``, a numpy array with its channels first or last, or a picture of pillow's. If the
    first picture is grey all have to be, else all become RGB. ``size`` resizes and crops pictures, nothing else.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        classes: Sequence[str] | None = None,
        *,
        size: int | None = None,
        where: Callable[[int], str] | None = None,
    ) -> None:
        super().__init__(name, classes)
        self._source, self._size, self._where = source, size, where
        if not len(source):
            raise ValueError(f"{name}: there must be at least one sample, got none")

    def __len__(self) -> int:
        return len(self._source)

    def where(self, index: int) -> str:
        return super().where(index) if self._where is None else self._where(index)

    def _read(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        _, shape = self._like
        images, labels = [], []
        for index in range(first, last):
            image, label = self._item(index)
            if image.shape != shape:
                shapes = f"{tuple(image.shape)} for {self.where(index)} and {tuple(shape)} for {self.where(0)}"
                advice = "size= (--size) resizes and crops pictures"
                raise ValueError(f"{self.name}: all images must have one shape, got {shapes}; {advice}")
            images.append(image)
            labels.append(label)
        return torch.stack(images), torch.tensor(labels)

    @cached_property
    def _like(self) -> tuple[bool, torch.Size]:
        """What the first image is like, and with it all others: whether grey, and of which shape."""
        image, _ = self._fetch(0)
        grey = is_grey(image)
        return grey, self._convert(0, image, grey).shape

    def _item(self, index: int) -> tuple[Tensor, int]:
        image, label = self._fetch(index)
        try:
            number = labels_of(label)
            if number.ndim:
                raise ValueError(f"a label must be one integer, got shape {tuple(number.shape)}")
        except ValueError as error:
            raise ValueError(f"{self.name}: {self.where(index)}: {error}") from error
        return self._convert(index, image, self._like[0]), int(number)

    def _fetch(self, index: int) -> tuple[Any, Any]:
        try:
            item = self._source[index]
        except Exception as error:  # whatever another's code, or a decoder, makes of a broken file
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{self.name}: {self.where(index)} cannot be read: {reason}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(
                f"{self.name}: {self.where(index)} must be a pair (image, label), got {type(item).__name__}"
            )
        return item[0], item[1]

    def _convert(self, index: int, image: Any, grey: bool) -> Tensor:
        try:
            if isinstance(image, Tensor | np.ndarray):
                pixels = to_float(image_of(image))
                if self._size is not None and pixels.shape[1:] != (self._size, self._size):
                    raise ValueError(f"must be {self._size}×{self._size}: size resizes pictures, not arrays")
                return pixels
            return to_float(read_picture(image, grey=grey, size=self._size))
        except Exception as error:  # as above: a picture may be decoded only now
            raise ValueError(f"{self.name}: {self.where(index)}: {error}") from error
