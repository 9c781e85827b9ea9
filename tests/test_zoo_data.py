"""Data from arrays, files and data sets comes out as the images that went in, or is refused by name; no pickle runs."""

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from wasserball import zoo

SHARED = Path(__file__).parents[2] / "shared" / "data"
COUNT = 6
COLOUR: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 9, 3), dtype=np.uint8)
LABELS = np.arange(COUNT) % 4
EXPECTED = torch.from_numpy(COLOUR).permute(0, 3, 1, 2).float() / 255


class Malicious:
    """Whoever unpickles this makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


def check(data: zoo.Data, images: Tensor = EXPECTED, labels: NDArray[Any] = LABELS) -> None:
    """Whole, in parts, one by one and by a loader."""
    assert len(data) == len(images)
    whole = data.batch(0, len(data))
    for found in (whole, next(iter(DataLoader(data, batch_size=len(data))))):
        assert torch.equal(found[0], images)
        assert torch.equal(found[1], torch.from_numpy(labels).long())
        assert (found[0].dtype, found[1].dtype) == (torch.float32, torch.int64)
    assert whole[0].is_contiguous()
    part, rest = data.batch(1, 2), data.batch(2, len(data))
    assert torch.equal(torch.cat([part[0], rest[0]]), images[1:])
    image, label = data[3]
    assert torch.equal(image, images[3])
    assert label == labels[3]
    assert isinstance(label, int)
    whole[0].zero_()  # a batch is the caller's
    assert torch.equal(data[3][0], images[3])


def refuse(match: str, source: object, **options: Any) -> None:
    """At once, or when the samples are read."""
    with pytest.raises(ValueError, match=match):
        (data := zoo.load_data(source, **options)).batch(0, len(data))


def test_the_bundled_sample() -> None:
    data = zoo.load_data("mnist-sample")
    images, labels = zoo.load_sample()
    check(data, images, labels.numpy())
    assert data.name == "mnist-sample"
    assert data.classes == tuple("0123456789")
    assert data.where(7) == "sample 7"
    refuse("split of mnist-sample must be test, got 'train'", "mnist-sample", split="train")
    assert zoo.load_data(data) is data


def test_samples_end() -> None:
    data = zoo.load_data((EXPECTED, LABELS))
    assert len(list(data)) == COUNT  # type: ignore[call-overload]  # by index, until there is none
    with pytest.raises(IndexError, match=r"\[0, 6\), got -1"):
        data[-1]
    for first, last in ((0, COUNT + 1), (3, 3), (-1, 2)):
        with pytest.raises(ValueError, match=f"got {first} and {last}"):
            data.batch(first, last)


@pytest.mark.parametrize(
    "images",
    [
        EXPECTED,
        EXPECTED.double(),
        torch.from_numpy(COLOUR).permute(0, 3, 1, 2),
        COLOUR,
        COLOUR.transpose(0, 3, 1, 2),
        EXPECTED.numpy().astype(">f4"),
        EXPECTED.clone().requires_grad_(),
    ],
    ids=[
        "floats",
        "doubles",
        "bytes",
        "array, channels last",
        "array, channels first",
        "big-endian",
        "with a gradient",
    ],
)
@pytest.mark.parametrize("labels", [LABELS, torch.from_numpy(LABELS), LABELS.astype(np.uint8)[:, None]])
def test_pairs(images: Any, labels: Any) -> None:
    check(zoo.load_data((images, labels)))
    check(zoo.load_data([images, labels], size=None))


def test_arrays_without_channels_are_grey() -> None:
    check(zoo.load_data((COLOUR[..., 0], LABELS)), EXPECTED[:, :1])


@pytest.mark.parametrize(
    ("match", "images", "labels"),
    [
        (r"sample 2 must be in \[0, 1\], got 2 at \(1, 0, 3\).*normalisation", EXPECTED.clone(), LABELS),
        (r"images: images must be uint8, or floating .* got torch.int64", EXPECTED.long(), LABELS),
        (r"got int32", COLOUR.astype(np.int32), LABELS),
        (r"\(N, C, H, W\), got a tensor \(6, 8, 9\)", EXPECTED[:, 0], LABELS),
        (r"got an array \(8, 9\)", COLOUR[0, ..., 0], LABELS),
        (r"1 or 3 channels, .* got an array \(6, 8, 9, 2\)", COLOUR[..., :2], LABELS),
        (r"not both, got an array \(6, 3, 9, 3\)", COLOUR[:, :3], LABELS),
        (r"as many, .* got 6 images and labels \(5,\)", EXPECTED, LABELS[:5]),
        (r"as many, .* got 6 images and labels \(\)", EXPECTED, LABELS[0]),
        (r"at least one, got 0 images", EXPECTED[:0], LABELS[:0]),
        (r"labels must be integers, got float64", EXPECTED, LABELS / 2),
        (r"labels must be \(N,\), got \(6, 4\)", EXPECTED, np.eye(4, dtype=int)[LABELS]),
        (r"the label of sample 0 must be >= 0, got -3", EXPECTED, LABELS - 3),
    ],
)
def test_pairs_that_make_no_sense(match: str, images: Any, labels: Any) -> None:
    if "sample 2" in match:
        images[2, 1, 0, 3] = 2
    refuse(match, (images, np.asarray(labels)))


def test_a_bad_value_is_found_in_the_batch_that_holds_it() -> None:
    images = EXPECTED.clone()
    images[4, 0, 7, 8] = torch.nan
    data = zoo.load_data((images, LABELS))
    data.batch(0, 4)
    with pytest.raises(ValueError, match=r"sample 4 must be in \[0, 1\], got nan at \(0, 7, 8\)$"):
        data.batch(3, 5)


def test_arrays_on_disk_are_mapped(tmp_path: Path) -> None:
    folder = tmp_path / "toys"
    folder.mkdir()
    for split, some in (("train", slice(None)), ("test", slice(1, None))):
        np.save(folder / f"{split}_images.npy", COLOUR[some])
        np.save(folder / f"{split}_labels.npy", LABELS[some])
    data = zoo.load_data(folder)
    check(data, EXPECTED[1:], LABELS[1:])
    assert data.name == "toys test"
    check(zoo.load_data(str(folder), split="train"))
    assert isinstance(np.load(folder / "test_images.npy", mmap_mode="r"), type(data._images))  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError, match=r"val_images\.npy"):
        zoo.load_data(folder, split="val")
    (folder / "test_images.npy").write_bytes(b"\x93NUMPY and no more")
    refuse(r"test_images\.npy cannot be read", folder)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (("images", "labels"), "toys"),
        (("x_test", "y_test"), "toys test"),
        (("test_images", "test_labels"), "toys test"),
        (("X", "Y"), "toys"),
    ],
)
def test_files_of_arrays(keys: tuple[str, str], name: str, tmp_path: Path) -> None:
    arrays = dict(zip(keys, (COLOUR, LABELS), strict=True))
    np.savez_compressed(tmp_path / "toys.npz", **arrays)  # type: ignore[arg-type]
    save_file({key: torch.from_numpy(array) for key, array in arrays.items()}, tmp_path / "toys.safetensors")
    for suffix in (".npz", ".safetensors"):
        data = zoo.load_data(tmp_path / f"toys{suffix}")
        check(data)
        assert data.name == name


def test_halves_in_safetensors(tmp_path: Path) -> None:
    halves = EXPECTED.bfloat16().contiguous()
    save_file({"images": halves, "labels": torch.from_numpy(LABELS)}, tmp_path / "toys.safetensors")
    check(zoo.load_data(tmp_path / "toys.safetensors"), halves.float())


def test_files_that_are_not_what_they_are_called(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", pixels=COLOUR, labels=LABELS)
    refuse(r"other\.npz must hold test_images and test_labels or .*, got pixels, labels", tmp_path / "other.npz")
    for suffix in (".npz", ".safetensors"):
        (tmp_path / f"broken{suffix}").write_bytes(b"this is neither")
        refuse(rf"broken\{suffix} cannot be read", tmp_path / f"broken{suffix}")
    np.save(tmp_path / "one.npy", COLOUR)
    (tmp_path / "one.npz").write_bytes((tmp_path / "one.npy").read_bytes())
    refuse(r"one\.npz must be an \.npz file, got a single array", tmp_path / "one.npz")
    refuse(r"one\.npy is no file of images and labels: data must be 'mnist-sample', a folder", tmp_path / "one.npy")
    (tmp_path / "toys").mkdir()
    refuse(r"toys must hold MNIST's idx files, .*\.png.*got none", tmp_path / "toys")


def test_objects_in_arrays_are_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    objects = np.array([Malicious(mark)] * COUNT, dtype=object)
    np.savez(tmp_path / "evil.npz", images=objects, labels=LABELS)
    refuse(r"evil\.npz cannot be read, and nothing of it was run: .*allow_pickle", tmp_path / "evil.npz")
    folder = tmp_path / "folder"
    folder.mkdir()
    np.save(folder / "test_images.npy", objects)
    np.save(folder / "test_labels.npy", LABELS)
    refuse(r"test_images\.npy cannot be read, and nothing of it was run", folder)
    assert not mark.exists()


def test_mnist_folders(tmp_path: Path) -> None:
    images, labels = zoo.load_sample()
    for kind, tensor in (("images-idx3", (images[:, 0] * 255).round()), ("labels-idx1", labels)):
        shape = b"".join(length.to_bytes(4, "big") for length in tensor.shape)
        content = bytes([0, 0, 8, tensor.ndim]) + shape + tensor.byte().numpy().tobytes()
        (tmp_path / f"t10k-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    data = zoo.load_data(tmp_path)
    check(data, images, labels.numpy())
    assert data.name == f"{tmp_path.name} test"
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        zoo.load_data(tmp_path, split="train")


class Toys(Dataset[Any]):
    """Images in any form, as torchvision's data sets have them."""

    classes = ("a", "b", "c", "d")

    def __init__(
        self, image: Callable[[int], Any], label: Callable[[int], Any] = lambda index: int(LABELS[index])
    ) -> None:
        self.image, self.label = image, label

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.image(index), self.label(index)


