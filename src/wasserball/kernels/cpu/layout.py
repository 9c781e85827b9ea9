"""How the compiled loops of the CPU see a sample, and how they are compiled.

The rows of a sample (its pixels that hold mass) are packed into tiles of ``LANES`` rows, so that every inner loop runs
over the lanes of a tile and becomes vector instructions. Sums over rows are kept for each lane and folded at the end,
an order that depends on the sample alone. A canvas is an image with a margin as wide as the farthest move, so that no
destination needs a check of its bounds.
"""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy.typing as npt

Array = npt.NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

LANES = 64


class Grid(NamedTuple):
    """A local cost on images of one size: its moves sorted by price, staying home first."""

    height: int
    width: int
    reach: int
    moves: Array
    """Number of each move in the plan, int64."""
    shifts: Array
    """Where each move leads on a canvas, which has a margin of ``reach`` pixels, from the corner of the window."""
    prices: Array
    """By fours: away from home, symmetry makes the moves of one price a multiple of four."""
    shells: Array
    """Where each shell of equal price begins among the moves, and the end."""
    shell_prices: Array


def drop_stale_code(folder: Path) -> None:
    """Remove the machine code of sources that have changed.

    numba notices when the file of a function changes, but not that of one it calls. Where nothing may be written the
    sources were installed all at once, and numba's own look at each is enough.
    """
    digest = sha256(b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))).hexdigest()
    stamp = folder / "__pycache__" / "sources.sha256"
    with suppress(OSError):
        if not stamp.exists() or stamp.read_text() != digest:
            for code in (*stamp.parent.glob("*.nbi"), *stamp.parent.glob("*.nbc")):
                code.unlink(missing_ok=True)
            stamp.parent.mkdir(exist_ok=True)
            stamp.write_text(digest)


drop_stale_code(Path(__file__).parent)


def compiled(function: Function) -> Function:
    """Machine code that holds no interpreter lock and, without fast-math, gives the same bits from run to run.

    It is kept on disk.
    """
    return _compile(function)


def inner(function: Function) -> Function:
    """Like :func:`compiled`, for what Python does not call: without wrappers for it, which take long to make."""
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compile(function: Function, **options: bool) -> Function:
    njit: Any = numba.njit  # typed in some releases only, and then without these options
    return cast(Function, njit(cache=True, nogil=True, error_model="numpy", **options)(function))


@inner
def canvas_size(grid: Grid, pixels: int) -> int:
    """Of all channels of a sample, each with a margin that the farthest moves do not leave."""
    channels = pixels // (grid.height * grid.width)
    return channels * (grid.height + 2 * grid.reach) * (grid.width + 2 * grid.reach)


@inner
def list_rows(mass: Array, grid: Grid, pixel: Array, place: Array) -> int:
    """List the pixels with mass, and their places on a canvas less the reach; the last tile is filled up."""
    count, i = 0, 0
    line = grid.width + 2 * grid.reach
    for channel in range(len(mass) // (grid.height * grid.width)):
        for row in range(grid.height):
            first = (channel * (grid.height + 2 * grid.reach) + row) * line
            for column in range(grid.width):
                pixel[count], place[count] = i, first + column
                count += mass[i] > 0
                i += 1
    for lane in range(count, -(-count // LANES) * LANES):
        pixel[lane], place[lane] = 0, 0
    return count


@inner
def paint(canvas: Array, image: Array, grid: Grid, scale: float, margin: float) -> None:
    """``scale · image`` with a margin."""
    for place in range(len(canvas)):
        canvas[place] = margin
    i = 0
    line = grid.width + 2 * grid.reach
    for channel in range(len(image) // (grid.height * grid.width)):
        for row in range(grid.height):
            first = (channel * (grid.height + 2 * grid.reach) + row + grid.reach) * line + grid.reach
            for column in range(grid.width):
                canvas[first + column] = scale * image[i]
                i += 1


@inner
def unpaint(canvas: Array, image: Array, grid: Grid) -> None:
    """The canvas without its margin, in the dtype of the image."""
    i = 0
    line = grid.width + 2 * grid.reach
    for channel in range(len(image) // (grid.height * grid.width)):
        for row in range(grid.height):
            first = (channel * (grid.height + 2 * grid.reach) + row + grid.reach) * line + grid.reach
            for column in range(grid.width):
                image[i] = canvas[first + column]
                i += 1


@inner
def fold(values: Array) -> float:
    """The sum of ``LANES`` numbers."""
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            values[lane] += values[half + lane]
        half //= 2
    return values[0]  # type: ignore[no-any-return]


@inner
def clear(plan: Array) -> None:
    """Empty the plan of one sample."""
    for move in range(plan.shape[0]):
        for pixel in range(plan.shape[1]):
            plan[move, pixel] = 0
