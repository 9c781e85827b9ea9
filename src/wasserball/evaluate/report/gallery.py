"""The pictures of a run for its page: sprite sheets, with the largest moves of each image, within a byte budget.

Of an adversarial image only its change is kept, a signed byte a pixel on a scale of its own: what moved can be seen
however little it is, and the image itself is the clean one plus that. A run is read unit by unit.
"""

import base64
import math
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor

from wasserball.evaluate.outcomes import Outcome, Outcomes
from wasserball.evaluate.store import Batch, Run

SMALL = 32
"""Pixels on a side of images of which there may be many."""
THUMBNAIL = 128
"""Pixels on the longer side of larger images, which are reduced to that …"""
THUMBNAILS = 200
"""… and of which a page has no more than so many, clean and adversarial ones together."""
BUDGET = 14_000_000
"""Bytes of a page for pictures and arrows."""
HELD = 32_000_000
"""Bytes of pictures in memory before they are packed."""
MOVES = 60
"""Arrows of an image."""
FAINT = 0.01
"""Of the largest move: what is smaller is no arrow."""
STEPS = 63
"""Of brightness on each side of no change: finer ones nobody sees, and they would be half of a page."""

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Moves:
    """The largest moves of an image, all channels together and smallest first: pixels by number, mass up to 255."""

    source: npt.NDArray[np.uint32]
    target: npt.NDArray[np.uint32]
    weight: Bytes


@dataclass(eq=False)
class Shots:
    """The pictures of one attack with one radius."""

    change: Bytes
    """``(S, C, h, w)``, 128 where there is none."""
    scale: npt.NDArray[np.float64]
    """The change that a byte of 128 + STEPS stands for, as a share of white."""
    moves: list[Moves | None]
    """None where no plan was stored."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """What goes into the page for one run, as JSON can hold it."""

    samples: int
    """Of the run; the page shows ``shown`` of them."""
    shown: int
    reduced: bool
    """Whether pictures are smaller than the images."""
    common: dict[str, Any]
    """What all attacks share: the clean images and their labels."""
    shots: list[dict[str, Any]] = field(repr=False)
    """For each attack and radius, in the order of the outcomes."""


def pack_gallery(run: Run, outcomes: Outcomes, *, budget: int = BUDGET, thumbnails: int = THUMBNAILS) -> Gallery:
    """Pictures of as many samples, spread evenly over the run, as ``budget`` has room for."""
    channels, height, width = run.setting.shape
    shrink = max(1.0, max(height, width) / THUMBNAIL)
    size = max(1, round(height / shrink)), max(1, round(width / shrink))
    pictures = 1 + len(outcomes)
    if max(height, width) > SMALL:
        most = thumbnails // pictures
    else:
        most = HELD // (pictures * (3 if channels == 3 else 1) * math.prod(size))
    samples = run.setting.samples
    wanted = _spread(samples, most)
    clean, shots = _collect(run, wanted, list(outcomes), size)
    kept = np.arange(len(wanted))
    while True:
        common = dict(
            index=wanted[kept].tolist(),
            label=next(iter(outcomes.values()))["label"][wanted[kept]].tolist(),
            width=size[1],
            height=size[0],
            full_width=width,
            full_height=height,
            steps=STEPS,
            columns=_columns(len(kept)),
            clean=_sheet(clean[kept]),
        )
        packed = [_pack(shots[pair], outcome, wanted, kept) for pair, outcome in outcomes.items()]
        weight = sum(len(str(part)) for entry in (common, *packed) for part in entry.values())
        if weight <= budget or len(kept) == 1:
            return Gallery(samples, len(kept), shrink > 1, common, packed)
        kept = kept[_spread(len(kept), int(0.97 * len(kept) * budget / weight))]


def _spread(total: int, count: int) -> Indices:
    """At most ``count`` numbers, and at least one, from the first to the last of ``total``."""
    return np.linspace(0, total - 1, max(1, min(count, total))).round().astype(np.int64)


def _collect(
    run: Run, wanted: Indices, pairs: list[tuple[str, float]], size: tuple[int, int]
) -> tuple[Bytes, dict[tuple[str, float], Shots]]:
    channels = 3 if run.setting.shape[0] == 3 else 1
    shape = (len(wanted), channels, *size)
    clean = np.zeros(shape, np.uint8)
    shots = {pair: Shots(np.zeros(shape, np.uint8), np.zeros(len(wanted)), [None] * len(wanted)) for pair in pairs}
    for unit in run.done():
        places = np.flatnonzero((wanted >= unit.first) & (wanted < unit.last))
        if len(places):
            batch = run.read(unit)
            clean[places] = _develop(shots[unit.attack, unit.eps], batch, places, wanted[places] - unit.first, size)
    return clean, shots


def _develop(shots: Shots, batch: Batch, places: Indices, picks: Indices, size: tuple[int, int]) -> Bytes:
    """Put some samples of a unit in their places, and return the clean images."""
    clean, dirty = (_reduce(images[picks].double(), size) for images in (batch.clean, batch.adversarial))
    change = dirty - clean
    scale = np.abs(change).max(axis=(1, 2, 3))
    share = change / np.where(scale > 0, scale, 1)[:, None, None, None]
    shots.change[places] = (128 + (STEPS * share).round()).astype(np.uint8)
    shots.scale[places] = scale
    if batch.plans is not None:
        for place, pick in zip(places, picks, strict=True):
            shots.moves[place] = _largest_moves(batch, int(pick))
    return (255 * clean.clip(0, 1)).round().astype(np.uint8)


def _reduce(images: Tensor, size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Grey or RGB pictures of that size."""
    if images.shape[1] not in (1, 3):
        images = images.mean(1, keepdim=True)
    return images.numpy() if images.shape[2:] == size else F.interpolate(images, size, mode="area").numpy()


