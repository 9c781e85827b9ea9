"""The kernels for local costs on a CPU: samples shared out to threads that run machine code made by numba."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import count

import numpy as np
import torch
from torch import Tensor

from wasserball.kernels.cpu import ball, entropic, exact, sinkhorn
from wasserball.kernels.cpu.layout import Array, Grid
from wasserball.kernels.interface import Boxed, Mixture, Projected, SinkhornDual
from wasserball.threat import LocalCost

CHUNKS = 4
"""How many pieces of the batch each thread gets: some samples take longer than others."""


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="wasserball")


# Threads do not survive a fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _share_out(work: Callable[[int, int], None], batch: int) -> None:
    """``work(first, last)`` on all samples, with as many threads as torch uses.

    These are threads of our own that sleep when there is nothing to do: a second OpenMP pool would spin beside torch's.
    """
    workers = min(torch.get_num_threads(), batch)
    size = max(1, batch // (CHUNKS * workers)) if workers > 1 else batch
    starts = count(0, size)

    def run() -> None:
        while (first := next(starts)) < batch:
            work(first, min(first + size, batch))

    helpers = [_pool(workers - 1).submit(run) for _ in range(workers - 1)] if workers > 1 else []
    try:
        run()
    finally:
        wait(helpers)  # nobody writes to tensors after the call, not even where it fails
    for helper in helpers:
        helper.result()


@lru_cache(maxsize=32)
def _grid(cost: LocalCost, height: int, width: int) -> Grid:
    moves = [k for _, members in cost.shells for k in members]
    reach = cost.window // 2
    line = width + 2 * reach
    offsets = [cost.offsets[k] for k in moves]
    return Grid(
        height,
        width,
        reach,
        np.array(moves),
        np.array([(reach + down) * line + reach + right for down, right in offsets]),
        np.array([cost.prices[k] for k in moves[1::4]], dtype=np.float64),
        np.cumsum([0, *(len(members) for _, members in cost.shells)]),
        np.array([price for price, _ in cost.shells], dtype=np.float64),
    )


def _lines(tensor: Tensor, *shape: int) -> Array:
    """A tensor as a contiguous array of one line for each sample (and move); ``(B,)`` as it is."""
    array: Array = tensor.detach().contiguous().numpy()
    return array.reshape(*shape, -1) if tensor.ndim > 1 else array


def _fresh(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def _answer(mass: Tensor, budget: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for the image, and for λ, spending, iterations, converged and gap of each sample."""
    counts, done = torch.empty_like(budget, dtype=torch.int64), torch.empty_like(budget, dtype=torch.bool)
    return _fresh(mass), _fresh(budget), _fresh(budget), counts, done, _fresh(budget)


def project(
    plan: Tensor,
    gradient: Tensor | None,
    step: Tensor | None,
    mass: Tensor,
    budget: Tensor,
    cost: LocalCost,
    lam: Tensor | None,
    tol: float,
    out: Tensor | None,
) -> Projected:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    batch, moves = plan.shape[:2]
    if gradient is None or step is None:
        gradient, step = torch.zeros_like(mass), torch.zeros_like(budget)
    start = torch.zeros_like(budget) if lam is None else lam
    found = Projected(_fresh(plan) if out is None else out, *_answer(mass, budget))
    given = _lines(plan, batch, moves), _lines(gradient, batch), step.numpy(), _lines(mass, batch), budget.numpy()
    search = start.numpy(), tol, _grid(cost, *mass.shape[2:])
    written = _lines(found.plan, batch, moves), *(_lines(tensor, batch) for tensor in found[1:])
    _share_out(lambda first, last: ball.project(first, last, *given, *search, *written), batch)
    return found


