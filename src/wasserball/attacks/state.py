"""Where an attack stands: tensors with a row for each sample that it has not fooled yet."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from wasserball.operators.solution import chunks


def keep(state: Any, held: Tensor) -> None:
    """Reduce all tensors of a dataclass to some of their rows, ``held``, ascending; one tensor after the other.

    Plans, by far the largest, in place: there is no room for two copies of one.
    """
    for item in fields(state):
        value = getattr(state, item.name)
        if isinstance(value, Tensor):
            setattr(state, item.name, compact_(value, held) if item.name.endswith("plan") else value[held])


def compact_(values: Tensor, held: Tensor) -> Tensor:
    """``values[held]`` for ascending ``held``, moved to the front of ``values``, piece by piece.

    A row never moves backwards over one that is still to be read: the n-th of them comes from place n or later.
    """
    for some in chunks(len(held), values.shape[1:].numel(), values.device):
        values[some.start : min(some.stop, len(held))] = values[held[some]]
    return values[: len(held)]
