"""Several processes that train one model: each on its part of every batch, all with the same weights."""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from wasserball.evaluate.workers import Workers

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_names = inspect.signature(DistributedDataParallel).parameters
OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _names else "broadcast_buffers": False
}
"""Each process keeps its own, which are alike; newer releases of torch warn of the older name."""


def backend_for(device: torch.device) -> str:
    """Who carries the gradients: NCCL where each process has a GPU of its own, which it insists on."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    enough = device.type == "cuda" and processes <= torch.cuda.device_count()
    return "cpu:gloo,cuda:nccl" if enough and dist.is_nccl_available() else "gloo"


@contextmanager
def together(model: nn.Module, workers: Workers) -> Iterator[nn.Module]:
    """The model as it learns from the batches of all workers: their gradients are averaged, and their batch norms see
    all of a batch."""
    if workers.count == 1:
        yield model
        return
    norms = [(module, type(module)) for module in model.modules() if type(module) in NORMS]
    try:
        for module, _ in norms:
            module.__class__ = WholeBatchNorm
        learner = DistributedDataParallel(model, **OWN_BUFFERS)
        try:
            yield learner
        finally:
            # The last one to hold the process group takes it down: were that the reducer, it would wait for threads
            # that wait for Python's lock, which it does not let go of.
            del learner.reducer, learner.logger
    finally:
        for module, kind in norms:
            module.__class__ = kind


class WholeBatchNorm(_BatchNorm):
    """A batch norm over the batches of all workers; torch's own is for GPUs alone."""

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(features, mean, variance, self.weight, self.bias, mean is None, 0.0, self.eps)
        axes = [axis for axis in range(features.ndim) if axis != 1]
        wide = features.double() if features.dtype == torch.float64 else features.float()
        count = wide.new_tensor([features.numel() // features.shape[1]])
        mean = _sum_of_all(torch.cat([wide.sum(axes), count]))
        size = mean[-1].detach()
        mean = mean[:-1] / size
        shape = [1, -1, *(1,) * (features.ndim - 2)]
        centred = wide - mean.view(shape)
        # Twice through the features: the variance as a difference of squares would lose digits.
        variance = _sum_of_all(centred.square().sum(axes)) / size
        self._remember(mean.detach(), variance.detach() * size / (size - 1).clamp(min=1))
        answer = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            answer = answer * self.weight.view(shape) + self.bias.view(shape)
        return answer.to(features.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


def _sum_of_all(values: Tensor) -> Tensor:
    """Over the workers; what comes back to one of them comes from all."""
    from torch.distributed.nn.functional import all_reduce

    total: Tensor = all_reduce(values)  # type: ignore[no-untyped-call]
    return total
