"""Which samples a training takes and how they get to the model: the same ones, whichever way that is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import pupils
from tests.pupils import HELD_OUT, QUICK, bars, noisy_network, perceptron
from wasserball.train import samples, train
from wasserball.train.samples import Samples, split
from wasserball.zoo.data import PIECE, Arrays, Items

CPU = torch.device("cpu")


@given(st.integers(2, 300).flatmap(lambda taken: st.tuples(st.just(taken), st.integers(1, taken - 1))))
def test_held_out_samples_are_evenly_spread(sizes: tuple[int, int]) -> None:
    taken, count = sizes
    mine, held = (numbers.tolist() for numbers in split(taken, count))
    assert sorted(mine + held) == list(range(taken))
    assert len(held) == count
    edges = [taken * part / count for part in range(count + 1)]
    assert all(first - 1 < number < last for number, first, last in zip(held, edges[:-1], edges[1:], strict=True))


@pytest.mark.parametrize("period", [2, 3, 60])
def test_held_out_samples_are_not_at_equal_distances(period: int) -> None:
    _, held = split(60_000, 1000)
    shares = (held % period).bincount(minlength=period) / len(held)
    assert (shares - 1 / period).abs().max() < 5 * (1 / period / len(held)) ** 0.5


def test_data_that_is_sorted_by_class_can_be_learnt_from(tmp_path: Path) -> None:
    images, labels = bars()
    order = labels.argsort(stable=True)
    training = train(perceptron(), (images[order], labels[order]), out=tmp_path / "run", recipe=QUICK, epochs=4)
    assert training.best.clean_accuracy > 0.9
    _, held = split(len(labels), HELD_OUT)
    assert labels[order][held].double().mean().item() == pytest.approx(labels.double().mean().item(), abs=0.02)


def test_arrays_give_copies_of_some_samples() -> None:
    images, labels = bars()
    numbers = torch.tensor([5, 3, 199, 3])
    bytes_, classes = (images * 255).round().to(torch.uint8), labels.numpy()
    for stored in (bytes_, bytes_.numpy(), np.asfortranarray(bytes_.numpy())):
        found, own = Arrays("a", stored, classes).tensors(numbers)
        assert torch.equal(found, bytes_[numbers])
        assert torch.equal(own, labels[numbers])
        assert found.is_contiguous()
        found.zero_()
        assert bytes_.any()
    for real in (images, images.numpy(), images.double(), images.numpy().astype(np.float64)):
        found, own = Arrays("a", real, labels).tensors(numbers)
        assert found.dtype == torch.float32
        assert torch.equal(found, images[numbers])
        found.zero_()
        assert images.any()


def test_arrays_are_looked_at_in_pieces_and_as_far_as_they_are_taken() -> None:
    images = torch.rand(PIECE + 10, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    images[PIECE + 5] = 2
    data = Arrays("a", images, torch.zeros(len(images), dtype=torch.int64))
    taken = torch.tensor([PIECE + 4, 0, PIECE - 1])
    assert torch.equal(data.tensors(taken)[0], images[taken])
    with pytest.raises(ValueError, match=rf"sample {PIECE + 5} must be in \[0, 1\], got 2"):
        data.tensors(torch.tensor([PIECE + 6]))


def test_arrays_know_how_much_room_they_take() -> None:
    images, labels = torch.zeros(10, 3, 4, 5), torch.zeros(10, dtype=torch.int64)
    for stored, size in ((images.byte(), 600), (images.byte().numpy(), 600), (images, 2400), (images.double(), 2400)):
        data = Arrays("a", stored, labels)
        assert data.fits(size)
        assert not data.fits(size - 1)


def test_batches_are_the_same_samples_resident_or_read() -> None:
    images, labels = bars()
    numbers, order = torch.tensor([9, 4, 7, 100, 3]), [torch.tensor([4, 0]), torch.tensor([2])]
    arrays = Arrays("a", (images * 255).round().to(torch.uint8), labels)
    items = Items("a", [arrays[number] for number in range(len(arrays))])
    resident, read = (Samples.of(data, numbers, CPU, 2, 0) for data in (arrays, items))
    assert resident.resident is not None
    assert read.resident is None
    expected = [([3, 9],), ([7],)]
    for mine, theirs, (wanted,) in zip(resident.batches(order), read.batches(order), expected, strict=True):
        pupils.assert_same_weights(dict(enumerate(mine)), dict(enumerate(theirs)))  # type: ignore[arg-type]
        assert torch.equal(mine[0], (images[wanted] * 255).round() / 255)
        assert torch.equal(mine[1], labels[wanted])


@pytest.mark.parametrize("readers", [0, 1])
def test_a_training_does_not_depend_on_how_its_images_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    images, labels = bars()
    recipe = replace(QUICK, epochs=1 if readers else 2, average=0.5, radius="random", augment="crop-flip")
    train(noisy_network(), (images, labels), out=tmp_path / "resident", recipe=recipe)
    pairs = list(zip(images, labels.tolist(), strict=True))
    train(noisy_network(), pairs, out=tmp_path / "items", recipe=recipe, readers=readers)
    monkeypatch.setitem(samples.RESIDENT, "cpu", 1000)
    train(noisy_network(), (images, labels), out=tmp_path / "large", recipe=recipe, readers=readers)
    for name in ("items", "large"):
        pupils.assert_same_outcome(tmp_path / name, tmp_path / "resident")
