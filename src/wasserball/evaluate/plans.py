"""Transport plans as they are stored: what moves, and what is left behind where something does."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from wasserball.plan import TransportPlan
from wasserball.threat import LocalCost


@dataclass(frozen=True, eq=False)
class SparsePlans:
    """The entries of ``B`` plans ``(K, C, H, W)``, sample after sample, but for pixels that keep all of their mass.

    What a pixel keeps that sends some of its mass away is stored as well: to subtract it would round it differently,
    and next to a black pixel a certificate minds.
    """

    shape: tuple[int, ...]
    """Of one plan."""
    counts: Tensor
    """``(B,)``: how many entries each plan has."""
    entries: Tensor
    """Where in the flattened plan each entry is …"""
    values: Tensor
    """… and the mass that it moves."""

    @classmethod
    def pack(cls, plan: TransportPlan) -> Self:
        """All that moves."""
        values = plan.values
        stays = _centre(values.shape[1])
        moved = (values[:, :stays] > 0).any(1) | (values[:, stays + 1 :] > 0).any(1)
        stored = values.clone()
        stored[:, stays].masked_fill_(~moved, 0)
        stored = stored.flatten(1)
        sample, entry = stored.nonzero(as_tuple=True)
        counts = torch.bincount(sample, minlength=len(stored))
        return cls(tuple(values.shape[1:]), counts.cpu(), entry.cpu(), stored[sample, entry].cpu())

    def unpack(self, clean: Tensor, cost: LocalCost, first: int, last: int) -> TransportPlan:
        """The plans from ``first`` to ``last``."""
        begin, end = self._bounds[first], self._bounds[last]
        sample = torch.repeat_interleave(torch.arange(last - first), self.counts[first:last])
        plan = torch.zeros(last - first, math.prod(self.shape), dtype=self.values.dtype)
        plan[sample, self.entries[begin:end]] = self.values[begin:end]
        plan = plan.view(last - first, *self.shape)
        left = plan[:, _centre(self.shape[0])]
        untouched = plan.sum(1) == 0
        left[untouched] = clean[first:last].to(plan.dtype)[untouched]
        return TransportPlan(plan, cost)

    @cached_property
    def _bounds(self) -> list[int]:
        """Where the entries of each plan begin, and those of the last one end."""
        bounds: list[int] = [0, *self.counts.cumsum(0).tolist()]
        return bounds

    def moves(self, sample: int) -> tuple[Tensor, Tensor]:
        """What moves in one plan: entries and their mass."""
        begin, end = self._bounds[sample : sample + 2]
        entries, values = self.entries[begin:end], self.values[begin:end]
        leaves = entries // math.prod(self.shape[1:]) != _centre(self.shape[0])
        return entries[leaves], values[leaves]

    def tensors(self) -> dict[str, Tensor]:
        """For a safetensors file."""
        narrow = torch.int32 if math.prod(self.shape) < 2**31 else torch.int64
        return {"plan_counts": self.counts, "plan_entries": self.entries.to(narrow), "plan_values": self.values}

    @classmethod
    def of(cls, tensors: dict[str, Tensor], shape: tuple[int, ...]) -> Self:
        """What :meth:`tensors` gave, for plans of a whole batch's ``shape``; ``ValueError`` if it cannot be."""
        counts, entries, values = (tensors[f"plan_{name}"] for name in ("counts", "entries", "values"))
        size = math.prod(shape[1:])
        fits = (
            len(counts) == shape[0] and bool((counts >= 0).all()) and int(counts.sum()) == len(entries) == len(values)
        )
        if not fits or (len(entries) and not 0 <= int(entries.min()) <= int(entries.max()) < size):
            raise ValueError("its plans do not fit its images")
        return cls(tuple(shape[1:]), counts.long(), entries.long(), values)


def _centre(moves: int) -> int:
    """The move that stays: offsets are in row-major order around it."""
    return moves // 2
