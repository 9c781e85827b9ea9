"""The adapter for torchattacks: among its own attacks, behind its normalisation, in its modes."""

from typing import Any

import pytest
import torch
import torchattacks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wasserball as wb
from tests.victims import CLASSES, grey_images, network, predictions
from wasserball.adapters import torchattacks as adapter

EPS = 0.1
MEAN, STD = 0.3, 0.4


class Normalised(nn.Module):
    """A model for images with mean 0 and deviation 1."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images * STD + MEAN)
        return logits


def normalise(images: Tensor) -> Tensor:
    return (images - MEAN) / STD


def test_among_others_in_a_multi_attack() -> None:
    images, model = grey_images(8), network().eval()
    labels = predictions(model, images)
    mine = adapter.PGD(model, eps=0.05, steps=8), adapter.FrankWolfe(model, eps=0.3, steps=8)
    battery = torchattacks.MultiAttack([*mine, torchattacks.FGSM(model, eps=0.2)])
    found = battery(images, labels)
    first = wb.PGD(eps=0.05, steps=8)(model, images, labels)
    second = wb.FrankWolfe(eps=0.3, steps=8)(model, images, labels)
    assert 0 < first.success.sum() < second.success.sum()
    assert torch.equal(found[first.success], first.adversarial[first.success])
    later = second.success & ~first.success
    assert torch.equal(found[later], second.adversarial[later])


@pytest.mark.parametrize("battery", [False, True])
def test_behind_a_normalisation(battery: bool) -> None:
    images, model = grey_images(8), Normalised().eval()
    labels = predictions(network(), images)
    attack = adapter.PGD(model, eps=EPS, steps=8)
    whole = torchattacks.MultiAttack([attack, adapter.PGD(model, eps=EPS, steps=2)]) if battery else attack
    whole.set_normalization_used(mean=[MEAN], std=[STD])
    found = whole(normalise(images), labels)
    assert attack.result is not None
    assert attack.result.valid.all()
    assert torch.allclose(attack.result.images, images, atol=1e-6)
    native = wb.PGD(eps=EPS, steps=8)(network(), images, labels)
    assert torch.equal(attack.result.success, native.success)
    answers = predictions(model, found)
    assert torch.equal(answers != labels, native.success)
    assert "normalization_used=True" in repr(attack)


def test_a_pixel_that_is_out_by_more_than_rounding_is_told() -> None:
    model = Normalised().eval()
    attack = adapter.PGD(model, eps=EPS, steps=2)
    attack.set_normalization_used(mean=[MEAN], std=[STD])
    images = normalise(grey_images(2))
    with pytest.raises(ValueError, match=r"images must be in \[0, 1\]"):
        attack(images + 0.01, torch.zeros(2, dtype=torch.int64))


def test_all_of_its_modes() -> None:
    images, model = grey_images(6), network().eval()
    labels = predictions(model, images)
    attack = adapter.PGD(model, eps=0.5, steps=10)
    attack.set_mode_targeted_by_function(lambda _, labels: (labels + 1) % CLASSES, quiet=True)
    targeted = wb.PGD(eps=0.5, steps=10, targeted=True)
    assert torch.equal(attack(images, labels), targeted(model, images, (labels + 1) % CLASSES).adversarial)
    attack.set_mode_targeted_least_likely(quiet=True)
    least = model(images).argmin(1)
    assert torch.equal(attack(images, labels), targeted(model, images, least).adversarial)
    attack.set_mode_targeted_random(quiet=True)
    found = attack(images, labels)
    assert attack.result is not None
    assert (attack.result.labels != labels).all()
    assert torch.equal(predictions(model, found) == attack.result.labels, attack.result.success)
    attack.set_mode_default()
    assert torch.equal(attack(images, labels), wb.PGD(eps=0.5, steps=10)(model, images, labels).adversarial)


def test_without_labels_the_answers_are_avoided() -> None:
    images, model = grey_images(6), network().eval()
    native = wb.PGD(eps=EPS, steps=8)(model, images, predictions(model, images))
    assert torch.equal(adapter.PGD(model, eps=EPS, steps=8)(images), native.adversarial)


def test_its_loop_over_a_loader_counts_right(capsys: pytest.CaptureFixture[str]) -> None:
    images, model = grey_images(8), network().eval()
    labels = predictions(model, images)
    attack = adapter.PGD(model, eps=EPS, steps=8)
    accuracy, _, _ = attack.save(DataLoader(TensorDataset(images, labels), batch_size=4), return_verbose=True)
    assert accuracy == pytest.approx(100 * wb.PGD(eps=EPS, steps=8)(model, images, labels).robust_accuracy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(bounds=(0, 255)), r"bounds must not be given to this PGD: they are \(0, 1\)"),
        (dict(targeted=True), "targeted must not be given to this PGD: call set_mode_targeted_by_label"),
    ],
)
def test_what_torchattacks_decides_is_not_an_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapter.PGD(network(), eps=EPS, **options)
