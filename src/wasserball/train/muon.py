"""The optimiser Muon, for matrices and convolutions (torch 2.9 and later have one, for matrices alone)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

MOMENTUM = 0.95
SCALE = 0.2
"""Of the entries of a step, over those of a step of Adam: with it one rate serves both (Liu et al. 2025)."""
BETAS, SMALL = (0.9, 0.999), 1e-8
"""Of Adam, as torch has them."""
QUINTIC = 3.4445, -4.7750, 2.0315
"""Of Jordan et al.: five rounds take any singular value from 0.01 to 1 to about 1."""
ROUNDS = 5


class Muon(Optimizer):
    """A step for a layer's weights is its momentum with all singular values made alike, so that it moves in many
    directions at once and not in the few that all samples agree on (Jordan et al. 2024).

    What is no matrix, and the last layer, whose rows are classes, take steps of Adam, without decay. The others' decay
    is no part of their gradient, whose size would not matter, but shrinks the weights themselves (Loshchilov & Hutter
    2019).
    """

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        layers = [parameter for parameter in parameters if parameter.ndim >= 2][:-1]
        ours = {id(parameter) for parameter in layers}
        others = [parameter for parameter in parameters if id(parameter) not in ours]
        turned, straight = dict(params=layers, weight_decay=weight_decay), dict(params=others, weight_decay=0.0)
        groups = [group | dict(turned=group is turned) for group in (turned, straight) if group["params"]]
        super().__init__(groups, dict(lr=lr))

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take one."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    step = (self._turned if group["turned"] else self._adam)(parameter, parameter.grad)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step, alpha=group["lr"])

    def _turned(self, parameter: Tensor, slope: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        speed: Tensor = state["momentum"].lerp_(slope, 1 - MOMENTUM)
        matrix = torch.lerp(slope, speed, MOMENTUM).flatten(1)  # Nesterov's
        return orthogonal(matrix).mul_(SCALE * math.sqrt(max(matrix.shape))).view_as(parameter)

    def _adam(self, parameter: Tensor, slope: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state |= dict(step=torch.zeros(()), mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state["step"] += 1
        first, second = BETAS
        mean: Tensor = state["mean"].lerp_(slope, 1 - first)
        square = state["square"].mul_(second).addcmul_(slope, slope, value=1 - second)
        taken = int(state["step"])
        size: Tensor = (square / (1 - math.pow(second, taken))).sqrt_().add_(SMALL)
        return mean.div(1 - math.pow(first, taken)).div_(size)


def orthogonal(matrix: Tensor) -> Tensor:
    """The singular vectors of a matrix with values near 1, by Newton and Schulz's iteration."""
    first, third, fifth = QUINTIC
    wide: Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / torch.linalg.matrix_norm(wide).clamp(min=torch.finfo(matrix.dtype).tiny)
    for _ in range(ROUNDS):
        square = wide @ wide.T
        inner = torch.addmm(square, square, square, beta=third, alpha=fifth)
        wide = torch.addmm(wide, inner, wide, beta=first)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
