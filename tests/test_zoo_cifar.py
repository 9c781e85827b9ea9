"""CIFAR-10's own files, which are pickles, are read whoever wrote them, and nothing in them runs."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wasserball import zoo
from wasserball.zoo.cifar import CLASSES

COUNT = 6
LABELS = np.arange(COUNT) % 4


class Malicious:
    """Whoever unpickles this makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


def refuse(match: str, folder: Path, split: str = "test") -> None:
    with pytest.raises(ValueError, match=match):
        zoo.load_data(folder, split=split)


PIXELS: NDArray[np.uint8] = np.random.default_rng(1).integers(0, 256, (COUNT, 3072), dtype=np.uint8)


def python2(batch: dict[str, Any]) -> bytes:
    """As the published files were written: protocol 2, byte strings, and a dtype of an old numpy."""
    data: NDArray[np.uint8] = batch["data"]
    out = io.BytesIO()

    def text(word: bytes) -> bytes:
        return b"U" + bytes([len(word)]) + word

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little")

    out.write(b"\x80\x02}(" + text(b"labels") + b"]" + b"(" + b"".join(map(number, batch["labels"])) + b"e")
    out.write(text(b"data") + b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n")
    out.write(number(0) + b"\x85" + text(b"b") + b"\x87R(" + number(1))
    out.write(b"".join(map(number, data.shape)) + b"\x86" + b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1))
    out.write(b"\x87R(" + number(3) + text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + number(0) + b"tb\x89")
    out.write(b"T" + data.nbytes.to_bytes(4, "little") + data.tobytes() + b"tbu.")
    return out.getvalue()


WRITERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "python 2": python2,
    **{f"protocol {n}": lambda batch, n=n: pickle.dumps(batch, n) for n in range(2, 6)},  # type: ignore[misc]
    "bytes as keys": lambda batch: pickle.dumps({key.encode(): value for key, value in batch.items()}),
    "labels in an array": lambda batch: pickle.dumps(batch | {"labels": np.array(batch["labels"])}),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_cifar_batches(write: Callable[[dict[str, Any]], bytes], tmp_path: Path) -> None:
    images = torch.from_numpy(PIXELS).view(-1, 3, 32, 32) / 255
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}").write_bytes(write({"data": PIXELS, "labels": LABELS.tolist()}))
    (tmp_path / "test_batch").write_bytes(write({"data": PIXELS, "labels": LABELS.tolist()}))
    data = zoo.load_data(tmp_path)
    found, labels = data.batch(0, COUNT)
    assert torch.equal(found, images)
    assert labels.tolist() == LABELS.tolist()
    assert data.classes == CLASSES
    found, labels = zoo.load_data(tmp_path, split="train").batch(0, 5 * COUNT)
    assert torch.equal(found, images.repeat(5, 1, 1, 1))
    assert labels.tolist() == 5 * LABELS.tolist()
    refuse("split must be one of train, test, got 'val'", tmp_path, split="val")


def test_a_malicious_cifar_batch_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for content in (
        Malicious(mark),
        {"data": Malicious(mark), "labels": [0]},
        {"data": PIXELS, "x": [Malicious(mark)]},
    ):
        for protocol in range(6):
            (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol))
            refuse(r"test_batch is no CIFAR-10 batch, it asks for (posix|nt)\.mkdir; nothing of it was run", tmp_path)
    calls = [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c__builtin__\ngetattr\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.",
    ]
    for call in calls:  # what is in a stand-in's or an allowed module's reach is not allowed with it
        (tmp_path / "test_batch").write_bytes(call)
        refuse("it asks for", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("match", "content"),
    [
        ("is no CIFAR-10 batch: ", b"no pickle"),
        ("is no CIFAR-10 batch: ", pickle.dumps({"data": PIXELS})[:-50]),
        ("is no CIFAR-10 batch: ", b""),
        ("must hold arrays 'data' and 'labels': 'labels'", pickle.dumps({"data": PIXELS})),
        ("must hold arrays 'data' and 'labels'", pickle.dumps([1, 2])),
        (r"got uint8 \(6, 3072\) and \(5,\)", pickle.dumps({"data": PIXELS, "labels": [0] * 5})),
        (r"got uint8 \(6, 100\)", pickle.dumps({"data": PIXELS[:, :100].copy(), "labels": [0] * 6})),
        (r"must be of integers, got <f8", pickle.dumps({"data": PIXELS / 2, "labels": [0] * 6})),
        (r"in C order", pickle.dumps({"data": np.asfortranarray(PIXELS), "labels": [0] * 6}, 2)),
    ],
)
def test_broken_cifar_batches(match: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    refuse(f"test_batch.*{match}", tmp_path)
