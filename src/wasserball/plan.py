"""A transport plan: who sends how much where. The witness that an image lies in the ball."""

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wasserball.checks import check_floating
from wasserball.threat import Cost, DenseCost, LocalCost, WassersteinBall, check_cost


@dataclass(frozen=True, eq=False)
class TransportPlan:
    """Plan entries in the layout of their cost: ``(B, K, C, H, W)`` local, ``(B, [C,] n, n)`` dense.

    >>> mass = torch.tensor([[[[0.0, 0.5, 0.0]]]])
    >>> plan = wb.TransportPlan.identity(mass, wb.LocalCost(3))
    >>> plan.values[0, 4, 0, 0, 1], plan.values[0, 5, 0, 0, 1] = 0.3, 0.2  # stays; goes one to the right
    >>> plan.image, plan.spent
    (tensor([[[[0.0000, 0.3000, 0.2000]]]]), tensor([0.2000], dtype=torch.float64))
    """

    values: Tensor
    """The mass that each entry moves."""
    cost: Cost
    """What moving it costs, and so the layout."""

    def __post_init__(self) -> None:
        check_cost(self.cost)
        check_floating("values", self.values)
        shape = tuple(self.values.shape)
        try:
            self.cost.check_mass("mass", self._mass_like)
            fits = self.cost.plan_shape(self._mass_like) == shape
        except (ValueError, IndexError):
            fits = False
        if not fits:
            raise ValueError(f"values must have the layout of {self.cost}, got shape {shape}")

    @classmethod
    def identity(cls, mass: Tensor, cost: Cost) -> Self:
        """The plan that leaves ``mass`` where it is."""
        WassersteinBall(mass, 0.0, cost)
        return cls(cost.identity(mass), cost)

    @property
    def _mass_like(self) -> Tensor:
        return self.values.select(self.cost.axis, 0)

    @cached_property
    def row_sums(self) -> Tensor:
        """What leaves each source: the clean image."""
        return self.cost.row_sums(self.values)

    @cached_property
    def image(self) -> Tensor:
        """The column sums, what arrives at each destination: the moved image."""
        return self.cost.scatter(self.values)

    @cached_property
    def spent(self) -> Tensor:
        """``<C, Π>`` of each sample, ``(B,)`` in float64."""
        return self.cost.spent(self.values, self._mass_like)

    def dense(self) -> Tensor:
        """The full matrices, ``(B, C, H·W, H·W)`` for images: entry ``[i, j]`` goes from pixel i to pixel j."""
        if not isinstance(self.cost, LocalCost):
            return self.values
        batch, _, channels, height, width = self.values.shape
        matrix = self.values.new_zeros(batch, channels, height * width, height * width)
        source = torch.arange(height * width, device=self.values.device).view(height, width)
        _, allowed = self.cost.entries(self._mass_like)
        for k, (down, right) in enumerate(self.cost.offsets):
            inside = allowed[k, 0]
            origin = source[inside]
            matrix[:, :, origin, origin + down * width + right] = self.values[:, k, :, inside]
        return matrix

    def widen(self, window: int) -> Self:
        """The same plan in the layout of a larger window."""
        if not isinstance(self.cost, LocalCost) or window < self.cost.window:
            raise ValueError(f"window must be at least that of the plan, got {window} for {self.cost}")
        wide = replace(self.cost, window=window)
        values = self.values.new_zeros(wide.plan_shape(self._mass_like))
        values[:, [wide.offsets.index(offset) for offset in self.cost.offsets]] = self.values
        return type(self)(values, wide)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan and its cost to a safetensors file."""
        metadata, tensors = pack_cost(self.cost)
        save_file({"values": self.values.contiguous(), **tensors}, path, metadata)

    @classmethod
    def load(cls, path: str | PathLike[str], device: str | torch.device = "cpu") -> Self:
        """Read what :meth:`save` wrote."""
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                return cls(file.get_tensor("values"), unpack_cost(file))
        except (SafetensorError, TypeError) as error:
            raise ValueError(f"path must be a file written by TransportPlan.save, got {path}: {error}") from error


def pack_cost(cost: Cost) -> tuple[dict[str, str], dict[str, Tensor]]:
    """A cost as the metadata and the tensors of a safetensors file."""
    if isinstance(cost, LocalCost):
        return {"cost": json.dumps({key: asdict(cost)[key] for key in ("window", "metric", "power")})}, {}
    assert isinstance(cost, DenseCost)
    return {}, {"matrix": cost.matrix.contiguous()}


def unpack_cost(file: Any) -> Cost:
    """The cost that :func:`pack_cost` put into an open safetensors file."""
    description: str | None = (file.metadata() or {}).get("cost")
    return LocalCost(**json.loads(description)) if description else DenseCost(file.get_tensor("matrix"))