def _largest_moves(batch: Batch, sample: int) -> Moves:
    assert batch.plans is not None
    entries, mass = (part.numpy() for part in batch.plans.moves(sample))
    _, channels, height, width = batch.plans.shape
    pixels = height * width
    routes, total = entries, mass.astype(np.float64)
    if channels > 1:  # the same move in several channels is one arrow
        routes, place = np.unique(entries // (channels * pixels) * pixels + entries % pixels, return_inverse=True)
        total = np.bincount(place, mass, len(routes)).astype(np.float64)
    order = np.argsort(total, kind="stable")[-MOVES:]
    most = total.max(initial=0)
    order = order[total[order] > FAINT * most]
    move, source = np.divmod(routes[order], pixels)
    down, right = move // batch.cost.window - batch.cost.window // 2, move % batch.cost.window - batch.cost.window // 2
    weight = (255 * np.sqrt(total[order] / (most or 1))).round().astype(np.uint8)
    target = source + down * width + right
    return Moves(source.astype(np.uint32), target.astype(np.uint32), weight)


def _pack(shots: Shots, outcome: Outcome, wanted: Indices, kept: Indices) -> dict[str, Any]:
    rows = wanted[kept]
    fooled = np.where(outcome.correct[rows], np.where(outcome.holds[rows], "h", "f"), "w")
    moves = [shots.moves[place] for place in kept]
    there = [move for move in moves if move is not None]
    source, target, weight = (_join([getattr(move, name) for move in there]) for name in ("source", "target", "weight"))
    wide = int(np.maximum(source, target).max(initial=0)) > 65535
    index = np.dtype("<u4" if wide else "<u2")
    return dict(
        outcome="".join(fooled.tolist()),
        valid="".join(np.where(outcome["valid"][rows], "1", "0").tolist()),
        prediction=outcome["prediction"][rows].tolist(),
        distance=_round(outcome["distance"][rows]),
        margin=_round(outcome["margin"][rows]),
        scale=_round(shots.scale[kept]),
        sheet=_sheet(shots.change[kept]),
        planned="".join("0" if move is None else "1" for move in moves),
        counts=_text(np.array([0 if move is None else len(move.source) for move in moves], np.uint8)),
        wide=wide,
        source=_text(source.astype(index)),
        target=_text(target.astype(index)),
        weight=_text(weight),
    )


def _join(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, np.uint8), *arrays])


def _round(column: npt.NDArray[Any]) -> list[float | None]:
    """Four digits, None for what is no number."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in column.tolist()]


def _columns(count: int) -> int:
    return math.ceil(math.sqrt(count))


def _sheet(pictures: Bytes) -> str:
    """Pictures ``(S, C, h, w)`` side by side and row below row, as a PNG."""
    from PIL import Image

    count, channels, height, width = pictures.shape
    columns = _columns(count)
    rows = math.ceil(count / columns)
    sheet = np.zeros((rows * columns, channels, height, width), np.uint8)
    sheet[:count] = pictures
    sheet = sheet.reshape(rows, columns, channels, height, width).transpose(0, 3, 1, 4, 2)
    sheet = sheet.reshape(rows * height, columns * width, channels)
    sink = BytesIO()
    Image.fromarray(sheet[..., 0] if channels == 1 else sheet).save(sink, "PNG", compress_level=6)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _text(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
