"""Arrays of images and labels, in the forms that they come in, as the one form that the library takes."""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = Tensor | NDArray[Any]


def to_float(images: Array) -> Tensor:
    """8-bit images over 255, others as they are: a float32 tensor of its own, contiguous."""
    if isinstance(images, np.ndarray):
        if images.dtype != np.uint8:
            with np.errstate(over="ignore"):
                images = images.astype(np.float32)  # also from another order of bytes, which torch does not know
        # A copy: a file mapped into memory is not to be written to, and torch has no read-only tensors.
        images = torch.from_numpy(np.array(images, order="C"))
    pixels = images.detach().to("cpu", torch.float32, copy=True, memory_format=torch.contiguous_format)
    return pixels.div_(255) if images.dtype == torch.uint8 else pixels


def stack_of(images: Array) -> Array:
    """``(N, C, H, W)``."""
    _check_dtype(images)
    if isinstance(images, Tensor):
        if images.ndim != 4:
            raise ValueError(f"images must be (N, C, H, W), got a tensor {tuple(images.shape)}")
        return images
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise ValueError(f"images must be (N, H, W), (N, H, W, C) or (N, C, H, W), got an array {images.shape}")
    return _channels_first(images)


def image_of(image: Array) -> Array:
    """``(C, H, W)``."""
    _check_dtype(image)
    if isinstance(image, np.ndarray):
        if image.ndim == 2:
            return image[None]
        if image.ndim == 3:
            return _channels_first(image)
    if image.ndim != 3:
        raise ValueError(f"must have three dimensions, (C, H, W), got {tuple(image.shape)}")
    return image


def labels_of(labels: Any) -> Tensor:
    """Labels as int64 ``(N,)``; a label as ``()``."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers, got {array.dtype}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # a column, as Keras and MedMNIST have it
    if array.ndim > 1:
        raise ValueError(f"labels must be (N,), got {array.shape}")
    return torch.from_numpy(array.astype(np.int64))


def _check_dtype(images: Array) -> None:
    kind = images.dtype.is_floating_point if isinstance(images, Tensor) else images.dtype.kind == "f"
    if not (kind or images.dtype in (torch.uint8, np.uint8)):
        raise ValueError(f"images must be uint8, or floating and in [0, 1], got {images.dtype}")


def _channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """numpy has both habits; one or three channels tell which it is."""
    first, last = images.shape[-3] in (1, 3), images.shape[-1] in (1, 3)
    if first == last:
        raise ValueError(f"images must have 1 or 3 channels, first or last but not both, got an array {images.shape}")
    return images if first else np.moveaxis(images, -1, -3)
