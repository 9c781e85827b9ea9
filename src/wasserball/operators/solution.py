"""What an operator returns: the answer and, for each sample, how it was reached."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

CHUNK = 1_000_000
"""Plan entries that are worked on at a time on a CPU: few enough that temporaries stay near the caches, several times
faster than a thousand images at once."""


@dataclass(frozen=True)
class Solution:
    """A point of the ball and the state of the solver that found it; every state tensor is ``(B,)``."""

    plan: Tensor | None
    """The transport plan in the layout of its cost, where one was asked for."""
    image: Tensor
    """Its column sums."""
    lam: Tensor
    """The dual variable of the budget, in float64; pass it back in as ``lam`` to warm-start."""
    spent: Tensor
    """``<C, Π>`` of the plan as returned, in float64."""
    iterations: Tensor
    """How often the dual was evaluated."""
    converged: Tensor
    """Whether the tolerance was reached."""
    gap: Tensor
    """Primal minus dual objective, in float64: how far from optimal the answer can be at most."""
    mu: Tensor | None = None
    """The dual variables of the pixel box, shaped like the image, where there is one."""


def solve_in_chunks(solve: Callable[[slice], Solution], batch: int, entries: int, device: torch.device) -> Solution:
    """``solve`` for the whole batch, some samples at a time on a CPU; no bit of a sample depends on which.

    ``entries`` is the size of one sample's plan.
    """
    parts = [solve(some) for some in chunks(batch, entries, device)]
    if len(parts) == 1:
        return parts[0]
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Solution)}
    joined: dict[str, Any] = {
        name: None if column[0] is None else torch.cat(column) for name, column in columns.items()
    }
    return Solution(**joined)


def chunks(batch: int, entries: int, device: torch.device) -> list[slice]:
    """The samples to work on at a time, where the plan of one has this many entries."""
    size = max(1, CHUNK // entries) if device.type == "cpu" else batch
    return [slice(first, first + size) for first in range(0, batch, size)]
