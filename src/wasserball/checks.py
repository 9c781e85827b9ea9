"""Checks of what a user passes in: every error names the argument, the sample if there is one, and the value seen."""

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64)


def check_floating(name: str, tensor: object) -> Tensor:
    """A float32 or float64 tensor with at least one sample."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}")
    if tensor.ndim == 0 or tensor.numel() == 0:
        raise ValueError(f"{name} must hold at least one sample, got shape {tuple(tensor.shape)}")
    check_real(name, tensor)
    return tensor


def check_real(name: str, tensor: Tensor) -> None:
    """A tensor that holds real numbers: not complex, not bool, not an empty shell on the meta device."""
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must hold real numbers, got {tensor.dtype}")
    if tensor.is_meta:
        raise ValueError(f"{name} must hold values, got a tensor on the device {tensor.device}")


def check_shape(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Exactly this shape."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


class Ranges:
    """Looks at the values of several tensors with one wait for the device; at none, where they are not ``wanted``."""

    def __init__(self, wanted: bool = True) -> None:
        self.wanted = wanted
        self._asked: list[tuple[str, Tensor, float, float]] = []

    def ask(self, name: str, tensor: Tensor, low: float = -float("inf"), high: float = float("inf")) -> None:
        """Every entry is to be finite and in ``[low, high]``."""
        if self.wanted:
            self._asked.append((name, tensor, low, high))

    def check(self) -> dict[str, float]:
        """Raise ``ValueError`` for the first tensor that is not as it should be; else the largest size of each."""
        if not self._asked:
            return {}
        largest = {}
        for (name, tensor, low, high), (least, most) in zip(self._asked, _ends(*self._asked), strict=True):
            if not (low <= least and most <= high and most < float("inf") and least > -float("inf")):
                _name_the_bad_entry(name, tensor, low, high)
            largest[name] = max(-least, most)
        return largest


def _ends(*asked: tuple[str, Tensor, float, float]) -> list[list[float]]:
    """The least and the largest entry of each tensor; NaN where one is."""
    tensors = [tensor.detach() for _, tensor, _, _ in asked]
    if tensors[0].device.type == "cpu":
        # By numpy, on this thread alone: torch would wake threads that go on spinning for a while, on the cores that
        # the kernels are about to need.
        return [[float(array.min()), float(array.max())] for array in (tensor.numpy() for tensor in tensors)]
    ends: list[list[float]] = torch.stack([torch.stack(torch.aminmax(tensor)).double() for tensor in tensors]).tolist()
    return ends


def check_like(name: str, tensor: object, shape: Sequence[int], like: Tensor, ranges: Ranges | None = None) -> Tensor:
    """A finite floating tensor of this shape on the device of ``like``; ``ranges`` may look at its values later."""
    checked = check_floating(name, tensor)
    check_shape(name, checked, shape)
    if checked.device != like.device:
        raise ValueError(f"{name} must be on {like.device}, got {checked.device}")
    check_range(name, checked, ranges=ranges)
    return checked


def check_range(
    name: str,
    tensor: Tensor,
    low: float = -float("inf"),
    high: float = float("inf"),
    ranges: Ranges | None = None,
) -> None:
    """Every entry finite and in ``[low, high]``; ``ranges`` may look later."""
    chosen = Ranges() if ranges is None else ranges
    chosen.ask(name, tensor, low, high)
    if ranges is None:
        chosen.check()


def _name_the_bad_entry(name: str, tensor: Tensor, low: float, high: float) -> None:
    bad = ~(torch.isfinite(tensor) & (tensor >= low) & (tensor <= high))
    if not bad.any():  # a bound that its dtype cannot hold is met up to rounding
        return
    where = bad.nonzero()[0].tolist()
    value = tensor[tuple(where)].item()
    if low == 0 and tensor.ndim == 1:
        raise ValueError(f"{name} must be finite and >= 0: sample {where[0]} has {value!r}")
    wanted = "finite" if low == -float("inf") and high == float("inf") else f"in [{low:g}, {high:g}]"
    raise ValueError(f"{name} must be {wanted}: sample {where[0]} has {value!r} at {tuple(where[1:])}")


def check_out(out: object, like: Tensor) -> None:
    """A contiguous tensor of the shape, dtype and device of ``like``, to write to; or None."""
    if out is None:
        return
    if not isinstance(out, Tensor):
        raise ValueError(f"out must be a torch.Tensor, got {type(out).__name__}")
    check_shape("out", out, like.shape)
    if out.dtype != like.dtype or out.device != like.device or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous, {like.dtype}, on {like.device}, "
            f"got {out.dtype} on {out.device} with strides {out.stride()}"
        )


def check_per_sample(name: str, value: float | Tensor, like: Tensor, ranges: Ranges | None = None) -> Tensor:
    """A non-negative number, or one for each sample, as a float64 tensor ``(B,)`` on the device of ``like``.

    ``ranges`` may look at the values of a tensor later.
    """
    batch = like.shape[0]
    if isinstance(value, Tensor):
        check_real(name, value)
        numbers = value.detach().to(device=like.device, dtype=torch.float64)
        if numbers.ndim and tuple(numbers.shape) != (batch,):
            raise ValueError(f"{name} must be a number or have shape ({batch},), got {tuple(numbers.shape)}")
        numbers = numbers.expand(batch).contiguous()
        if ranges is None or ranges.wanted:
            numbers = numbers.clone()  # whatever becomes of the caller's
    elif isinstance(value, Real) and not isinstance(value, bool):
        if not 0 <= float(value) < float("inf"):
            raise ValueError(f"{name} must be finite and >= 0: sample 0 has {float(value)!r}")
        return torch.full((batch,), float(value), dtype=torch.float64, device=like.device)
    else:
        raise ValueError(f"{name} must be a number or a tensor ({batch},), got {value!r}")
    check_range(name, numbers, 0, ranges=ranges)
    return numbers


def check_positive(name: str, value: float) -> float:
    """A finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
    return float(value)


def check_tolerance(name: str, value: float) -> float:
    """A relative tolerance: a number between zero and one, neither included."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise ValueError(f"{name} must be a number in (0, 1), got {value!r}")
    return float(value)


def check_count(name: str, value: int) -> int:
    """A whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
    return value


def check_bounds(bounds: Sequence[float]) -> float:
    """``(0, high)``, returned as ``high``: mass is measured from zero, so no other lower bound makes sense."""
    if not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise ValueError(f"bounds must be a pair (0, high), got {bounds!r}")
    if bounds[0] != 0:
        raise ValueError(f"bounds must start at 0, since mass is measured from 0, got {tuple(bounds)!r}")
    return check_positive("bounds[1]", bounds[1])
