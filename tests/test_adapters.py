"""One contract for all adapters, against the real packages: the native images, valid, and a model left alone."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wasserball as wb
from tests.hosts import ATTACKS, HOSTS, State, native
from tests.victims import CLASSES, grey_images, network, predictions

EPS = 0.1
CONTRACT = pytest.mark.parametrize("host", HOSTS)
EVERY_ATTACK = pytest.mark.parametrize("name", ATTACKS)


def problem() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A model, some images, and what it says of them; one answer is wrong from the beginning."""
    model, images = network().eval(), grey_images(6)
    labels = predictions(model, images)
    labels[2] = (labels[2] + 1) % CLASSES
    return model, images, labels


@CONTRACT
@EVERY_ATTACK
def test_images_are_those_of_the_native_call_and_valid(host: str, name: str) -> None:
    model, images, labels = problem()
    found = HOSTS[host](name, model, eps=EPS, **ATTACKS[name])(images, labels)
    expected = native(name, model, eps=EPS, **ATTACKS[name])(images, labels)
    assert torch.equal(found, expected)
    assert (predictions(model, found) != labels).sum() > (predictions(model, images) != labels).sum()
    assert wb.verify(images, found, eps=EPS, cost=wb.LocalCost(7)).valid.all()


@CONTRACT
@EVERY_ATTACK
def test_labels_are_targets_where_it_is_targeted(host: str, name: str) -> None:
    model, images, labels = problem()
    targets = (labels + 1) % CLASSES
    found = HOSTS[host](name, model, eps=0.5, targeted=True, **ATTACKS[name])(images, targets)
    expected = native(name, model, eps=0.5, targeted=True, **ATTACKS[name])(images, targets)
    assert torch.equal(found, expected)
    assert (predictions(model, found) == targets).any()


@CONTRACT
@EVERY_ATTACK
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was_found(host: str, name: str, fails: bool) -> None:
    model, images, labels = problem()
    model[2].train()  # one layer is not like the others
    model[1].bias.requires_grad_(False)
    attack = HOSTS[host](name, model, eps=EPS, **ATTACKS[name])
    before = State.of(model)
    if fails:
        with pytest.raises(ValueError, match="labels must be from 0 to 3"):
            attack(images, labels + 50)
    else:
        attack(images, labels)
    assert before.same(State.of(model))


@pytest.mark.parametrize("host", ["bind", "art", "torchattacks"])  # Foolbox uses a model in the mode it is in
def test_a_model_in_training_is_attacked_in_evaluation_mode(host: str) -> None:
    layers, images, labels = problem()
    model = nn.Sequential(*list(layers)[:3], nn.Dropout(0.9), layers[3])
    attack = HOSTS[host]("PGD", model, eps=EPS, steps=8)
    model.train()
    model[3].training = False
    model[0].training = False
    found = attack(images, labels)
    assert torch.equal(found, native("PGD", layers, eps=EPS, steps=8)(images, labels))
    assert [module.training for module in model.modules()] == [True, False, True, True, False, True]


@pytest.mark.parametrize("host", ["bind", "foolbox", "art"])  # torchattacks knows [0, 1] alone
def test_images_may_have_other_bounds(host: str) -> None:
    layers, images, labels = problem()
    model = nn.Sequential(Scaled(), *layers).eval()
    found = HOSTS[host]("PGD", model, eps=EPS, steps=8, bounds=(0, 255))(255 * images, labels)
    assert torch.equal(found, native("PGD", model, eps=EPS, steps=8, bounds=(0, 255))(255 * images, labels))
    assert found.max() > 1
    assert wb.verify(255 * images, found, eps=EPS, bounds=(0, 255)).valid.all()


class Scaled(nn.Module):
    """Eight bits to [0, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        return images / 255


@CONTRACT
def test_images_out_of_bounds_are_refused(host: str) -> None:
    model, images, labels = problem()
    # Foolbox looks itself, before any attack does.
    with pytest.raises(
        AssertionError if host == "foolbox" else ValueError, match=None if host == "foolbox" else "images"
    ):
        HOSTS[host]("PGD", model, eps=EPS)(images + 0.5, labels)


@CONTRACT
@pytest.mark.parametrize("bounds", [(-1, 1), (0.5, 1)])
def test_bounds_that_do_not_start_at_0_are_refused(host: str, bounds: Any) -> None:
    model, images, labels = problem()
    with pytest.raises(ValueError, match=r"bounds|clip_values"):
        HOSTS[host]("PGD", model, eps=EPS, bounds=bounds)(images.clamp(0.5, 1), labels)


@CONTRACT
def test_wrong_options_are_named(host: str) -> None:
    model, _, _ = problem()
    with pytest.raises(ValueError, match="steps must be an integer >= 1, got 0"):
        HOSTS[host]("PGD", model, eps=EPS, steps=0)
    with pytest.raises(TypeError, match="sparkle"):
        HOSTS[host]("PGD", model, eps=EPS, sparkle=True)


@CONTRACT
def test_the_callers_images_and_labels_are_not_touched(host: str) -> None:
    model, images, labels = problem()
    before = images.clone(), labels.clone()
    HOSTS[host]("PGD", model, eps=EPS, steps=3)(images, labels)
    assert torch.equal(images, before[0])
    assert torch.equal(labels, before[1])


@pytest.mark.parametrize("package", ["foolbox", "art", "torchattacks"])
def test_a_missing_package_is_named_with_what_to_install(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import wasserball.adapters.{package}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1
    assert f"pip install wasserball[{package}]" in run.stderr.splitlines()[-1]
