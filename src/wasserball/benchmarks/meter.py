"""Stop watch and scales: how long something takes on a device, how much memory it needs, how fast that memory is."""

import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Meter:
    """What measures on one device, and with how much patience."""

    device: torch.device
    repeats: int = 7
    """Rounds at most."""
    patience: float = 10.0
    """Seconds after which no further round begins."""
    burst: float = 0.05
    """Seconds in a round for which something short is repeated."""
    in_a_loop: int = 10
    """Calls in a row of what is to be measured as in a loop."""
    copied: int = 2**29
    """Bytes of the copy that shows the bandwidth: more than any cache holds."""

    def wait(self) -> None:
        """Until the device has done all that it was given to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], calls: int = 1) -> float:
        """Of one call, where as many follow each other."""
        self.wait()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        self.wait()
        return (time.perf_counter() - start) / calls

    def race(self, *works: Callable[[], Answer], loops: Collection[int] = ()) -> list[tuple[float, Answer]]:
        """The median time of each in milliseconds, and what came out. Those numbered in ``loops`` are called several
        times in a row: as in a loop, a GPU can work on one while the host prepares the next.

        A first run, which is not counted, compiles and warms up. Then all take turns, so that a ratio of two times does
        not depend on what else the machine did meanwhile.
        """
        answers = [work() for work in works]
        times: list[list[float]] = [[] for _ in works]
        spent = 0.0
        for _ in range(self.repeats):
            for number, (work, seen) in enumerate(zip(works, times, strict=True)):
                calls = self.in_a_loop if number in loops else 1
                enough = spent + self.burst
                while True:
                    seen.append(self.seconds(work, calls))
                    spent += calls * seen[-1]
                    if spent + calls * seen[-1] > enough:
                        break
            if spent > self.patience:
                break
        return [(1e3 * median(seen), answer) for seen, answer in zip(times, answers, strict=True)]

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """The most memory that the tensors of ``work`` took at once, beyond those that were there before.

        On a CPU what kernels put aside for themselves outside of torch is not seen.
        """
        if self.device.type != "cuda":
            memory = PeakMemory()
            with memory:
                work()
            return memory.peak
        self.wait()
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        self.wait()
        return int(torch.cuda.max_memory_allocated(self.device)) - before

    def bandwidth(self) -> float:
        """Bytes a second, read and written together, of the fastest of a few large copies."""
        source = torch.zeros(self.copied, dtype=torch.uint8, device=self.device)
        goal = torch.ones_like(source)
        return 2 * self.copied / min(self.seconds(lambda: goal.copy_(source)) for _ in range(self.repeats + 1))


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes of tensors, made while it was active, that were alive at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What goes in was there before, unless it is known already.
        older = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        self.count(result, older)
        return result

    def count(self, result: Any, older: Collection[int] = ()) -> None:
        """Add the tensors of a result, but for those that were there before."""
        for leaf in tree_leaves(result):
            if not isinstance(leaf, Tensor):
                continue
            storage = leaf.untyped_storage()
            if storage._cdata not in self.known and storage._cdata not in older:
                self.known.add(storage._cdata)
                self.alive += storage.nbytes()
                self.peak = max(self.peak, self.alive)
                weakref.finalize(storage, self._release, storage._cdata, storage.nbytes())

    def _release(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size