def box_step(
    plan: Tensor,
    gradient: Tensor,
    step: Tensor,
    mass: Tensor,
    budget: Tensor,
    cost: LocalCost,
    high: float,
    lam: Tensor,
    mu: Tensor,
    rounds: int,
    out: Tensor | None,
) -> Boxed:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    batch, moves = plan.shape[:2]
    found = Boxed(
        _fresh(plan) if out is None else out,
        _fresh(mass),
        _fresh(budget),
        _fresh(mass),
        _fresh(budget),
        torch.empty_like(budget, dtype=torch.bool),
    )
    given = _lines(plan, batch, moves), _lines(gradient, batch), step.numpy(), _lines(mass, batch), budget.numpy()
    duals = lam.numpy(), _lines(mu, batch), high, rounds, _grid(cost, *mass.shape[2:])
    written = _lines(found.plan, batch, moves), *(_lines(tensor, batch) for tensor in found[1:])
    _share_out(lambda first, last: ball.box_step(first, last, *given, *duals, *written), batch)
    return found


def exact_oracle(gradient: Tensor, mass: Tensor, budget: Tensor, cost: LocalCost, accuracy: float) -> Mixture:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    batch, grid = len(mass), _grid(cost, *mass.shape[2:])
    found = _answer(mass, budget)
    rows = _lines(mass, batch)
    low, high = (np.zeros(rows.shape, np.int16) for _ in range(2))
    part = np.empty(batch)
    given = _lines(gradient, batch), rows, budget.numpy(), accuracy, grid
    written = *(_lines(tensor, batch) for tensor in found), low, high, part
    _share_out(lambda first, last: exact.minimize(first, last, *given, *written), batch)

    def blend(plan: Tensor, keep: Tensor, share: Tensor) -> None:
        goal = rows, low, high, part
        lines, kept, added = _lines(plan, batch, plan.shape[1]), keep.numpy(), share.numpy()
        _share_out(lambda first, last: exact.blend(first, last, lines, kept, added, *goal), batch)

    return Mixture(*found, blend)


def entropic_oracle(
    gradient: Tensor, mass: Tensor, budget: Tensor, cost: LocalCost, gamma: float, tol: float
) -> Mixture:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    batch, grid = len(mass), _grid(cost, *mass.shape[2:])
    found = _answer(mass, budget)
    given = _lines(gradient, batch), _lines(mass, batch), budget.numpy(), gamma
    low_lam, part = np.empty(batch), np.empty(batch)
    written = *(_lines(tensor, batch) for tensor in found), low_lam, part
    _share_out(lambda first, last: entropic.minimize(first, last, *given, tol, grid, *written), batch)

    def blend(plan: Tensor, keep: Tensor, share: Tensor) -> None:
        goal = *given, grid, found[1].numpy(), low_lam, part
        lines, kept, added = _lines(plan, batch, plan.shape[1]), keep.numpy(), share.numpy()
        _share_out(lambda first, last: entropic.blend(first, last, lines, kept, added, *goal), batch)

    return Mixture(*found, blend)


def step_that_spends(gradient: Tensor, mass: Tensor, wanted: Tensor, share: float, cost: LocalCost) -> Tensor:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    batch, step = len(mass), _fresh(wanted)
    given = _lines(gradient.double(), batch), _lines(mass.double(), batch), wanted.numpy(), share
    grid = _grid(cost, *mass.shape[2:])
    _share_out(lambda first, last: ball.step_that_spends(first, last, *given, grid, step.numpy()), batch)
    return step


def ascend_sinkhorn(
    target: Tensor, mass: Tensor, budget: Tensor, cost: LocalCost, gamma: float, tol: float, max_iterations: int
) -> SinkhornDual:
    """See :class:`wasserball.kernels.interface.Kernels`."""
    batch, grid = len(mass), _grid(cost, *mass.shape[2:])
    beta, psi, objective, iterations, converged, _ = _answer(mass, budget)
    found = SinkhornDual(beta, psi, objective, iterations, converged)
    given = _lines(target, batch), _lines(mass, batch), budget.numpy(), gamma, tol, max_iterations
    written = tuple(_lines(tensor, batch) for tensor in found)
    _share_out(lambda first, last: sinkhorn.ascend(first, last, *given, grid, *written), batch)
    return found
