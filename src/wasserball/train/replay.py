"""The attack on a batch, recorded once and replayed: for networks that take less time than it takes to launch them."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wasserball.attacks import Attack
from wasserball.attacks.drill import Lead
from wasserball.attacks.inner import inner_maximum

WARM_UPS = 3
"""Runs before a recording, in which libraries choose their kernels and reserve their memory."""


class Recording(NamedTuple):
    """A CUDA graph with the places that it reads from and writes to."""

    graph: torch.cuda.CUDAGraph
    images: Tensor
    labels: Tensor
    eps: Tensor
    lead: Lead | None
    adversarial: Tensor


class Replay:
    """:func:`inner_maximum`, one recording for each shape of batch, and with a lead and without.

    A recording sees the weights as they are when it is played, but not what Python would do: a model whose forward
    pass chooses its way, other than by its tensors, is not for this.
    """

    def __init__(self, attack: Attack, model: nn.Module) -> None:
        self.attack, self.model = attack, model
        self._recordings: dict[tuple[tuple[int, ...], bool | None], Recording] = {}

    def __call__(self, images: Tensor, labels: Tensor, eps: Tensor, lead: Lead | None = None) -> Tensor:
        """The adversarial images; the next call for such a batch overwrites them."""
        key = tuple(images.shape), None if lead is None else lead.known
        if key not in self._recordings:
            self._recordings[key] = self._record(images, labels, eps, lead)
        played = self._recordings[key]
        for place, value in zip((played.images, played.labels, played.eps), (images, labels, eps), strict=True):
            place.copy_(value)
        if lead is None or played.lead is None:
            played.graph.replay()
            return played.adversarial
        played.lead.direction.copy_(lead.direction)
        played.graph.replay()
        lead.direction.copy_(played.lead.direction)
        return played.adversarial

    def _record(self, images: Tensor, labels: Tensor, eps: Tensor, lead: Lead | None) -> Recording:
        own_lead = None if lead is None else replace(lead, direction=lead.direction.clone())
        places = images.clone(memory_format=torch.contiguous_format), labels.clone(), eps.clone(), own_lead
        own = torch.cuda.Stream(images.device)  # type: ignore[no-untyped-call]
        own.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(own):
            for _ in range(WARM_UPS):
                inner_maximum(self.attack, self.model, *places)
        torch.cuda.current_stream(images.device).wait_stream(own)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            adversarial = inner_maximum(self.attack, self.model, *places)
        return Recording(graph, *places, adversarial)
