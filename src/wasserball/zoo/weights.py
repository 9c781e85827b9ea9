"""Weights from files, and into models: nothing of a file is run unless its user asks for that by ``pickle:``."""

import pickle
import re
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

PICKLE = "pickle:"
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
NESTS = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
"""Under which a checkpoint keeps the weights beside what else it keeps."""
PREFIXES = ("module.", "_orig_mod.")
"""Of nn.DataParallel and of torch.compile: before every key or before none."""
BEHIND = "model."
"""Before the keys of a model that was saved together with the normalisation in front of it."""
SHOWN = 3
"""Of the keys that do not fit."""


def load_weights(path: str | PathLike[str]) -> dict[str, Tensor]:
    """The weights in a ``.safetensors`` file or one of ``torch.save``, on the CPU, floating ones in float32.

    They may be nested in a checkpoint, and may come from ``nn.DataParallel`` or ``torch.compile``. Files are read with
    ``weights_only=True``: one that holds more than tensors is refused. ``"pickle:FILE"`` unpickles it, which runs
    whatever code it contains.
    """
    return find_weights(path, read(path))


def read(path: str | PathLike[str]) -> Any:
    """What is in a file: whole, for ``pickle:FILE``, else tensors alone."""
    name = str(path)
    trusted, file = name.startswith(PICKLE), Path(name.removeprefix(PICKLE))
    if not file.is_file():
        raise FileNotFoundError(f"weights must be a file, there is none called {file}")
    if trusted:
        return _unpickle(file)
    return _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)


def find_weights(path: str | PathLike[str], content: Any) -> dict[str, Tensor]:
    """The weights in what a file holds."""
    weights = _unnest(content)
    if not weights:
        found = ", ".join(map(str, list(content)[:SHOWN])) if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(
            f"{path} must hold tensors by name, possibly under {', '.join(NESTS)}, got {found or 'nothing'}"
        )
    while prefix := next((p for p in PREFIXES if all(key.startswith(p) for key in weights)), ""):
        weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    return {key: value.float() if value.is_floating_point() else value for key, value in weights.items()}


def fit(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """What keeps the weights from being the model's, in words; nothing if they fit."""
    own = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in weights.items()}
    missing = [key for key in own if key not in given and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in given if key not in own]
    shapes = [f"{key} {given[key]} for {own[key]}" for key in own if key in given and own[key] != given[key]]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    return [f"{kind}: {_some(keys)}" for kind, keys in kinds.items() if keys]


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], *, name: str, file: str | PathLike[str]) -> None:
    """The weights into the model, all of them or an error."""
    inner = {key.removeprefix(BEHIND): value for key, value in weights.items()}
    if fit(model, weights) and not fit(model, inner):
        weights = inner
    complaints = fit(model, weights)
    if complaints:
        raise ValueError(f"weights {file} do not fit {name}: {'; '.join(complaints)}")
    model.load_state_dict(weights, strict=False)  # counters of batches may be missing: they are of no use here


def _some(words: list[str]) -> str:
    rest = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _unnest(content: Any) -> dict[str, Tensor] | None:
    if isinstance(content, nn.Module):
        return dict(content.state_dict())
    if not isinstance(content, Mapping):
        return None
    for nest in NESTS:
        if isinstance(content.get(nest), Mapping | nn.Module):
            return _unnest(content[nest])
    whole = all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items())
    return dict(content) if whole else None


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file, or a part of one: {error}") from error


def _read_torch(file: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # on what else the file might be
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # there is no end to what a broken file raises
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        with file.open("rb") as opened:
            start = opened.read(2)
        is_pickle = start[:1] == pickle.PROTO or (start == b"PK" and isinstance(error, pickle.UnpicklingError))
        if wanted or is_pickle or "TorchScript" in str(error):
            what = f"a pickle that asks for {wanted[1]}" if wanted else "a pickle of more than tensors, or a program"
            raise ValueError(
                f"{file} does not hold weights alone, but {what}. Nothing of it was run. If you trust whoever made it, "
                f"{PICKLE}{file} runs it"
            ) from error
        reason = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
        raise ValueError(f"{file} is no file of weights, or a part of one: {reason}") from error


def _unpickle(file: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            return torch.load(file, map_location="cpu", weights_only=False)
    except Exception as error:  # of the user's code as well
        raise ValueError(f"{file} cannot be unpickled: {type(error).__name__}: {error}") from error
