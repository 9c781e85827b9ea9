"""CIFAR-10 from its own files, the "python version", which are pickles: read without running anything of them.

A pickle is a program, and what it may call is the unpickler's to say. This one has stand-ins for the handful of names
that an array takes, which only keep what they are given, and refuses all others. What was kept is then read as bytes.
"""

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_cifar10(folder: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images of a split, ``"train"`` or ``"test"``, uint8 ``(N, 3, 32, 32)``, and their labels."""
    if split not in BATCHES:
        raise ValueError(f"split must be one of {', '.join(BATCHES)}, got {split!r}")
    batches = [_read(folder / name) for name in BATCHES[split]]
    images, labels = (np.concatenate(column) for column in zip(*batches, strict=True))
    return images.reshape(-1, 3, 32, 32), labels


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()  # originals are of Python 2, whose strings are bytes
    except _Forbidden as error:
        raise ValueError(f"{path} is no CIFAR-10 batch, it asks for {error}; nothing of it was run") from error
    except FileNotFoundError:
        raise
    except Exception as error:  # there is no end to what a broken pickle raises
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is no CIFAR-10 batch: {reason}; nothing of it was run") from error
    try:
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        images, labels = _array(batch["data"]), _array(batch["labels"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must hold arrays 'data' and 'labels': {error}") from error
    if (
        images.dtype != np.uint8
        or images.ndim != 2
        or images.shape[1] != 3 * 32 * 32
        or labels.shape != images.shape[:1]
    ):
        shapes = f"{images.dtype} {images.shape} and {labels.shape}"
        raise ValueError(f"{path} must hold data uint8 (N, 3072) and as many labels, got {shapes}")
    return images, labels.astype(np.int64)


class _Forbidden(Exception):
    """The name of something that a pickle wants and does not get."""


class _Type:
    """For numpy.dtype: its code and byte order."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code
        self.order = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1].decode() if isinstance(state[1], bytes) else state[1]

    def real(self) -> np.dtype[Any]:
        """numpy's own, if it is one of integers: nothing else is in these files."""
        if not re.fullmatch(r"[iu][1248]", self.code) or self.order not in ("|", "<", ">", "="):
            raise ValueError(f"an array must be of integers, got {self.order}{self.code}")
        return np.dtype(self.order + self.code)


class _Array:
    """For numpy.ndarray: what it would be made of."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.type, self.fortran, self.content = state


def _start_array(*_: object) -> _Array:
    return _Array()


def _array_from_buffer(content: bytes, kind: _Type, shape: tuple[int, ...], order: str, *_: object) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", content))
    return array


def _encode(text: str, *_: object) -> bytes:
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _start_array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array_from_buffer for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in ALLOWED:
            raise _Forbidden(f"{module}.{name}")
        return ALLOWED[module, name]


def _array(value: object) -> NDArray[Any]:
    """A numpy array from a stand-in for one, or from a list of integers."""
    if not isinstance(value, _Array):
        return np.array(value, dtype=np.int64)
    kind, shape = value.type.real(), tuple(int(length) for length in value.shape)
    if len(value.content) != math.prod(shape) * kind.itemsize or value.fortran:
        raise ValueError(f"an array {shape} of {kind} must be {math.prod(shape) * kind.itemsize} bytes in C order")
    return np.frombuffer(bytes(value.content), kind).reshape(shape)
