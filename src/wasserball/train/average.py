"""A moving average of weights, which is often more robust than any of those that it is made of."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

YOUNG = 10
"""In the first steps the average is of fewer: it would else be of the random weights of the beginning."""


class Average:
    """``average ← decay · average + (1 − decay) · weights``, and of buffers likewise; whole numbers as they are."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step ``step``, from 0."""
        decay = min(self.decay, (1 + step) / (YOUNG + step))
        mine: list[Tensor] = []
        theirs: list[Tensor] = []
        for name, tensor in self.model.state_dict().items():
            if tensor.is_floating_point():
                mine.append(self.tensors[name])
                theirs.append(tensor.detach())
            else:
                self.tensors[name].copy_(tensor)
        torch._foreach_lerp_(mine, theirs, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the averaged weights; afterwards it has its own again."""
        own = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.tensors)
        try:
            yield
        finally:
            self.model.load_state_dict(own)
