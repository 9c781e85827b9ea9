"""Muon: its matrices against their singular values, the rest against torch's Adam."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Adam

from wasserball.train.muon import MOMENTUM, SCALE, Muon, orthogonal


def network() -> nn.Sequential:
    torch.manual_seed(0)
    features = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*features, nn.Linear(6 * 4 * 4, 12), nn.ReLU(), nn.Linear(12, 3)).double()


def slopes(model: nn.Module, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]


def take(model: nn.Module, optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> list[Tensor]:
    """A step; returns by how much each parameter moved."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()
    return [was - parameter.detach() for was, parameter in zip(before, model.parameters(), strict=True)]


@settings(deadline=None)
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), size=st.sampled_from([1e-20, 1.0, 1e20]))
def test_singular_values_are_made_alike_and_vectors_kept(rows: int, columns: int, size: float) -> None:
    generator = torch.Generator().manual_seed(rows * 13 + columns)
    left, values, right = torch.linalg.svd(
        torch.randn(rows, columns, generator=generator, dtype=torch.float64), full_matrices=False
    )
    values = values.clamp(min=0.02 * values.norm())  # smaller ones take more rounds
    found = orthogonal(left * values * size @ right)
    turned = left.T @ found @ right.T
    assert turned.diagonal().min() > 0.6
    assert turned.diagonal().max() < 1.3
    assert (turned - turned.diagonal().diag()).abs().max() < 1e-6
    torch.testing.assert_close(left @ turned @ right, found)


def test_nothing_is_made_of_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(3, 5)), torch.zeros(3, 5))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_what_is_no_hidden_matrix_follows_adam(decay: float) -> None:
    model, alike = network(), network()
    mine, adam = Muon(list(model.parameters()), lr=0.01, weight_decay=decay), Adam(alike.parameters(), 0.01)
    names = [name for name, _ in model.named_parameters()]
    for seed in range(4):
        moved, expected = (take(net, by, slopes(net, seed)) for net, by in ((model, mine), (alike, adam)))
        for name, step, other in zip(names, moved, expected, strict=True):
            if name not in ("0.weight", "4.weight"):
                torch.testing.assert_close(step, other, rtol=1e-6, atol=1e-9)


def test_a_step_is_the_momentum_with_equal_singular_values() -> None:
    model = network()
    mine = Muon(list(model.parameters()), lr=0.01)
    speed = torch.zeros(12, 96, dtype=torch.float64)
    for seed in range(3):
        gradients = slopes(model, seed)
        step = take(model, mine, gradients)[4]
        speed = MOMENTUM * speed + (1 - MOMENTUM) * gradients[4]
        wanted = orthogonal((1 - MOMENTUM) * gradients[4] + MOMENTUM * speed) * (0.01 * SCALE * math.sqrt(96))
        torch.testing.assert_close(step, wanted)
        # one rate serves both: entries as large as SCALE times those of Adam's first step, which are the rate
        assert step.square().mean().sqrt().item() == pytest.approx(0.01 * SCALE, rel=0.2)


def test_decay_shrinks_the_matrices_and_leaves_the_step_as_it_is() -> None:
    model, alike = network(), network()
    without, by = Muon(list(model.parameters()), lr=0.01), Muon(list(alike.parameters()), lr=0.01, weight_decay=2.0)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    steps, shrunk = take(model, without, slopes(model, 0)), take(alike, by, slopes(alike, 0))
    for place, (step, other, weight) in enumerate(zip(steps, shrunk, weights, strict=True)):
        decay = 0.02 if place in (0, 4) else 0.0
        torch.testing.assert_close(other, step + decay * weight)


def test_a_network_of_one_layer_is_its_last() -> None:
    model, alike = nn.Linear(3, 2), nn.Linear(3, 2)
    alike.load_state_dict(model.state_dict())
    moved = take(model, Muon(list(model.parameters()), lr=0.1), slopes(model, 0))
    expected = take(alike, Adam(alike.parameters(), 0.1), slopes(model, 0))
    torch.testing.assert_close(moved, expected)
