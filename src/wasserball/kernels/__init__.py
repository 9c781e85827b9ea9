"""The few row-wise kernels that every operator stands on, and the choice between their implementations.

``reference`` (torch) works for every cost and device and is what the others are compared with; ``numba`` is for local
costs on a CPU, ``cuda`` for local costs on an NVIDIA GPU. Called by operators only.
"""

from functools import cache
from importlib import import_module
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from wasserball.kernels.interface import Kernels
from wasserball.threat import Cost, LocalCost

Backend = Literal["torch", "numba", "cuda"]
WIDEST_ON_CUDA = 11
"""A thread holds all moves of a pixel in its registers; those of a larger window do not fit, and compile for long."""


def choose(backend: Backend | None, cost: Cost, *tensors: Tensor) -> Kernels | None:
    """The fast kernels for these tensors; None where the reference has to do it.

    ``backend=None`` takes the fastest that there is for the device. A backend that is asked for and cannot be had is an
    error; but whichever is asked for, dense costs, tensors of mixed types and, on a GPU, windows beyond 11 are left to
    the reference.
    """
    if backend is not None and backend not in get_args(Backend):
        raise ValueError(f"backend must be None or one of {', '.join(get_args(Backend))}, got {backend!r}")
    device = tensors[0].device.type
    if backend is None:
        backend = "numba" if device == "cpu" else "cuda" if device == "cuda" else "torch"
        if backend != "torch" and _missing(backend) is not None:
            return None
    if backend == "torch":
        return None
    if (device == "cuda") != (backend == "cuda"):
        raise ValueError(f'backend must fit the device of the tensors, got "{backend}" for tensors on {device}')
    if (problem := _missing(backend)) is not None:
        raise ValueError(f'backend must be available, got "{backend}": {problem}')
    if not isinstance(cost, LocalCost) or len({tensor.dtype for tensor in tensors}) > 1:
        return None
    if backend == "cuda" and cost.window > WIDEST_ON_CUDA:
        return None
    return cast(Kernels, import_module("wasserball.kernels.cpu" if backend == "numba" else "wasserball.kernels.cuda"))


@cache
def _missing(backend: Backend) -> str | None:
    """What a backend lacks on this machine, in words."""
    if backend == "numba":
        try:
            import_module("numba")
        except ImportError as error:
            return f"pip install numba ({error})"
        return None
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "torch sees no NVIDIA GPU"
    from wasserball.kernels.cuda.nvrtc import missing

    return missing()
