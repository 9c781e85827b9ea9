"""The Foolbox adapter: its distance, how it clips, many radii in one call, criteria, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from eagerpy.astensor import astensor
from foolbox.criteria import Misclassification, TargetedMisclassification
from foolbox.models.pytorch import PyTorchModel
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

import wasserball as wb
from tests.victims import CLASSES, grey_images, network, predictions
from wasserball.adapters import foolbox as adapter
from wasserball.adapters.foolbox import WassersteinDistance

EPS = [0.02, 0.1, 0.3]


def problem() -> tuple[PyTorchModel, Tensor, Tensor]:
    model, images = network().eval(), grey_images(8)
    return PyTorchModel(model, bounds=(0, 1), device="cpu"), images, predictions(model, images)


def test_many_radii_in_one_call_are_many_native_calls() -> None:
    model, images, labels = problem()
    attack = adapter.PGD(steps=8)
    raw, clipped, success = attack(model, images, labels, epsilons=EPS)
    assert success.shape == (3, 8)
    for eps, image, cut, fooled in zip(EPS, raw, clipped, success, strict=True):
        found = wb.PGD(eps=eps, steps=8)(network(), images, labels)
        assert torch.equal(image, found.adversarial)
        assert torch.equal(cut, image)  # what is certified needs no clipping
        assert torch.equal(fooled, found.success)
    assert attack.result is not None
    assert attack.result.valid.all()
    assert repr(attack) == "PGD(steps=8)"


def test_an_attack_can_be_repeated() -> None:
    model, images, labels = problem()
    attack = adapter.PGD(steps=8)
    once = attack(model, images, labels, epsilons=0.1)
    twice = attack.repeat(2)(model, images, labels, epsilons=0.1)
    assert all(map(torch.equal, once, twice))  # nothing is random without random starts


def test_minimal_radius_gives_the_smallest_and_what_is_left_of_it_within_others() -> None:
    model, images, labels = problem()
    attack = adapter.MinimalRadius(steps=20)
    raw, clipped, success = attack(model, images, labels, epsilons=[0.02, 0.1, None])
    found = wb.MinimalRadius(steps=20)(network(), images, labels)
    assert all(torch.equal(image, found.adversarial) for image in raw)
    assert torch.equal(clipped[2], found.adversarial)
    assert torch.equal(success[2], found.success)
    for eps, cut, fooled in zip([0.02, 0.1], clipped, success, strict=False):
        assert wb.verify(images, cut, eps=eps, cost=found.cost).valid.all()
        assert torch.equal(fooled, found.success & (found.distance <= eps))
    assert success[0].sum() < success[2].sum()


def test_the_distance_is_that_of_optimal_transport() -> None:
    images = grey_images(2, side=3)
    masses = images.sum((1, 2, 3))
    moved = images.flip(0) * (masses / masses.flip(0)).reshape(-1, 1, 1, 1)  # the other image with the same mass
    points = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0))
    prices = torch.cdist(points, points).flatten().numpy()
    rows, columns = np.kron(np.eye(9), np.ones(9)), np.kron(np.ones(9), np.eye(9))
    for clean, image, distance in zip(images, moved, WassersteinDistance()(images, moved), strict=True):
        marginals = torch.cat([clean.flatten(), image.flatten()]).numpy()
        least = linprog(prices, A_eq=np.concatenate([rows, columns]), b_eq=marginals)
        assert distance.item() == pytest.approx(least.fun / clean.sum().item(), rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 0.6))
def test_clipping_stays_in_ball_and_box(seed: int, eps: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(3, 2, 4, 4, generator=generator).clamp(0.2, 0.8)
    order = torch.randperm(16, generator=generator)
    moved = images.flatten(2)[:, :, order].reshape(images.shape)
    distance = WassersteinDistance()
    cut = distance.clip_perturbation(images, moved, eps)
    assert wb.verify(images, cut, eps=eps).valid.all()
    far = distance(images, moved)
    assert torch.equal(cut[far <= eps], moved[far <= eps])
    # Those that are clipped are as far as may be.
    assert torch.allclose(distance(images, cut)[far > eps], torch.tensor(eps), atol=1e-5)


def test_other_masses_are_infinitely_far_and_black_images_at_home() -> None:
    images = torch.stack([torch.full((1, 3, 3), 0.5), torch.zeros(1, 3, 3)])
    brighter = torch.stack([torch.full((1, 3, 3), 0.6), torch.zeros(1, 3, 3)])
    distance = WassersteinDistance()
    assert distance(images, brighter).tolist() == [torch.inf, 0]
    assert torch.equal(distance.clip_perturbation(images, brighter, 0.3), images)
    assert repr(distance) == "WassersteinDistance(LocalCost(window=5, metric='euclidean', power=1))"


def test_an_attacks_distance_is_exact_for_images_of_others() -> None:
    model, images, labels = problem()
    attack = adapter.PGD(steps=4)
    assert repr(attack.distance) == repr(WassersteinDistance())
    raw, _, _ = attack(model, images, labels, epsilons=0.1)
    other = images.flip(3)
    assert torch.equal(attack.distance(images, other), WassersteinDistance()(images, other))
    exact, proved = WassersteinDistance()(images, raw), attack.distance(images, raw)
    assert (exact <= proved + 1e-6).all()


def test_only_what_a_criterion_says_clearly_is_understood() -> None:
    model, images, labels = problem()
    both = Misclassification(labels) & TargetedMisclassification((labels + 1) % CLASSES)
    with pytest.raises(ValueError, match="criterion must be a"):
        adapter.PGD(steps=2)(model, images, both, epsilons=0.1)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("PGD", dict(eps=0.1), "eps must not be given to this PGD: the radii are the epsilons"),
        ("Auto", dict(targeted=True), "targeted must not be given to this Auto: pass a TargetedMisclassification"),
        ("MinimalRadius", dict(bounds=(0, 1)), "bounds must not be given to this MinimalRadius"),
    ],
)
def test_what_foolbox_decides_is_not_an_option(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(adapter, kind)(**options)


def test_arrays_of_other_frameworks_are_refused() -> None:
    images = grey_images(1).numpy()
    with pytest.raises(ValueError, match="inputs and labels must be tensors of PyTorch, got ndarray"):
        WassersteinDistance()(images, images)
    with pytest.raises(ValueError, match="tensors of PyTorch"):
        WassersteinDistance()(astensor(images), astensor(images))


def test_unknown_words_of_a_call_are_named() -> None:
    model, images, labels = problem()
    for attack in (adapter.PGD(steps=2), adapter.MinimalRadius(steps=2)):
        with pytest.raises(TypeError, match="sparkle"):
            attack(model, images, labels, epsilons=0.1, sparkle=True)
