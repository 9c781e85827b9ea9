"""What an operator returns: the answer and, for each sample, how it was reached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

CHUNK = {"cpu": 1_000_000, "cuda": 2**24}
"""Plan entries that the reference works on at a time. On a CPU few enough that temporaries stay near the caches, which
is several times faster than a thousand images at once; on a GPU as many as keep it busy, in about a gigabyte."""


@dataclass(frozen=True)
class Solution:
    """A point of the ball and the state of the solver that found it; every state tensor is ``(B,)``.

    >>> mass, cost = torch.tensor([[[[0.0, 0.5, 0.5]]]]), wb.LocalCost(3)
    >>> first = wb.operators.project(torch.rand(cost.plan_shape(mass)), mass, 0.1, cost)
    >>> again = wb.operators.project(first.plan + 0.01, mass, 0.1, cost, lam=first.lam)
    >>> bool(again.converged)
    True
    """

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


def solve_in_chunks(
    solve: Callable[[slice], Solution], batch: int, entries: int, device: torch.device, out: Tensor | None = None
) -> Solution:
    """``solve`` for the whole batch, some samples at a time; no bit of a sample depends on which.

    ``entries`` is the size of one sample's plan. With ``out`` the plans are put there, piece by piece.
    """
    parts = []
    for some in chunks(batch, entries, device):
        part = solve(some)
        if out is not None:
            assert part.plan is not None
            out[some] = part.plan
            part = replace(part, plan=None)
        parts.append(part)
    joined = parts[0] if len(parts) == 1 else join(parts)
    return joined if out is None else replace(joined, plan=out)


def join(parts: Sequence[Solution]) -> Solution:
    """One solution for all the samples of several."""
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Solution)}
    joined: dict[str, Any] = {
        name: None if column[0] is None else torch.cat(column) for name, column in columns.items()
    }
    return Solution(**joined)


def chunks(batch: int, entries: int, device: torch.device) -> list[slice]:
    """The samples to work on at a time, where the plan of one has this many entries."""
    size = max(1, CHUNK.get(device.type, CHUNK["cuda"]) // max(1, entries))
    return [slice(first, first + size) for first in range(0, batch, size)]
