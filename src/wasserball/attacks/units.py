"""Mass in whole units: a plan of integers, improved by sending single units elsewhere, at all pixels at once."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from wasserball.threat import LocalCost

OUTSIDE = 10.0
"""What a unit too many or too few in a pixel weighs: it comes first, but not at any price."""
COOLING = 0.7
LEAST = 1e-2
"""The search ends where a unit of the budget gains less than this."""
NOISE = 1e-4
"""A gain below this may be a rounding error; to take it for real could lead in circles."""
MAX_ROUNDS = 2000


class _Offers(NamedTuple):
    """Exchanges that rows of a plan propose: one unit each, from an old destination to a new one."""

    rows: Tensor
    old: Tensor
    new: Tensor
    gain: Tensor

    def keep(self, chosen: Tensor) -> "_Offers":
        return _Offers(*(column[chosen] for column in self))


class Units:
    """Whole units on their way, in a list of the pixels that have mass: row by row, how many go to each destination.

    Pixels are numbered on a canvas that is wider than the images by the reach of the window: every destination has a
    number. Those on the rim hold nothing and take nothing.
    """

    def __init__(self, moves: Tensor, cost: LocalCost, tariff: Tensor) -> None:
        clean = moves.sum(cost.axis)
        batch, channels, height, width = self.shape = clean.shape
        reach = cost.window // 2
        size = (batch, channels, height + 2 * reach, width + 2 * reach)
        canvas = torch.arange(math.prod(size), device=clean.device).view(size)
        self.pixels = canvas[..., reach : reach + height, reach : reach + width].flatten()
        self.sources = clean.flatten().nonzero().squeeze(1)
        self.sample = self.sources // clean[0].numel()
        self.offsets = torch.tensor([down * size[3] + right for down, right in cost.offsets], device=clean.device)
        self.ends = self.pixels[self.sources].unsqueeze(1) + self.offsets
        self.moves = moves.permute(0, 2, 3, 4, 1).reshape(clean.numel(), -1)[self.sources]
        self.held = torch.zeros(canvas.numel(), dtype=torch.int32, device=clean.device)
        self.held.index_add_(0, self.ends.flatten(), self.moves.flatten())
        self.tariff, self.home = tariff, len(cost.offsets) // 2
        self.prices = torch.tensor(cost.prices, dtype=torch.float32, device=clean.device)

    def answer(self) -> tuple[Tensor, Tensor]:
        """The levels that are held, and the plan."""
        plan = torch.zeros(len(self.pixels), len(self.offsets), dtype=torch.int32, device=self.held.device)
        plan[self.sources] = self.moves
        levels = self.held[self.pixels].to(torch.uint8).view(self.shape)
        return levels, plan.view(*self.shape, -1).permute(0, 4, 1, 2, 3)

    def return_overflow(self, capacity: int) -> None:
        """Send what a pixel holds above its capacity back to its senders, the dearest units first.

        Those may overflow in turn, but ever less is away from home, where all of it fits.
        """
        while (excess := (self.held - capacity).clamp(min=0)).any():
            received = (self.moves > 0) & (excess[self.ends] > 0)
            received[:, self.home] = False
            row, k = received.nonzero().unbind(1)
            end, units = self.ends[row, k], self.moves[row, k]
            share = excess[end] - _sum_before(units, end, self.prices[k])
            back = torch.minimum(units, share.clamp(min=0)).to(torch.int32)
            self.moves[row, k] -= back
            self.moves[:, self.home] += torch.zeros_like(self.moves[:, 0]).index_add_(0, row, back)
            self.held.index_add_(0, end, -back).index_add_(0, self.ends[row, self.home], back)

    def exchange(self, direction: Tensor, low: Tensor, high: Tensor, limit: Tensor) -> None:
        """Send units elsewhere while ``<direction, L> − OUTSIDE·(levels outside low … high) − λ<C, N>`` rises.

        ``direction`` has a root mean square of 1; ``limit`` is the budget in the fixed point of the tariff.

        In each round every row proposes its best exchange, and every pixel lets at most one unit arrive and one leave:
        then the gains add up. λ starts where nothing is worth its price, and falls whenever nothing rises, until the
        budget is spent.
        """
        slope, low, high = (
            torch.full_like(self.held, rim, dtype=torch.float32).index_copy_(0, self.pixels, values.flatten().float())
            for values, rim in ((direction, 0.0), (low, torch.inf), (high, -torch.inf))
        )
        left = limit.index_add(0, self.sample, -(self.moves * self.tariff).sum(1))
        cheapest = self.tariff[self.tariff > 0].amin() if len(self.tariff) > 1 else left.amax() + 1
        lam = 2 * (OUTSIDE + direction.abs().flatten(1).amax(1))
        running = torch.ones_like(lam, dtype=torch.bool)
        looking = torch.ones_like(self.sample, dtype=torch.bool)
        for _ in range(MAX_ROUNDS):
            rows = looking.nonzero().squeeze(1)
            arriving = torch.where(self.held < high, slope + OUTSIDE * (low - self.held).clamp(0, 1), -torch.inf)
            leaving = torch.where(self.held > low, OUTSIDE * (self.held - high).clamp(0, 1) - slope, -torch.inf)
            offers = self._offers(rows, arriving, leaving, lam)
            looking[rows] = better = offers.gain > NOISE
            offers = self._accept(offers.keep(better), left)
            touched = self._carry_out(offers, left)

            # A row has something new to offer only if there was a change in its window, or in λ.
            near = torch.zeros_like(self.held, dtype=torch.bool)
            near[touched.unsqueeze(1) + self.offsets] = True
            looking |= near[self.ends[:, self.home]]
            idle = running.index_fill(0, self.sample[offers.rows], False)
            running &= ~(idle & ((lam < LEAST) | (left < cheapest)))
            idle &= running
            lam = torch.where(idle, COOLING * lam, lam)
            looking = (looking | idle[self.sample]) & running[self.sample]
            if not running.any():
                break

    def _offers(self, rows: Tensor, arriving: Tensor, leaving: Tensor, lam: Tensor) -> _Offers:
        """The best that each row can do, given what a unit that arrives at or leaves a pixel is worth there."""
        ends, toll = self.ends[rows], lam[self.sample[rows]].unsqueeze(1) * self.prices
        best, new = (arriving[ends] - toll).max(1)
        worst, old = torch.where(self.moves[rows] > 0, leaving[ends] + toll, -torch.inf).max(1)
        return _Offers(rows, old, new, best + worst)

    def _accept(self, offers: _Offers, left: Tensor) -> _Offers:
        """Of the offers within the budget the best at each pixel, as many as can be paid."""
        offers = offers.keep(self._price(offers) <= left[self.sample[offers.rows]])
        offers = offers.keep(self._is_best(offers, offers.new))
        offers = offers.keep(self._is_best(offers, offers.old))
        price, sample = self._price(offers).clamp(min=0), self.sample[offers.rows]
        return offers.keep(_sum_before(price, sample, offers.gain / price) + price <= left[sample])

    def _is_best(self, offers: _Offers, destination: Tensor) -> Tensor:
        """Whether no other offer gains more at the same pixel."""
        pixel = self.ends[offers.rows, destination]
        # Positive floats compare like their bits; the number of the row breaks ties.
        rank = (offers.gain.view(torch.int32).long() << 32) + offers.rows
        best = torch.zeros_like(self.held, dtype=torch.int64).scatter_reduce_(0, pixel, rank, "amax")
        return best[pixel] == rank

    def _carry_out(self, offers: _Offers, left: Tensor) -> Tensor:
        """Make the exchanges, pay for them, and say which pixels they touch."""
        start, end = self.ends[offers.rows, offers.old], self.ends[offers.rows, offers.new]
        one = torch.ones_like(self.held[: len(start)])
        self.moves[offers.rows, offers.new] += 1
        self.moves[offers.rows, offers.old] -= 1
        self.held.index_add_(0, end, one).index_add_(0, start, -one)
        left.index_add_(0, self.sample[offers.rows], -self._price(offers))
        return torch.cat([start, end])

    def _price(self, offers: _Offers) -> Tensor:
        return self.tariff[offers.new] - self.tariff[offers.old]


def _sum_before(values: Tensor, group: Tensor, rank: Tensor) -> Tensor:
    """For each entry of a list, the sum of the ``values ≥ 0`` of its group that rank higher, or as high and earlier."""
    order = rank.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    sums = values[order].cumsum(0) - values[order]
    opens = torch.ones_like(order, dtype=torch.bool)
    opens[1:] = group[order][1:] != group[order][:-1]
    sums -= torch.where(opens, sums, 0).cummax(0).values if len(sums) else 0
    return torch.empty_like(sums).index_copy_(0, order, sums)
