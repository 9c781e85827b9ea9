"""The plan behind an image: who sent what where is not stored with it, but optimal transport finds one as good."""

import warnings
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wasserball.threat import LocalCost

Floats = npt.NDArray[np.float64]

MANY_MOVES = 200_000
"""In one channel: from here on the whole transport problem takes seconds."""
STRANDED = 1e-3
"""Of the mass that moves: as much may find no way before the whole problem is solved after all."""


def cheapest_plan(mass: Tensor, image: Tensor, cost: LocalCost) -> Tensor:
    """``argmin_Π <C, Π>  s.t.  Π ≥ 0, Π1 = mass, Πᵀ1 = image`` within the window, in float64. Needs POT.

    What cannot get where it is wanted stays at home. Channels may differ in their mass by rounding. The work is done on
    the CPU, sample by sample.
    """
    shape, device = cost.plan_shape(mass), mass.device
    supply, demand = (values.detach().double().clamp(min=0).cpu().flatten(2) for values in (mass, image))
    plan = torch.zeros(*shape[:3], supply.shape[2], dtype=torch.float64)
    width, (_, allowed) = shape[-1], cost.entries(mass)
    offsets = np.array([[down * width + right] for down, right in cost.offsets])
    ends = np.where(allowed.cpu().flatten(1).numpy(), np.arange(supply.shape[2]) + offsets, -1)
    for b, c in product(range(shape[0]), range(shape[2])):
        moves = _channel(supply[b, c].numpy(), demand[b, c].numpy(), ends, width, cost)
        plan[b, :, c] = torch.from_numpy(moves)
    plan = plan.view(shape).to(device)
    cost.diagonal(plan).zero_()
    cost.diagonal(plan).copy_(mass.double() - cost.row_sums(plan))
    return plan


def _channel(supply: Floats, demand: Floats, ends: npt.NDArray[np.int64], width: int, cost: LocalCost) -> Floats:
    """The moves ``(K, size)`` of one channel.

    In a metric, what both sides have at a pixel may stay there, and the problem is fifty times faster without it. All
    that is lost are moves in several steps, to beyond the window.
    """
    if cost.is_metric and ends.size > MANY_MOVES:
        common = np.minimum(supply, demand)
        moves = _simplex(supply - common, demand - common, ends, width, cost)
        amount = (supply - common).sum()
        if amount - moves.sum() <= STRANDED * amount:
            return moves
    return _simplex(supply, demand, ends, width, cost)


def _simplex(supply: Floats, demand: Floats, ends: npt.NDArray[np.int64], width: int, cost: LocalCost) -> Floats:
    """The cheapest moves by the network simplex method."""
    try:
        import ot
        from scipy.sparse import coo_array
    except ImportError as error:
        raise ImportError("images without a plan need POT to find one: pip install POT") from error

    moves = np.zeros(ends.shape)
    sources, targets = np.flatnonzero(supply), np.flatnonzero(demand)
    if not (sources.size and targets.size):
        return moves
    number = np.full(supply.size + 1, -1)  # the last is the outside
    number[targets] = np.arange(targets.size)
    k, start = (number[ends[:, sources]] >= 0).nonzero()
    end = number[ends[k, sources[start]]]
    # A hub, from every source and to every target, makes sure that there is a solution. It costs more than any detour.
    hub = (sources.size, targets.size)
    rows = np.concatenate([start, np.arange(hub[0]), np.full(hub[1], hub[0]), hub[:1]])
    columns = np.concatenate([end, np.full(hub[0], hub[1]), np.arange(hub[1]), hub[1:]])
    fare = np.full(sum(hub), max(cost.prices) * (min(hub) + 1))
    price = np.concatenate([np.array(cost.prices)[k], fare, [0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a flow that is not optimal serves as well
        flow = ot.emd(
            np.append(supply[sources] / supply.sum(), 1),
            np.append(demand[targets] / demand.sum(), 1),
            coo_array((price, (rows, columns)), shape=(hub[0] + 1, hub[1] + 1)),
            numItermax=10**9,
            center_dual=False,
        )
    direct = (flow.row < hub[0]) & (flow.col < hub[1])
    start, end = sources[flow.row[direct]], targets[flow.col[direct]]
    (row, column), (new_row, new_column) = np.divmod(start, width), np.divmod(end, width)
    k = cost.window * (new_row - row) + new_column - column + len(ends) // 2
    moves[k, start] = flow.data[direct] * supply.sum()
    return moves
