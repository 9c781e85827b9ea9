"""The processes that share a run: one alone, or those that ``torchrun`` started, on one machine or several."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")
PATIENCE = timedelta(days=30)
"""For processes that wait for each other: an attack takes as long as it takes, and torchrun notices who died."""

LAUNCHED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
"""What torchrun tells its processes."""


@dataclass(frozen=True)
class Workers:
    """How many processes there are, and which of them this is."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that speaks for all."""
        return self.rank == 0

    def first(self, act: Callable[[], T]) -> T:
        """Let the leader act, the others after it have the same: an error of the leader is everybody's."""
        if self.count == 1:
            return act()
        message: list[Any] = [None, None]
        if self.leads:
            try:
                message[0] = act()
            except Exception as error:
                message[1] = error
        dist.broadcast_object_list(message, src=0)
        if message[1] is not None:
            raise message[1]
        outcome: T = message[0]
        return outcome

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def join_workers() -> Iterator[Workers]:
    """The workers that torchrun's environment speaks of; without it, this process alone.

    What they tell each other is small and in main memory, so gloo is enough on any device.
    """
    # Some schedulers set a WORLD_SIZE for whatever they start; without the rest it is none of ours.
    launched = dist.is_available() and os.environ.keys() >= LAUNCHED
    if not launched or int(os.environ["WORLD_SIZE"]) == 1:
        yield Workers()
        return
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Workers(dist.get_rank(), dist.get_world_size())
    finally:
        if ours:
            dist.destroy_process_group()
