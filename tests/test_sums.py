"""An ordered sum is accurate, and its bits depend on the terms alone."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wasserball.sums import ordered_sum, sample_sum

FLOATS = [torch.float32, torch.float64]


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Terms of very different sizes and both signs: any other order of additions gives other bits."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal(shape) * 10 ** rng.uniform(-3, 3, shape)).to(dtype)


@settings(max_examples=200, deadline=None)
@given(
    length=st.one_of(st.integers(0, 9), st.integers(0, 1000)),
    exponent=st.integers(-30, 30),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(FLOATS),
)
def test_agrees_with_an_exact_sum(length: int, exponent: int, seed: int, dtype: torch.dtype) -> None:
    values = noise(length, seed=seed, dtype=dtype) * 10.0**exponent
    total = ordered_sum(values, 0)
    assert (total.dtype, total.shape) == (dtype, ())
    terms = values.double().tolist()
    additions = 2 * max(length, 1).bit_length()  # on the way of a term: one for each fold, and one where it is odd
    slack = additions * torch.finfo(dtype).eps / 2 * math.fsum(map(abs, terms))
    assert abs(total.item() - math.fsum(terms)) <= slack


@pytest.mark.parametrize("shape", [(5, 4, 3), (1, 7, 2), (2, 1, 1), (3, 0, 2), (0, 3, 3)], ids=str)
def test_any_dimension(shape: tuple[int, ...]) -> None:
    values = torch.randint(-8, 8, shape).double()  # exact in any order
    for dim in range(-3, 3):
        assert torch.equal(ordered_sum(values, dim), values.sum(dim))
    if shape[0]:
        assert torch.equal(sample_sum(values), values.sum((1, 2)))


def test_one_term_is_itself() -> None:
    values = noise(4, 1, 3)
    assert torch.equal(ordered_sum(values, 1), values[:, 0])


def test_terms_are_left_as_they_are() -> None:
    values = noise(3, 7)
    before = values.clone()
    ordered_sum(values, 1)
    assert torch.equal(values, before)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("length", [2, 3, 25, 255, 784, 150_528])
def test_bits_do_not_depend_on_the_batch(length: int, threads: int, dtype: torch.dtype) -> None:
    alone = noise(1, length, dtype=dtype)
    expected = ordered_sum(alone, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for batch, at in itertools.chain.from_iterable([(size, 0), (size, size - 1)] for size in (1, 2, 7)):
            values = noise(batch, length, seed=batch, dtype=dtype)
            values[at] = alone
            for arranged in (
                values,
                values.T.contiguous().T,
                torch.stack([values, -values], -1)[..., 0],
                values.flip(0).flip(0),
                values[:, None].expand(batch, 3, length)[:, 1],
            ):
                assert torch.equal(ordered_sum(arranged, 1)[at], expected[0])
            assert torch.equal(ordered_sum(values.T, 0)[at], expected[0])
            assert torch.equal(sample_sum(values)[at], expected[0])
    finally:
        torch.set_num_threads(before)


def test_bits_of_a_sample_do_not_depend_on_its_shape() -> None:
    values = noise(2, 3, 8, 9)
    assert torch.equal(sample_sum(values), sample_sum(values.flatten(1)))
    assert torch.equal(sample_sum(values.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)), sample_sum(values))


def test_more_accurate_than_one_addition_after_another() -> None:
    values = torch.rand(1_000_003, generator=torch.Generator().manual_seed(0))
    exact = math.fsum(values.double().tolist())
    naive = abs(float(np.cumsum(values.numpy(), dtype=np.float32)[-1]) - exact)
    assert abs(ordered_sum(values, 0).item() - exact) <= min(naive / 100, 1e-7 * exact)
