"""Models and data of the user's own code: ``file.py:factory`` and ``package.module:factory``."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


def is_factory(source: str) -> bool:
    """Whether this is written as a function in a file or in a module."""
    place, colon, name = source.rpartition(":")
    return (
        bool(colon) and name.isidentifier() and (place.endswith(".py") or bool(re.fullmatch(r"[^\W\d][\w.]*", place)))
    )


def call_factory(source: str) -> Any:
    """What the function returns, called without arguments; every error says which function of which file it was."""
    place, _, name = source.rpartition(":")
    with _importable(Path(place).resolve().parent if place.endswith(".py") else Path.cwd()):
        try:
            module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{source}: {place} cannot be imported: {_said(error)}") from error
        function = getattr(module, name, None)
        if not isinstance(function, type) and hasattr(function, "forward"):
            raise ValueError(f"{source}: {name} must be a function that returns the model, got a model")
        if not callable(function):
            found = "nothing of that name" if function is None else type(function).__name__
            raise ValueError(f"{source}: {name} in {place} must be a function without arguments, got {found}")
        try:
            return function()
        except (Exception, SystemExit) as error:
            raise ValueError(f"{source}: {name} in {place} raised {_said(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"_wasserball_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The files beside the user's are importable, as they are for ``python file.py``."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
