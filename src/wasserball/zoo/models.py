"""From what a user calls their model to an ``nn.Module`` that takes images in [0, 1]."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wasserball.zoo import extras
from wasserball.zoo.bundle import MODELS, bundled_model
from wasserball.zoo.factory import call_factory, is_factory
from wasserball.zoo.networks import CIFAR_MEAN, CIFAR_STD, IMAGENET_MEAN, IMAGENET_STD, NETWORKS, Normalize
from wasserball.zoo.weights import PICKLE, SUFFIXES, find_weights, fit, load_weights, put_weights, read

NORMALIZATIONS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "cifar10": (CIFAR_MEAN, CIFAR_STD),
    "mnist": ((0.1307,), (0.3081,)),
}
"""Mean and standard deviation of the pixels of the training images, for each channel."""

UNDERSTOOD = (
    f"{', '.join(map(repr, MODELS))}, a network ({', '.join(NETWORKS)}) with weights=, a file of weights "
    f"({', '.join(SUFFIXES)}), file.py:factory, package.module:factory, timm:NAME, torchvision:NAME or {PICKLE}FILE"
)
PACKAGES = {"timm": extras.timm_model, "torchvision": extras.torchvision_model}

File = str | PathLike[str]


def load_model(
    source: File,
    *,
    weights: File | None = None,
    normalize: str | tuple[Sequence[float], Sequence[float]] | None = None,
) -> nn.Module:
    """A model in eval mode on the CPU, in float32.

    ``source`` is one of

    - ``"mnist-standard"`` or ``"mnist-robust"``, the bundled models: the paper's network, trained on clean digits or
      adversarially;
    - a network of the zoo, ``"mnist"``, ``"cifar-resnet18"``, ``"cifar-resnet18-blur"``, ``"cifar-resnet20"``,
      ``"cifar-resnet56"``, ``"resnet50"``, ``"resnet50-keras"``, with its ``weights``;
    - a file of weights of one of these networks, ``.safetensors`` or of ``torch.save``;
    - ``"file.py:factory"`` or ``"package.module:factory"``, a function without arguments that returns a model;
    - ``"timm:NAME"`` or ``"torchvision:NAME"``, each with the extra of that name, pretrained unless ``weights`` are
      given, behind the normalisation that they were trained with;
    - ``"pickle:FILE"``, a whole model of ``torch.save``. This runs whatever code the file contains; nothing else does.

    ``normalize`` puts a :class:`Normalize` in front: ``"imagenet"``, ``"cifar10"``, ``"mnist"`` or a pair (mean, std).
    Without it, the model takes pixels in [0, 1] as they are; the ResNets of the zoo normalise by themselves.

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    name, layer = str(source), _normalization(normalize)
    model, own = _build(name, pretrained=weights is None)
    if weights is not None:
        if isinstance(model, Function) or name in MODELS or _is_weights(name):
            raise ValueError(f"weights must be left out for {name}, into which none can be put, got {weights}")
        put_weights(model, load_weights(weights), name=name, file=weights)
    layer = layer or own
    if layer is not None:
        if any(isinstance(module, Normalize) for module in model.modules()):
            raise ValueError(f"normalize must be left out for {name}, which normalises by itself, got {normalize!r}")
        model = nn.Sequential(OrderedDict(normalize=layer, model=model))
    return model.cpu().float().eval()


def model_name(source: File, weights: File | None = None) -> str:
    """What to call a model in a caption or a table: short, and never a path."""
    name = str(source)
    if name.startswith(PICKLE) or _is_weights(name):
        name = Path(name.removeprefix(PICKLE)).stem
    elif is_factory(name):
        place, _, function = name.rpartition(":")
        name = f"{Path(place).name}:{function}"
    return name if weights is None else f"{name} with {Path(str(weights).removeprefix(PICKLE)).stem}"


class Function(nn.Module):
    """Any callable as a module, for what wants one."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)


def _build(name: str, pretrained: bool) -> tuple[nn.Module, Normalize | None]:
    """The model, and the normalisation that it needs but does not contain."""
    kind, _, rest = name.partition(":")
    if name in MODELS:
        return bundled_model(name), None
    if name in NETWORKS:
        if pretrained:
            raise ValueError(f"weights must be given for the network {name}, which has none of its own")
        return NETWORKS[name](), None
    if kind in PACKAGES and rest:
        return PACKAGES[kind](rest, pretrained)
    if name.startswith(PICKLE):
        content = read(name)
        return (content if isinstance(content, nn.Module) else _recognize(name, content)), None
    path = Path(name)
    if path.is_file() and _is_weights(name):
        return _recognize(name, read(path)), None
    if is_factory(name):
        return _check_model(name, call_factory(name)), None
    if path.exists():
        hint = f" (did you mean {name}:FUNCTION?)" if path.suffix == ".py" else ""
        raise ValueError(f"{name} is no file of a model{hint}: a model must be {UNDERSTOOD}")
    raise ValueError(f"there is no model or file {name!r}: a model must be {UNDERSTOOD}")


def _is_weights(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith(PICKLE)


def _recognize(name: str, content: Any) -> nn.Module:
    """The network that weights belong to."""
    weights: Mapping[str, Tensor] = find_weights(name, content)
    with torch.device("meta"):
        fitting = [network for network, build in NETWORKS.items() if not fit(build(), weights)]
    if len(fitting) != 1:
        found = " and ".join(fitting) or f"none of {', '.join(NETWORKS)}"
        advice = "one of them" if fitting else "yours, by file.py:factory"
        raise ValueError(f"{name} must fit one network, but fits {found}: name {advice}, and give the file as weights=")
    model = NETWORKS[fitting[0]]()
    put_weights(model, weights, name=fitting[0], file=name)
    return model


def _check_model(name: str, model: Any) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    if not callable(model) or isinstance(model, type):
        found = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise ValueError(f"{name} must return an nn.Module or a callable, got {found}")
    return Function(model)


def _normalization(normalize: Any) -> Normalize | None:
    if normalize is None:
        return None
    if isinstance(normalize, str) and normalize in NORMALIZATIONS:
        return Normalize(*NORMALIZATIONS[normalize])
    if isinstance(normalize, str) or not isinstance(normalize, Sequence) or len(normalize) != 2:
        names = ", ".join(NORMALIZATIONS)
        raise ValueError(f"normalize must be one of {names} or a pair (mean, std), got {normalize!r}")
    try:
        return Normalize(*normalize)
    except (TypeError, ValueError) as error:
        raise ValueError(f"normalize must be a pair of a number for each channel: {error}") from error
