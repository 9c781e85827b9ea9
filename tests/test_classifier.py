"""The model as an attack meets it: frozen, with gradients as autograd takes them, in any precision and any wrapping."""

import math
import shutil
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wasserball as wb
from tests.victims import CLASSES, Noisy, grey_images, network, predictions
from wasserball.attacks.classifier import Classifier, Model, Slope, frozen
from wasserball.attacks.losses import Loss, LossName, cross_entropy, dlr, margin, resolve_loss

LOSSES: dict[LossName, Any] = {"ce": cross_entropy, "margin": margin, "dlr": dlr}


def problem(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    return network(dtype=dtype), grey_images(5, dtype=dtype), torch.tensor([0, 1, 2, 3, 0])


def gradient(slope: Slope) -> Tensor:
    return slope.direction.double() * slope.scale.view(-1, 1, 1, 1)


def by_autograd(model: nn.Module, images: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    leaf = images.detach().clone().requires_grad_()
    values = loss(model(leaf), labels)
    (found,) = torch.autograd.grad(values.sum(), leaf)
    return values.detach(), found


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_slope_is_the_gradient_of_autograd(name: LossName, targeted: bool) -> None:
    model, images, labels = problem()
    loss = resolve_loss(name, targeted)
    slope = Classifier(model, images, draws=1).slope(images, labels, loss)
    values, truth = by_autograd(model, images, labels, partial(LOSSES[name], targeted=targeted))
    torch.testing.assert_close(slope.logits, model(images).detach())
    torch.testing.assert_close(slope.loss, values)
    torch.testing.assert_close(gradient(slope), truth, rtol=1e-12, atol=1e-14)
    assert slope.direction.abs().flatten(1).amax(1).tolist() == [1] * 5


def test_slope_behind_a_clamp_is_the_gradient_of_autograd() -> None:
    model, images, labels = problem()
    bright, loss = 1.5 * images, resolve_loss("ce", False)
    assert (bright > 1).any()
    leaf = bright.clone().requires_grad_()
    (truth,) = torch.autograd.grad(loss(model(leaf.clamp(0, 1)), labels).sum(), leaf)
    slope = Classifier(model, images, draws=1).slope(bright.clamp(0, 1), labels, loss).only(bright <= 1)
    torch.testing.assert_close(gradient(slope), truth, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slope.direction.abs().flatten(1).amax(1), torch.ones(5, dtype=torch.float64))
    nothing = slope.only(torch.zeros_like(images, dtype=torch.bool))
    assert not nothing.direction.any()
    assert not nothing.scale.any()


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_rise_towards_success(name: LossName, targeted: bool) -> None:
    """From their definition, sample by sample, and with the sign that an attack wants."""
    logits = torch.tensor([[3.0, 1.0, -2.0, 0.5], [0.0, 0.0, 4.0, -1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    values = resolve_loss(name, targeted)(logits, labels)
    for row, label, value in zip(logits.tolist(), labels.tolist(), values.tolist(), strict=True):
        others = [logit for index, logit in enumerate(row) if index != label]
        order = sorted(row, reverse=True)
        ahead = max(others) - row[label]
        spread = order[0] - ((order[2] + order[3]) / 2 if targeted else order[2])
        surprise = math.log(sum(math.exp(logit) for logit in row)) - row[label]
        truth = {"ce": surprise, "margin": ahead, "dlr": ahead / spread}[name]
        assert value == pytest.approx(-truth if targeted else truth, rel=1e-10)


def test_a_loss_that_is_no_name_is_its_own() -> None:
    assert resolve_loss(margin, True) is margin


@pytest.mark.parametrize("ahead", [50.0, 300.0, 700.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_saturated_cross_entropy_still_has_a_direction(ahead: float, dtype: torch.dtype) -> None:
    """In float32, exp(-104) is 0, and in float16 the gradient would be lost long before that."""
    model, images, _ = problem(torch.float32)
    labels = torch.zeros(5, dtype=torch.int64)

    class Sure(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.model(images)
            return logits + logits.new_tensor([ahead, 0, 0, 0])

    slope = Classifier(Sure().to(dtype), images, draws=1).slope(images, labels, cross_entropy)
    assert torch.isfinite(slope.direction).all()
    assert slope.direction.abs().flatten(1).amax(1).tolist() == [1] * 5
    assert ((slope.scale > 0) & (slope.scale < math.exp(20 - ahead))).all()
    # Far out, the cross entropy is led by the best of the other classes, and its direction is that of the margin.
    precise = network(dtype=torch.float64)
    with torch.no_grad():
        weights = precise(images.double())[:, 1:].softmax(1)
    leaf = images.double().requires_grad_()
    logits = precise(leaf)
    (rise,) = torch.autograd.grad(((logits[:, 1:] * weights).sum(1) - logits[:, 0]).sum(), leaf)
    rise = rise / rise.abs().flatten(1).amax(1).view(-1, 1, 1, 1)
    noise = {torch.float16: 0.02, torch.bfloat16: 0.3, torch.float32: 1e-4}[dtype]
    torch.testing.assert_close(slope.direction.double(), rise, rtol=0, atol=noise)


def test_no_slope_is_no_direction() -> None:
    images = grey_images(2)
    slope = Classifier(lambda pixels: 0 * pixels.flatten(1)[:, :3], images, 1).slope(
        images, torch.zeros(2).long(), margin
    )
    assert not slope.direction.any()
    assert slope.scale.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_models_see_half_precision_images(dtype: torch.dtype) -> None:
    model, images, labels = problem(torch.float32)
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    classifier = Classifier(model.to(dtype), images, draws=1)
    assert classifier.logits(images).dtype == torch.float32
    slope = classifier.slope(images, labels, cross_entropy)
    assert set(seen) == {dtype}
    assert slope.direction.dtype == torch.float32
    _, truth = by_autograd(network(), images, labels, cross_entropy)
    torch.testing.assert_close(gradient(slope), truth.double(), rtol=0, atol=0.1 if dtype == torch.bfloat16 else 0.02)


def test_draws_are_averaged() -> None:
    model, images, labels = problem()
    torch.manual_seed(0)
    slope = Classifier(Noisy(model), images, draws=4).slope(images, labels, margin)
    torch.manual_seed(0)
    logits, values, rises = [], [], []
    for _ in range(4):
        noise = 1 + 0.3 * torch.randn_like(images)
        leaf = images.clone().requires_grad_()
        logits.append(model(leaf * noise))
        values.append(margin(logits[-1], labels))
        rises.append(torch.autograd.grad(values[-1].sum(), leaf)[0])
    torch.testing.assert_close(slope.logits, torch.stack(logits).mean(0).detach())
    torch.testing.assert_close(slope.loss, torch.stack(values).mean(0).detach())
    torch.testing.assert_close(gradient(slope), torch.stack(rises).mean(0))


def test_frozen_is_for_the_inside_only() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    model[0].weight.requires_grad_(False)
    model[2].eval()
    modes = [module.training for module in model.modules()]
    needs = [parameter.requires_grad for parameter in model.parameters()]
    with frozen(model):
        assert not any(module.training for module in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == needs
    with frozen(lambda images: images):
        pass


def attack(model: Model) -> wb.AttackResult:
    images = grey_images(4)
    return wb.PGD(eps=0.05, steps=5, cost=wb.LocalCost(3))(model, images, predictions(network(), images))


def test_a_wrapped_model_is_the_model() -> None:
    plain = attack(network())
    assert plain.success.any()
    wrapped = attack(nn.DataParallel(network()))
    assert torch.equal(wrapped.adversarial, plain.adversarial)
    assert torch.equal(wrapped.success, plain.success)


def test_inside_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = attack(network())
        assert torch.equal(result.prediction, predictions(network(), result.adversarial))
    assert result.adversarial.dtype == torch.float32
    assert result.valid.all()
    assert result.success.any()
    outside = attack(network())
    torch.testing.assert_close(result.margin, outside.margin, rtol=0, atol=0.3)


class Casting(nn.Module):
    """A model with its own autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits: Tensor = self.model(images)
        assert logits.dtype == torch.bfloat16
        return logits


def test_a_model_that_casts_by_itself() -> None:
    result = attack(Casting())
    assert torch.equal(result.prediction, predictions(Casting(), result.adversarial))
    assert result.loss.dtype == torch.float64


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_compiled_model() -> None:
    model = network()
    with torch.no_grad():
        first = torch.compile(model)(grey_images(4))
    torch.testing.assert_close(first, model(grey_images(4)).detach(), rtol=0, atol=1e-5)
    result = attack(torch.compile(model))
    plain = attack(network())
    assert torch.equal(result.success, plain.success)
    torch.testing.assert_close(result.margin, plain.margin, rtol=0, atol=1e-2)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.skipif(sys.platform == "win32", reason="torch.compile is not for Windows")
def test_a_captured_model() -> None:
    """The fast sibling of the compiled one: what torch.compile captures, run as it is."""
    model = torch.compile(network(), backend="eager")
    result = attack(model)
    assert torch.equal(result.adversarial, attack(network()).adversarial)


def test_classes_are_counted() -> None:
    model, images, _ = problem()
    classifier = Classifier(model, images, draws=1)
    assert classifier.classes is None
    classifier.logits(images)
    assert classifier.classes == CLASSES
