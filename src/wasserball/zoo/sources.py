"""From what a user calls their data to a :class:`~wasserball.zoo.Data`."""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import IterableDataset

from wasserball.checks import check_count
from wasserball.zoo import cifar, extras, idx
from wasserball.zoo.bundle import SAMPLE, read_sample
from wasserball.zoo.data import Arrays, Data, Items
from wasserball.zoo.factory import call_factory, is_factory
from wasserball.zoo.pictures import SUFFIXES, Pictures

FOLDERS = "MNIST's idx files, CIFAR-10's python batches, {split}_images.npy and {split}_labels.npy, or pictures"
UNDERSTOOD = (
    f"{SAMPLE!r}, a folder with {FOLDERS}, an .npz or .safetensors file, torchvision:NAME, huggingface:NAME, "
    "file.py:factory or package.module:factory"
)


def load_data(source: Any, *, split: str = "test", size: int | None = None) -> Data:
    """Labelled images from nearly anything.

    ``source`` is one of

    - ``"mnist-sample"``, the bundled digits;
    - a folder with MNIST's idx files, with CIFAR-10's python batches, or with ``{split}_images.npy`` and
      ``{split}_labels.npy``;
    - a folder of pictures: one folder for each class, whose sorted names are the labels, possibly inside a folder for
      the split; or pictures ``<class index>_<anything>.png``; or any pictures, without labels;
    - an ``.npz`` or ``.safetensors`` file with ``images`` and ``labels`` (``x`` and ``y``, also with the split);
    - ``"torchvision:NAME[:ROOT]"`` or ``"huggingface:NAME[:CONFIG]"``, each with the extra of that name;
    - ``"file.py:factory"`` or ``"package.module:factory"``, a function that returns any of the following;
    - a map-style :class:`torch.utils.data.Dataset` of pairs (image, label), or a pair (images, labels) of tensors or
      arrays: 8-bit, or floating in [0, 1].

    Arrays of numpy's may have one or three channels, first or last. ``size`` resizes and crops pictures as is done for
    ImageNet: shorter side to ``size · 256/224``, then the square in the middle. Without it they stay as they are.
    Nothing is unpickled, but for what torchvision does by itself.

    >>> data = wb.zoo.load_data((torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2])))
    >>> images, labels = data.batch(0, 2)
    >>> len(data), images.shape, labels
    (3, torch.Size([2, 1, 8, 8]), tensor([0, 1]))
    """
    if size is not None:
        check_count("size", size)
    data = _load(source, split, size)
    if isinstance(data, Arrays) and size is not None and data.shape[1:] != (size, size):
        raise ValueError(f"size resizes pictures, not arrays: {data.name} has images {data.shape}, got size {size}")
    return data


def _load(source: Any, split: str, size: int | None) -> Data:
    if isinstance(source, Data):
        return source
    if isinstance(source, str | PathLike):
        return _load_named(str(source), split, size)
    return _wrap(source, size)


def _load_named(source: str, split: str, size: int | None) -> Data:
    if source == SAMPLE:
        if split != "test":
            raise ValueError(f"split of {SAMPLE} must be test, got {split!r}")
        return Arrays(SAMPLE, *read_sample(), classes="0123456789")
    kind, _, rest = source.partition(":")
    if kind in ("torchvision", "huggingface") and rest:
        name, _, place = rest.partition(":")
        load = extras.torchvision_data if kind == "torchvision" else extras.huggingface_data
        return load(name, place or None, split, size)
    path = Path(source)
    if source and path.is_dir():
        return _load_folder(path, split, size)
    if path.is_file():
        return _load_file(path, split)
    if is_factory(source):
        place, _, function = source.rpartition(":")
        return _wrap(call_factory(source), size, name=f"{Path(place).name}:{function}")
    raise ValueError(f"there is no file or folder {source!r}: data must be {UNDERSTOOD}")


def _load_folder(folder: Path, split: str, size: int | None) -> Data:
    name = f"{folder.resolve().name} {split}"
    if any(folder.glob("*-images-idx3-ubyte*")):
        return Arrays(name, *idx.read_mnist(folder, split))
    if any(folder.glob("*_images.npy")):
        return Arrays(name, *(_read_npy(folder / f"{split}_{kind}.npy") for kind in ("images", "labels")))
    if any((folder / batch).is_file() for batches in cifar.BATCHES.values() for batch in batches):
        return Arrays(name, *cifar.load_cifar10(folder, split), classes=cifar.CLASSES)
    pictures = Pictures(folder, split)
    if not len(pictures):
        raise ValueError(f"{folder} must hold {FOLDERS} ({', '.join(sorted(SUFFIXES))}), got none of them")
    return Items(pictures.name, pictures, pictures.classes, size=size, where=pictures.where)


def _load_file(path: Path, split: str) -> Data:
    if path.suffix == ".npz":
        with _open_npz(path) as file:
            images, labels = _choose(path, file.files, split)
            try:
                pixels, classes = file[images], file[labels]
            except Exception as error:  # an array of objects is a pickle, and numpy raises what zipfile and zlib do
                raise _unreadable(path, error) from error
    elif path.suffix == ".safetensors":
        try:
            tensors: Mapping[str, Tensor] = load_file(path)
        except SafetensorError as error:
            raise _unreadable(path, error) from error
        images, labels = _choose(path, tensors, split)
        pixels, classes = (_as_array(tensors[key]) for key in (images, labels))
    else:
        raise ValueError(f"{path} is no file of images and labels: data must be {UNDERSTOOD}")
    return Arrays(f"{path.stem} {split}" if split in images else path.stem, pixels, classes)


def _as_array(tensor: Tensor) -> NDArray[Any]:
    """In a file channels may be first or last, as in numpy's; which has no bfloat16."""
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _choose(path: Path, keys: Iterable[str], split: str) -> tuple[str, str]:
    found = {key.lower(): key for key in keys}
    pairs = ((f"{split}_images", f"{split}_labels"), (f"x_{split}", f"y_{split}"), ("images", "labels"), ("x", "y"))
    for images, labels in pairs:
        if images in found and labels in found:
            return found[images], found[labels]
    wanted = " or ".join(f"{images} and {labels}" for images, labels in pairs)
    raise ValueError(f"{path} must hold {wanted}, got {', '.join(found.values()) or 'nothing'}")


def _read_npy(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error


def _open_npz(path: Path) -> Any:
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:
        raise _unreadable(path, error) from error
    if isinstance(file, np.ndarray):
        raise ValueError(f"{path} must be an .npz file, got a single array")
    return file


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} cannot be read, and nothing of it was run: {error or type(error).__name__}")


def _wrap(source: Any, size: int | None, name: str | None = None) -> Data:
    """Data from a Python object; it is called by its type if it has no better name."""
    if isinstance(source, Data):
        return source
    if (
        isinstance(source, tuple | list)
        and len(source) == 2
        and all(isinstance(x, Tensor | np.ndarray) for x in source)
    ):
        return Arrays(name or "images", *source)
    called = name or type(source).__name__
    if hasattr(source, "features") and hasattr(source, "column_names"):
        return extras.huggingface_items(called, source, size)
    if isinstance(source, IterableDataset) or not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        kinds = "a data set with a length and items, or a pair (images, labels) of tensors or arrays"
        found = type(source).__name__
        raise ValueError(f"data must be {kinds}, got {found if name is None else f'{found} from {name}'}")
    return Items(called, source, extras.class_names(source), size=size)
