"""The adapter for ART: labels in each form, channels last, its preprocessing, its trainer, and what it refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from art.defences.preprocessor import SpatialSmoothing
from art.defences.preprocessor.preprocessor import PreprocessorPyTorch
from art.defences.trainer import AdversarialTrainer
from art.estimators.classification import SklearnClassifier
from art.exceptions import EstimatorError
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import wasserball as wb
from tests.hosts import art_classifier
from tests.victims import CLASSES, grey_images, network, predictions
from wasserball.adapters import art as adapter

EPS = 0.1
FORMS: dict[str, Callable[[Any], Any]] = {
    "indices": lambda labels: labels,
    "a column": lambda labels: labels[:, None],
    "one-hot": lambda labels: np.eye(CLASSES, dtype=np.float32)[labels],
}


def expected(images: Tensor, labels: Tensor, **options: Any) -> Any:
    return wb.PGD(eps=EPS, steps=8, **options)(network(), images, labels).adversarial.numpy()


@pytest.mark.parametrize("form", FORMS)
def test_labels_come_in_any_form(form: str) -> None:
    images = grey_images(6)
    labels = predictions(network(), images)
    attack = adapter.PGD(art_classifier(network()), eps=EPS, steps=8)
    found = attack.generate(images.numpy(), FORMS[form](labels.numpy()))
    assert found.dtype == np.float32
    assert np.array_equal(found, expected(images, labels))
    assert attack.result is not None
    assert attack.result.valid.all()


def test_without_labels_the_answers_are_avoided_and_targets_must_be_given() -> None:
    images = grey_images(6)
    attack = adapter.PGD(art_classifier(network()), eps=EPS, steps=8)
    assert np.array_equal(attack.generate(images.numpy()), expected(images, predictions(network(), images)))
    attack.set_params(targeted=True)
    assert attack.targeted
    with pytest.raises(ValueError, match="labels must be given where targeted is True"):
        attack.generate(images.numpy())


def test_float64_comes_back_as_float32_as_everywhere_in_art() -> None:
    images = grey_images(3)
    labels = predictions(network(), images)
    found = adapter.PGD(art_classifier(network()), eps=EPS, steps=8).generate(images.double().numpy(), labels.numpy())
    assert found.dtype == np.float32
    assert np.array_equal(found, expected(images, labels))


class ChannelsLast(nn.Module):
    """A model for images as pictures are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network(features=108)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.movedim(-1, 1))
        return logits


def test_channels_may_come_last() -> None:
    images = grey_images(4, channels=3)
    model = ChannelsLast().eval()
    labels = predictions(model.model, images)
    classifier = art_classifier(model, shape=(6, 6, 3), channels_first=False)
    found = adapter.PGD(classifier, eps=EPS, steps=8).generate(images.movedim(1, -1).numpy(), labels.numpy())
    native = wb.PGD(eps=EPS, steps=8)(model.model, images, labels)
    assert found.shape == (4, 6, 6, 3)
    assert np.array_equal(np.moveaxis(found, -1, 1), native.adversarial.numpy())


def test_standardisation_by_art_is_part_of_the_model() -> None:
    images = grey_images(6)
    model = nn.Sequential(wb.zoo.Normalize([0.3], [0.4]), network()).eval()
    labels = predictions(model, images)
    classifier = art_classifier(network(), preprocessing=(np.array([0.3]), np.array([0.4])))
    attack = adapter.PGD(classifier, eps=EPS, steps=8)
    found = attack.generate(images.numpy(), labels.numpy())
    native = wb.PGD(eps=EPS, steps=8)(model, images, labels)
    assert np.allclose(found, native.adversarial.numpy(), atol=1e-4)
    assert attack.result is not None
    assert torch.equal(attack.result.success, native.success)
    # What ART itself answers agrees with what the attack was told.
    assert np.array_equal(classifier.predict(found).argmax(1), attack.result.prediction.numpy())