@pytest.mark.parametrize(
    "image",
    [
        lambda index: EXPECTED[index],
        lambda index: torch.from_numpy(COLOUR[index]).permute(2, 0, 1),
        lambda index: COLOUR[index],
        lambda index: Image.fromarray(COLOUR[index]),
    ],
    ids=["tensor", "bytes", "array", "picture"],
)
def test_data_sets(image: Callable[[int], Any]) -> None:
    data = zoo.load_data(Toys(image))
    check(data)
    assert data.name == "Toys"
    assert data.classes == Toys.classes
    for label in (np.int32, torch.tensor):
        check(zoo.load_data(Toys(image, lambda index, label=label: label(int(LABELS[index])))))  # type: ignore[misc]


def test_data_sets_of_others() -> None:
    check(zoo.load_data(TensorDataset(EXPECTED, torch.from_numpy(LABELS))))
    pairs = list(zip(EXPECTED, LABELS, strict=True))
    check(zoo.load_data(pairs))
    grey = zoo.load_data(Toys(lambda index: Image.fromarray(COLOUR[index, ..., 0])))
    check(grey, EXPECTED[:, :1])
    smaller = zoo.load_data(Toys(lambda index: Image.fromarray(COLOUR[index])), size=7)
    assert smaller[0][0].shape == (3, 7, 7)


