"""Where the last attack on each training sample went, for the next one to begin there."""

import torch
from torch import Tensor

from wasserball.attacks.drill import Lead
from wasserball.evaluate.workers import Workers


class Memory:
    """A direction for each sample, in half precision: two bytes a pixel.

    From one epoch to the next a model changes little, and so does the way to fool it. An attack that begins where the
    last one ended (as Zheng et al. 2020 do with images in norm balls) gets as far in few steps as others in many.
    """

    def __init__(self, count: int, shape: torch.Size, device: torch.device) -> None:
        self.values = torch.zeros(count, *shape, dtype=torch.float16, device=device)
        self._visited = torch.zeros(count, dtype=torch.bool, device=device)

    def recall(self, places: Tensor, *, known: bool) -> Lead:
        """Of some samples, all of which were attacked before or none."""
        return Lead(self.values[places].float(), known)

    def keep(self, places: Tensor, lead: Lead) -> None:
        """What an attack has left."""
        self.values[places] = lead.direction.to(self.values.dtype)
        self._visited[places] = True

    def share(self, workers: Workers) -> None:
        """What the others have seen since the last time; nobody has seen a sample that another has."""
        if workers.count > 1:
            mine = self._visited.view(-1, *(1,) * (self.values.ndim - 1))
            self.values = workers.sum(torch.where(mine, self.values, 0).float()).to(self.values.dtype)
        self._visited.zero_()

    def restore(self, values: Tensor) -> None:
        """Go on from there."""
        self.values = values.to(self.values.device, copy=True)
        self._visited.zero_()