class Steps(PreprocessorPyTorch):  # type: ignore[misc]
    """A defence without a gradient: sixteen levels. For the way back ART has the identity."""

    def __init__(self) -> None:
        super().__init__(device_type="cpu", is_fitted=True, apply_fit=True, apply_predict=True)

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return (x * 16).round() / 16, y

    def estimate_forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x


def test_a_defence_without_a_gradient_does_not_stop_the_attack() -> None:
    images = grey_images(6)
    classifier = art_classifier(network(), preprocessing_defences=Steps())
    labels = classifier.predict(images.numpy()).argmax(1)
    attack = adapter.PGD(classifier, eps=0.3, steps=20)
    found = attack.generate(images.numpy(), labels)
    assert attack.result is not None
    assert attack.result.success.any()
    assert np.array_equal(classifier.predict(found).argmax(1) != labels, attack.result.success.numpy())


def test_arts_trainer_takes_it_and_the_model_learns() -> None:
    images = grey_images(32)
    labels = (images[:, 0, :3].sum((1, 2)) > images[:, 0, 3:].sum((1, 2))).long()
    model = network()
    classifier = art_classifier(model)
    attack = adapter.PGD(classifier, eps=0.02, steps=3)
    before = nn.functional.cross_entropy(model(images), labels).item()
    trainer = AdversarialTrainer(classifier, attack, ratio=0.5)
    trainer.fit(images.numpy(), np.eye(CLASSES, dtype=np.float32)[labels.numpy()], batch_size=8, nb_epochs=10)
    assert nn.functional.cross_entropy(model(images), labels).item() < before / 2
    assert model[1].weight.requires_grad


def test_parameters_are_those_of_the_native_attack() -> None:
    attack = adapter.PGD(art_classifier(network()), eps=EPS, steps=8)
    assert {"eps", "steps", "loss", "cost", "targeted", "box"} <= set(attack.attack_params)
    assert "bounds" not in attack.attack_params
    attack.set_params(eps=0.2, steps=3)
    assert "eps=0.2, steps=3" in repr(attack)
    images = grey_images(3)
    labels = predictions(network(), images)
    native = wb.PGD(eps=0.2, steps=3)(network(), images, labels)
    assert np.array_equal(attack.generate(images.numpy(), labels.numpy()), native.adversarial.numpy())
    for wrong in (dict(steps=0), dict(sparkle=1), dict(bounds=(0, 1))):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            attack.set_params(**wrong)
    assert "steps=3" in repr(attack)


@pytest.mark.parametrize(
    "clip_values", [None, (-1, 1), (np.zeros((1, 6, 6)), np.linspace(0.5, 1, 36).reshape(1, 6, 6))]
)
def test_a_box_that_makes_no_sense_is_refused(clip_values: Any) -> None:
    attack = adapter.PGD(art_classifier(network(), clip_values=clip_values), eps=EPS)
    with pytest.raises(ValueError, match=r"clip_values of the estimator must be \(0, high\)"):
        attack.generate(grey_images(1).numpy())


def test_a_box_may_be_given_for_each_pixel() -> None:
    images = grey_images(3)
    labels = predictions(network(), images)
    classifier = art_classifier(network(), clip_values=(np.zeros((1, 6, 6)), np.ones((1, 6, 6))))
    found = adapter.PGD(classifier, eps=EPS, steps=8).generate(images.numpy(), labels.numpy())
    assert np.array_equal(found, expected(images, labels))


def test_other_estimators_and_words_are_refused() -> None:
    with pytest.raises(EstimatorError):
        adapter.PGD(SklearnClassifier(LogisticRegression()), eps=EPS)
    with pytest.raises(ValueError, match="preprocessing of the estimator must be PyTorch's own"):
        adapter.PGD(art_classifier(network(), preprocessing_defences=SpatialSmoothing()), eps=EPS)
    with pytest.raises(ValueError, match="bounds must not be given to this PGD: they are the estimator's clip_values"):
        adapter.PGD(art_classifier(network()), eps=EPS, bounds=(0, 1))
    with pytest.raises(ValueError, match="mask must not be given"):
        adapter.PGD(art_classifier(network()), eps=EPS).generate(grey_images(1).numpy(), mask=np.ones(1))