class Endless(IterableDataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def broken(index: int) -> Tensor:
    return EXPECTED[{0: 0}[index]]


@pytest.mark.parametrize(
    ("match", "source"),
    [
        (r"Toys: sample 1 cannot be read: KeyError: 1", Toys(broken)),
        (r"one shape, got \(3, 7, 9\) for sample 1 and \(3, 8, 9\) for sample 0", Toys(lambda n: EXPECTED[n, :, n:])),
        (r"Toys: sample 0: must have three dimensions", Toys(lambda n: EXPECTED[n, 0])),
        (r"Toys: sample 0: must be an image, .* got str", Toys(lambda n: "no image")),
        (r"sample 0: images must be uint8, .* got torch.int64", Toys(lambda n: EXPECTED[n].long())),
        (r"sample 0: labels must be integers, got float64", Toys(lambda n: EXPECTED[n], float)),
        (
            r"sample 0: a label must be one integer, got shape \(4,\)",
            Toys(lambda n: EXPECTED[n], lambda n: [1, 0, 0, 0]),
        ),
        (r"sample 1 must be in \[0, 1\], got 2", Toys(lambda n: torch.full((3, 4, 4), 2.0 * n))),
        (r"sample 0 must be a pair \(image, label\), got Tensor", EXPECTED.unbind()),
        (r"at least one sample", []),
        (r"data must be a data set with a length .* got Endless", Endless()),
        (r"got int", 3),
        (r"got NoneType", None),
    ],
)
def test_data_sets_that_make_no_sense(match: str, source: object) -> None:
    refuse(match, source)


def test_size_is_for_pictures() -> None:
    refuse(r"size resizes pictures, not arrays: images has images \(3, 8, 9\), got size 4", (COLOUR, LABELS), size=4)
    refuse(r"sample 0: must be 4×4", Toys(lambda n: EXPECTED[n]), size=4)
    refuse(r"size must be an integer >= 1, got 0", (COLOUR, LABELS), size=0)
    assert len(zoo.load_data("mnist-sample", size=28)) == 200


FACTORY = """
from beside import images, labels
def pair():
    return images, labels
def data():
    from wasserball import zoo
    return zoo.load_data("mnist-sample")
def nothing():
    return None
def trouble():
    raise RuntimeError("no disk")
"""


def test_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("import torch\nimages, labels = torch.ones(2, 1, 3, 3), torch.tensor([0, 1])\n")
    (tmp_path / "mine_data.py").write_text(FACTORY)
    data = zoo.load_data(f"{tmp_path}/mine_data.py:pair")
    assert data.name == "mine_data.py:pair"
    images, labels = data.batch(0, 2)
    assert images.shape == (2, 1, 3, 3)
    assert labels.tolist() == [0, 1]
    assert zoo.load_data(f"{tmp_path}/mine_data.py:data").name == "mnist-sample"
    refuse("got NoneType from mine_data.py:nothing", f"{tmp_path}/mine_data.py:nothing")
    refuse(r"trouble in .*mine_data\.py raised RuntimeError: no disk", f"{tmp_path}/mine_data.py:trouble")
    monkeypatch.chdir(tmp_path)
    assert zoo.load_data("mine_data:pair").name == "mine_data:pair"


@pytest.mark.parametrize("source", ["nowhere", "/nowhere/at/all", "mnist", "", "http://x"])
def test_nonsense_is_told_what_is_understood(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(f"no file or folder '{source}': data must be 'mnist-sample', .*torchvision:NAME.*factory", source)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_mnist_of_the_paper() -> None:
    data = zoo.load_data(SHARED / "mnist")
    assert (data.name, len(data)) == ("mnist test", 10_000)
    images, labels = zoo.load_sample()
    for found, expected in zip(data.batch(0, 200), (images, labels), strict=True):
        assert torch.equal(found, expected)
