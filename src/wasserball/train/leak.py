"""ReLUs that let a little through below 0 while a network is young, so that none of its units is lost for good."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Leak:
    """Adds ``slope · min(x, 0)`` to what the ReLUs of a model return, while it is :meth:`open`.

    A unit that is 0 for all images has no gradient and never comes back: of the hundred in the paper's network a sixth
    had ended so. With a slope that falls to 0 the network ends as the one that it is without.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.relus = [module for module in model.modules() if isinstance(module, nn.ReLU)]
        if not self.relus:
            raise ValueError("leak must be 0 for a model that has no nn.ReLU among its modules")
        self.slope = torch.zeros((), device=device)
        """A tensor, which a recorded CUDA graph reads anew each time."""
        self._open = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, the ReLUs ask; outside they are as they were found."""
        places = [module.inplace for module in self.relus]
        hooks = [module.register_forward_hook(self._add) for module in self.relus]
        try:
            for module in self.relus:
                module.inplace = False  # or what was below 0 would be gone
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for module, inplace in zip(self.relus, places, strict=True):
                module.inplace = inplace

    @contextmanager
    def open(self) -> Iterator[None]:
        """For the passes in between: those that train and attack, not those that judge."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def _add(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + self.slope * inputs[0].clamp(max=0) if self._open else output
