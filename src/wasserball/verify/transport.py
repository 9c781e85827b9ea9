"""The Wasserstein distance between two samples, by optimal transport. Needs POT."""

import math
import warnings

import numpy as np

from wasserball.verify.space import Floats, Space

# The pairs of points that the solver is offered for one channel: as many take it about 1 s and 0.6 GB. Where there are
# more, it is offered the cheapest, and the answer is an upper bound.
MAX_PAIRS = 4_000_000


def wasserstein(clean: Floats, image: Floats, space: Space, slack: Floats) -> tuple[float, bool]:
    """``min <C, Π>`` over all plans from ``clean`` to ``image``, and whether this is exact or an upper bound.

    Rounding may leave the channels with masses that differ by ``slack``; the mass that only one side has is left out.
    As much may also have no allowed move to make, and is then charged at the highest price.
    """
    spent, exact = 0.0, True
    for supply, demand, rounding in zip(clean, image, slack, strict=True):
        # By the triangle inequality, what both sides have at a point may stay there.
        common = np.minimum(supply, demand) if space.cost.is_metric else 0.0
        cost, stranded, complete = _transport(supply - common, demand - common, space)
        spent += cost + stranded * (space.dearest if stranded <= rounding else space.farthest)
        exact &= complete
    return spent, exact and math.isfinite(spent)


def _transport(supply: Floats, demand: Floats, space: Space) -> tuple[float, float, bool]:
    """The cost of the moves between pairs offered to the solver, the mass that none of them carries, and whether they
    were all the allowed ones."""
    try:
        import ot
        from scipy.sparse import coo_array
    except ImportError as error:
        raise ImportError(
            "verify needs a plan, or POT to solve optimal transport without one: pip install POT"
        ) from error

    amount = min(supply.sum(), demand.sum())
    if amount == 0:
        return 0.0, 0.0, True
    sources, targets = np.flatnonzero(supply), np.flatnonzero(demand)
    supply, demand = supply[sources] / supply.sum(), demand[targets] / demand.sum()
    if complete := sources.size * targets.size <= MAX_PAIRS:
        start, end = np.indices((sources.size, targets.size)).reshape(2, -1)
    else:
        start, end = space.cheapest(sources, targets, MAX_PAIRS)
    price = space.price(sources[start], targets[end])
    allowed = np.isfinite(price)
    start, end, price = start[allowed], end[allowed], price[allowed]

    # A hub, from every source and to every target, makes sure that there is a solution. In place of the pairs that were
    # not offered it costs as much as the dearest of them; if it stands for forbidden ones only, more than any detour.
    hub = (sources.size, targets.size)
    fare = np.full(sum(hub), space.dearest * (min(hub) + 1 if complete else 1) / 2)
    rows = np.concatenate([start, np.arange(hub[0]), np.full(hub[1], hub[0]), hub[:1]])
    columns = np.concatenate([end, np.full(hub[0], hub[1]), np.arange(hub[1]), hub[1:]])
    graph = coo_array((np.concatenate([price, fare, [0.0]]), (rows, columns)), shape=(hub[0] + 1, hub[1] + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what goes wrong is read from the log
        flow, log = ot.emd(
            np.append(supply, 1), np.append(demand, 1), graph, numItermax=10**9, log=True, center_dual=False
        )
    if log["warning"] is not None:
        return math.inf, 0.0, False

    # The solver is not trusted with the sum: its flow is priced here, and what it fails to carry counts as stranded.
    direct = (flow.row < hub[0]) & (flow.col < hub[1]) & (flow.data > 0)
    start, end, moved = flow.row[direct], flow.col[direct], flow.data[direct]
    cost = (moved * space.price(sources[start], targets[end])).sum()
    unsent = np.abs(supply - np.bincount(start, moved, hub[0])).sum()
    unmet = np.abs(demand - np.bincount(end, moved, hub[1])).sum()
    return float(amount * cost), float(amount * (unsent + unmet) / 2), complete
