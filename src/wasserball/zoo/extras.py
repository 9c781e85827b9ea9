"""Data and models of torchvision, Hugging Face and timm, each through an extra of its own."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from wasserball.zoo.data import Data, Items
from wasserball.zoo.networks import Normalize

TEST = ("test", "validation", "val", "valid")
"""What others call a test split, the first that is there."""


def torchvision_data(name: str, root: str | None, split: str, size: int | None) -> Data:
    """A data set of ``torchvision.datasets``, downloaded if it is not there and torchvision can."""
    kind: Any = getattr(_package("torchvision.datasets", "torchvision"), name, None)
    if not callable(kind):
        raise ValueError(f"torchvision.datasets must have a data set called {name!r}, found none")
    known = inspect.signature(kind).parameters
    options: dict[str, Any] = {"download": True} if "download" in known else {}
    if "root" in known:
        options["root"] = str(Path(torch.hub.get_dir()).parent / "datasets") if root is None else root
    if "train" in known:
        if split not in ("train", "test"):
            raise ValueError(f"split of torchvision's {name} must be train or test, got {split!r}")
        dataset = _try(f"torchvision:{name}", lambda: kind(**options, train=split == "train"))
    elif "split" in known:
        dataset, split = _first_split(f"torchvision:{name}", split, lambda chosen: kind(**options, split=chosen))
    else:
        dataset, split = _try(f"torchvision:{name}", lambda: kind(**options)), ""
    return Items(f"{name} {split}".strip(), dataset, class_names(dataset), size=size)


def huggingface_data(name: str, config: str | None, split: str, size: int | None) -> Data:
    """A data set of the Hugging Face hub, or a local folder that ``datasets`` understands."""
    load = _package("datasets", "huggingface").load_dataset
    dataset, split = _first_split(f"huggingface:{name}", split, lambda chosen: load(name, config, split=chosen))
    return huggingface_items(f"{Path(name).name} {split}", dataset, size)


def huggingface_items(name: str, dataset: Any, size: int | None) -> Data:
    """The one column of images and the one of labels."""
    datasets = _package("datasets", "huggingface")
    features = dict(dataset.features)
    images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    labels = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    named = [column for column in ("label", "labels") if column in features]
    if len(labels) != 1:
        labels = named[:1]
    if len(images) != 1 or not labels:
        found = ", ".join(f"{column}: {type(feature).__name__}" for column, feature in features.items())
        raise ValueError(f"{name} must have one column of images and one of labels, got {found}")
    return Items(name, _Columns(dataset, images[0], labels[0]), getattr(features[labels[0]], "names", None), size=size)


class _Columns:
    """Rows of a Hugging Face data set as pairs; a label that is missing is −1."""

    def __init__(self, dataset: Any, image: str, label: str) -> None:
        self.dataset, self.image, self.label = dataset, image, label

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        row = self.dataset[index]
        return row[self.image], -1 if row[self.label] is None else row[self.label]


def timm_model(name: str, pretrained: bool) -> tuple[nn.Module, Normalize]:
    """A model of timm's, and the normalisation that it was trained with."""
    timm = _package("timm", "timm")
    model = _try(f"timm:{name}", lambda: timm.create_model(name, pretrained=pretrained))
    config = timm.data.resolve_model_data_config(model)
    return model, Normalize(config["mean"], config["std"])


def torchvision_model(name: str, pretrained: bool) -> tuple[nn.Module, Normalize]:
    """A model of torchvision's, with its best weights if pretrained, and the normalisation that belongs to those."""
    models = _package("torchvision.models", "torchvision")
    source = f"torchvision:{name}"
    weights = _try(source, lambda: models.get_model_weights(name).DEFAULT)
    transforms = weights.transforms()
    if not hasattr(transforms, "mean"):
        raise ValueError(f"{source} must be a classifier of images, but comes without a mean and a deviation for them")
    model = _try(source, lambda: models.get_model(name, weights=weights if pretrained else None))
    return model, Normalize(transforms.mean, transforms.std)


def class_names(dataset: Any) -> list[str] | None:
    """As torchvision's data sets have them; those of others may mean anything by this name."""
    names = getattr(dataset, "classes", None)
    return list(names) if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else None


def _package(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{module} cannot be imported ({error}); needs `pip install wasserball[{extra}]`") from error


def _first_split(source: str, split: str, load: Any) -> tuple[Any, str]:
    """What ``load`` makes of a split or of another name for it, and that name."""
    error: ValueError | None = None
    for name in TEST if split == "test" else (split,):
        try:
            return load(name), name
        except ValueError as problem:  # how both packages say that they have no such split, among other things
            error = error or problem
        except Exception as problem:
            raise _failed(source, problem) from problem
    assert error is not None
    raise _failed(source, error) from error


def _try(source: str, load: Any) -> Any:
    try:
        return load()
    except Exception as problem:  # no such name, no network, no space: whatever another's code raises
        raise _failed(source, problem) from problem


def _failed(source: str, problem: Exception) -> ValueError:
    return ValueError(f"{source} cannot be loaded: {type(problem).__name__}: {problem}")
