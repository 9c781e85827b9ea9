"""MNIST from its own files: idx, the format that it was published in, gzipped or unpacked."""

import gzip
import math
import zlib
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

PREFIX = {"train": "train", "test": "t10k"}
HEADER = 4
"""Bytes: two zeros, the type of an entry, the number of dimensions. The dimensions follow."""
UINT8 = 8


def load_mnist(folder: str | PathLike[str], split: str = "test") -> tuple[Tensor, Tensor]:
    """The digits of a split, ``"train"`` or ``"test"``: images float32 ``(N, 1, 28, 28)`` in [0, 1], labels int64.

    The folder holds the published files, such as ``t10k-images-idx3-ubyte.gz`` and ``t10k-labels-idx1-ubyte.gz``.
    """
    images, labels = read_mnist(Path(folder), split)
    return images.float() / 255, labels.long()


def read_mnist(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """The digits and labels of a split as the bytes that they are."""
    if split not in PREFIX:
        raise ValueError(f"split must be one of {', '.join(PREFIX)}, got {split!r}")
    images = read_idx(_find(folder, f"{PREFIX[split]}-images-idx3-ubyte"))
    labels = read_idx(_find(folder, f"{PREFIX[split]}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        shapes = f"images {tuple(images.shape)} and labels {tuple(labels.shape)}"
        raise ValueError(f"folder must hold images (N, H, W) and as many labels, got {shapes} in {folder}")
    return images[:, None], labels


def read_idx(path: Path) -> Tensor:
    """The uint8 array in an idx file."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file: {error}") from error
    if len(content) < HEADER or content[:3] != bytes((0, 0, UINT8)):
        raise ValueError(f"{path} must be an idx file of bytes, got one that starts with {content[:HEADER].hex(' ')}")
    start = HEADER + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(HEADER, start, 4)]
    if len(content) != start + math.prod(shape):
        raise ValueError(f"{path} must hold {start + math.prod(shape)} bytes for shape {shape}, got {len(content)}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(shape)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise FileNotFoundError(f"folder must hold {name}.gz or {name}, got {folder}")
