"""Sums whose order of additions depends on the length alone, never on the batch or the number of threads.

``torch.sum`` splits a reduction over threads (or blocks) by the shape of the whole tensor, so the last bits of one
sample's sum change with its batch mates. Folding a tensor onto itself with element-wise additions does not.
It is also a pairwise sum, whose rounding error grows with the logarithm of the length.
"""

import torch
from torch import Tensor


def ordered_sum(values: Tensor, dim: int) -> Tensor:
    """Sum over ``dim`` by folding the second half onto the first until one entry is left."""
    length = values.shape[dim]
    if length == 0:
        return torch.zeros_like(values.sum(dim))
    while length > 1:
        half = length // 2
        folded = values.narrow(dim, 0, half) + values.narrow(dim, half, half)
        if length % 2:
            folded.narrow(dim, 0, 1).add_(values.narrow(dim, length - 1, 1))
        values, length = folded, half
    return values.select(dim, 0)


def sample_sum(values: Tensor) -> Tensor:
    """Sum everything but the first (batch) dimension: ``(B, ...) -> (B,)``."""
    return ordered_sum(values.reshape(values.shape[0], -1), 1)
