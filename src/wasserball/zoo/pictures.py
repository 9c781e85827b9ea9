"""Pictures on disk: which of them are the samples, under which labels, and how one becomes an array of pixels."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLITS = {"train": ["train"], "test": ["test", "val", "validation"]}
"""What the folder of a split may be called, the first that is there: ImageNet's test split has no labels, so all the
world tests on ``val``."""
GREY = {"1", "L", "I;16", "I;16B", "I;16L", "I;16N"}


class Pictures:
    """The pictures of a folder in the order of their names, each with its label: a source for ``Items``."""

    def __init__(self, folder: Path, split: str) -> None:
        self.name = folder.resolve().name
        self.classes: list[str] | None = None
        inside = _split(folder, split)
        if inside != folder:
            self.name += f" {inside.name}"
        self.folder = inside
        folders, loose = _folders(inside), [file for file in _visible(inside) if _is_picture(file)]
        if folders and loose:
            raise ValueError(
                f"{folder} must hold either pictures or a folder for each class, got both: {loose[0].name} and "
                f"{folders[0].name}/"
            )
        if folders:
            self.classes = [folder.name for folder in folders]
            self.files = [(file, label) for label, place in enumerate(folders) for file in _below(place)]
        else:
            self.files = list(zip(loose, _labels(folder, loose), strict=True))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple["Image", int]:
        from PIL import Image, ImageOps

        file, label = self.files[index]
        with Image.open(file) as picture:
            picture.load()
            return ImageOps.exif_transpose(picture), label

    def where(self, index: int) -> str:
        """The file, as seen from the folder."""
        return self.files[index][0].relative_to(self.folder).as_posix()


def is_grey(image: Any) -> bool:
    """Whether a picture has no colours by its mode; an array is not asked."""
    return getattr(image, "mode", None) in GREY


def read_picture(picture: Any, *, grey: bool, size: int | None) -> NDArray[np.uint8]:
    """8-bit pixels, ``(1, H, W)`` if grey, else ``(3, H, W)``.

    With a ``size`` as ImageNet's pictures are prepared: the shorter side to ``size · 256/224``, bilinearly and without
    aliasing, then the square in the middle. A picture that is such a square already stays as it is.
    """
    from PIL import Image

    if not isinstance(picture, Image.Image):
        kinds = "a tensor, a numpy array or a picture"
        raise ValueError(f"must be an image, {kinds}, got {type(picture).__name__}")
    if picture.mode in ("I", "F"):
        raise ValueError(f"must have 8 or 16 bits a channel, got a picture of mode {picture.mode}")
    if picture.mode.startswith("I;16"):  # pillow would cut such values off at 255
        picture = Image.fromarray(((np.asarray(picture).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if grey and not is_grey(picture):
        raise ValueError(f"must be grey as the first picture is, got one of mode {picture.mode}")
    if "transparency" in picture.info:
        picture = picture.convert("RGBA")
    picture = picture.convert("L" if grey else "RGB")
    pixels = np.asarray(picture if size is None else _fit(picture, size))
    return pixels[None] if grey else np.moveaxis(pixels, -1, 0)


def _fit(picture: "Image", size: int) -> "Image":
    from PIL import Image

    if picture.size == (size, size):
        return picture
    shorter = round(size * 256 / 224)
    # Rounded as torchvision rounds, so that accuracies are comparable to the pixel.
    width, height = (int(shorter * side / min(picture.size)) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return picture.crop((left, top, left + size, top + size))


def _split(folder: Path, split: str) -> Path:
    """The folder of a split, where there are such: a class may be called "train" too, but has no folders in it."""
    names = SPLITS.get(split, [split])
    below = {place.name for place in _folders(folder)}
    known = {name for names in SPLITS.values() for name in names}
    for name in names:
        if name in below and (below <= known or _folders(folder / name)):
            return folder / name
    if below and below <= known:
        raise ValueError(f"split must be one of {', '.join(sorted(below))} in {folder}, got {split!r}")
    return folder


def _labels(folder: Path, files: list[Path]) -> list[int]:
    """From names such as ``0010_n01530575.png``; −1 for all where no name starts with a number."""
    numbers = [re.match(r"(\d+)_", file.name) for file in files]
    without = [file.name for file, number in zip(files, numbers, strict=True) if not number]
    if without and len(without) < len(files):
        raise ValueError(f"{folder} must have a class index in all names, as 7_x.png, or in none, got {without[0]}")
    return [int(number[1]) if number else -1 for number in numbers]


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__")))


def _folders(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.is_dir()]


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _below(folder: Path) -> Iterator[Path]:
    """All pictures of a class, also in folders of its folder."""
    files = (Path(place) / name for place, _, names in os.walk(folder, followlinks=True) for name in names)
    return iter(sorted(filter(_is_picture, files)))
