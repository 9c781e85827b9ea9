"""A folder of pictures: which are the samples, what their labels are, and what becomes of a picture."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from wasserball import zoo

SHARED = Path(__file__).parents[2] / "shared" / "data"
RANDOM = np.random.default_rng(0)


def pixels(height: int = 8, width: int = 9, channels: int = 3) -> NDArray[np.uint8]:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, array: NDArray[Any] | None = None, **options: Any) -> NDArray[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = pixels() if array is None else array
    Image.fromarray(array).save(path, **options)
    return array


def tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32).transpose(2, 0, 1) if array.ndim == 3 else array[None]) / 255


def everything(folder: Path, **options: Any) -> tuple[torch.Tensor, list[int]]:
    data = zoo.load_data(folder, **options)
    images, labels = data.batch(0, len(data))
    return images, labels.tolist()


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    expected = [
        save(folder / name) for name in ("cat/b.png", "cat/deep/a.BMP", "dog/1.png", "dog/2.webp", "owl/x.tiff")
    ]
    Image.fromarray(expected[3]).save(folder / "dog/2.webp", lossless=True)
    for name in (".DS_Store", "readme.txt", "cat/notes.md", "cat/.hidden.png", ".git/x.png", "__MACOSX/cat/x.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("no picture")
    data = zoo.load_data(folder)
    assert (data.name, data.classes) == ("pets", ("cat", "dog", "owl"))
    images, labels = data.batch(0, len(data))
    assert torch.equal(images, torch.stack([tensor(array) for array in expected]))
    assert labels.tolist() == [0, 0, 1, 1, 2]
    assert [data.where(index) for index in (0, 1, 4)] == ["cat/b.png", "cat/deep/a.BMP", "owl/x.tiff"]


def test_a_folder_for_each_split(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 2)):
        for number in range(count):
            save(tmp_path / "pets" / split / f"class{number % 2}" / f"{number}.png")
    data = zoo.load_data(tmp_path / "pets")
    assert (data.name, len(data), data.classes) == ("pets val", 2, ("class0", "class1"))
    assert len(zoo.load_data(tmp_path / "pets", split="train")) == 3
    (tmp_path / "pets" / "val").rename(tmp_path / "pets" / "test")
    assert zoo.load_data(tmp_path / "pets").name == "pets test"
    (tmp_path / "pets" / "test").rename(tmp_path / "pets" / "devkit")  # more than splits: still no classes
    assert len(zoo.load_data(tmp_path / "pets", split="train")) == 3
    (tmp_path / "pets" / "devkit").rename(tmp_path / "devkit")
    with pytest.raises(ValueError, match=r"split must be one of train in .*pets, got 'test'"):
        zoo.load_data(tmp_path / "pets")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        save(tmp_path / name / "1.png")
    assert zoo.load_data(tmp_path, split="train").classes == ("bus", "train")


def test_labels_in_names_or_nowhere(tmp_path: Path) -> None:
    for name in ("0010_b.png", "0002_a.png", "7_c.jpg"):
        save(tmp_path / "flat" / name)
    data = zoo.load_data(tmp_path / "flat")
    assert data.batch(0, 3)[1].tolist() == [2, 10, 7]
    assert (data.name, data.classes, data.where(2)) == ("flat", None, "7_c.jpg")
    save(tmp_path / "flat" / "holiday.png")
    with pytest.raises(ValueError, match=r"class index in all names, .* or in none, got holiday\.png"):
        zoo.load_data(tmp_path / "flat")
    for name in ("x.png", "IMG_1.png"):
        save(tmp_path / "any" / name)
    assert everything(tmp_path / "any")[1] == [-1, -1]
    save(tmp_path / "any" / "class" / "x.png")
    with pytest.raises(
        ValueError, match=r"either pictures or a folder for each class, got both: IMG_1\.png and class/"
    ):
        zoo.load_data(tmp_path / "any")


def test_grey_if_the_first_is(tmp_path: Path) -> None:
    grey = [save(tmp_path / "grey" / f"{number}.png", pixels(channels=1)) for number in range(2)]
    images, _ = everything(tmp_path / "grey")
    assert torch.equal(images, torch.stack([tensor(array) for array in grey]))
    save(tmp_path / "grey" / "2.png")
    with pytest.raises(ValueError, match=r"grey: 2\.png: must be grey as the first picture is, got one of mode RGB"):
        everything(tmp_path / "grey")
    save(tmp_path / "mixed" / "0.png")
    array = save(tmp_path / "mixed" / "1.png", pixels(channels=1))
    assert torch.equal(everything(tmp_path / "mixed")[0][1], tensor(array).expand(3, -1, -1))


@pytest.mark.filterwarnings("error")
def test_modes(tmp_path: Path) -> None:
    array = pixels()
    picture = Image.fromarray(array)
    save(tmp_path / "0.png", array)
    opaque = picture.copy()
    opaque.putalpha(77)
    opaque.save(tmp_path / "1.png")
    palette = picture.quantize(16)
    palette.save(tmp_path / "2.png", transparency=bytes([0, 255]))
    images, _ = everything(tmp_path)
    assert torch.equal(images[0], images[1])
    assert torch.equal(images[2], tensor(np.asarray(palette.convert("RGB"))))
    bits = RANDOM.integers(0, 2, (5, 5)).astype(bool)
    save(tmp_path / "bits" / "0.png", bits)
    assert torch.equal(everything(tmp_path / "bits")[0][0, 0], torch.from_numpy(bits).float())
    deep = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16) + np.uint16(100)
    deep[-1, -1] = 65535
    save(tmp_path / "deep" / "0.png", deep)  # 16 bits are rounded to 8
    assert torch.equal(everything(tmp_path / "deep")[0].flatten(), torch.arange(256) / 255)
    save(tmp_path / "floats" / "0.tiff", np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match=r"0\.tiff: must have 8 or 16 bits a channel, got a picture of mode F"):
        everything(tmp_path / "floats")


def test_a_picture_is_turned_as_it_says(tmp_path: Path) -> None:
    array = pixels()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    save(tmp_path / "0.png", array, exif=exif)
    assert torch.equal(everything(tmp_path)[0][0], tensor(np.rot90(array, -1)))


def test_resized_and_cropped_as_imagenet_is(tmp_path: Path) -> None:
    array = pixels(50, 80)
    for name, content in {"0.png": array, "1.png": pixels(120, 30), "2.png": pixels(28, 28)}.items():
        save(tmp_path / name, content)
    with pytest.raises(ValueError, match=r"\(3, 120, 30\) for 1\.png and \(3, 50, 80\) for 0\.png; size= \(--size\)"):
        everything(tmp_path)
    data = zoo.load_data(tmp_path, size=28)
    images, _ = data.batch(0, 3)
    assert images.shape == (3, 3, 28, 28)
    resized = Image.fromarray(array).resize((51, 32), Image.Resampling.BILINEAR)  # 28 · 256/224 = 32
    assert torch.equal(images[0], tensor(np.asarray(resized)[2:30, 12:40]))  # (51 − 28)/2 to the even one, as elsewhere
    assert torch.equal(images[2], tensor(np.asarray(Image.open(tmp_path / "2.png"))))


def test_pictures_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path / f"{number}.png")
    data = zoo.load_data(tmp_path)
    (tmp_path / "3.png").write_bytes((tmp_path / "3.png").read_bytes()[:150])
    assert data.batch(0, 3)[0].shape == (3, 3, 8, 9)
    with pytest.raises(ValueError, match=r"3\.png cannot be read: \w+: "):
        data.batch(2, 4)
    (tmp_path / "2.png").write_text("this is no picture")
    with pytest.raises(ValueError, match=r"2\.png cannot be read: UnidentifiedImageError"):
        data[2]
    (tmp_path / "1.png").unlink()
    with pytest.raises(ValueError, match=r"1\.png cannot be read: FileNotFoundError"):
        data[1]


def test_one_row_of_pixels(tmp_path: Path) -> None:
    array = save(tmp_path / "0.png", pixels(1, 3))
    assert torch.equal(everything(tmp_path)[0][0], tensor(array))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_the_pictures_of_the_experiments() -> None:
    data = zoo.load_data(SHARED / "imagenet", size=224)
    assert (data.name, len(data)) == ("imagenet", 100)
    assert data.where(1) == "0010_n01530575.png"
    images, labels = data.batch(1, 3)
    assert labels.tolist() == [10, 20]
    with warnings.catch_warnings(action="error"), Image.open(SHARED / "imagenet" / data.where(1)) as picture:
        assert torch.equal(images[0], tensor(np.asarray(picture.convert("RGB"))))
