"""The processes that share a run: one alone, or those that ``torchrun`` started, on one machine or several."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""For processes that wait for each other: an attack takes as long as it takes, and torchrun notices who died."""
LAUNCHED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
"""What torchrun tells its processes."""
PAUSE = 0.02
"""Seconds between two looks at the others."""


class Store(Protocol):
    """What is needed of torch.distributed's."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


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
        with _missing_nobody():
            dist.broadcast_object_list(message, src=0)
        if message[1] is not None:
            raise message[1]
        outcome: T = message[0]
        return outcome

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            with _missing_nobody():
                dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """The sum of what all have, in place."""
        if self.count > 1:
            with _missing_nobody():
                dist.all_reduce(values)
        return values


@contextmanager
def join_workers(backend: str = "gloo") -> Iterator[Workers]:
    """The workers that torchrun's environment speaks of; without it, this process alone.

    What the workers of an evaluation tell each other is small and in main memory, so gloo is enough on any device.
    """
    # Some schedulers set a WORLD_SIZE for whatever they start; without the rest it is none of ours.
    launched = dist.is_available() and os.environ.keys() >= LAUNCHED
    if not launched or int(os.environ["WORLD_SIZE"]) == 1:
        yield Workers()
        return
    ours = not dist.is_initialized()
    if ours:
        _begin(backend)
    try:
        yield Workers(dist.get_rank(), dist.get_world_size())
    finally:
        if ours:
            dist.destroy_process_group()


def _begin(backend: str) -> None:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
    with _missing_nobody():
        own = PrefixStore(meet(PrefixStore("wasserball", store), rank, count), store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=PATIENCE)


def meet(store: Store, rank: int, count: int) -> str:
    """A name for the present company, which no earlier one had: wait until all of it is here.

    torchrun keeps one store when it starts the workers again, and what the dead have left there would be taken for the
    addresses of the living. So each worker calls out a word of its own, the leader reads out the words that it has
    heard, and who hears theirs says so; once all have, that list is the name. Words of the dead are never answered.
    """
    word = uuid4().hex
    store.set(f"word {rank}", word)
    heard = ""
    while True:
        if rank == 0:
            words = " ".join(store.get(f"word {other}").decode() for other in range(count))
            if words != heard:
                heard = words
                store.set("heard", words)
            if all(_look(store, f"answer {other}") == heard for other in range(1, count)):
                store.set("company", heard)
                return heard
        else:
            company, heard = _look(store, "company"), _look(store, "heard")
            if word in company.split():
                return company
            if word in heard.split():
                store.set(f"answer {rank}", heard)
        time.sleep(PAUSE)


def _look(store: Store, key: str) -> str:
    """What is there under a key, without waiting for it."""
    return store.get(key).decode() if store.check([key]) else ""


@contextmanager
def _missing_nobody() -> Iterator[None]:
    """A worker that died is said to have died."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ConnectionError(f"another worker is gone, start again with --resume ({reason})") from error
