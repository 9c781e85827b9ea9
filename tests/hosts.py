"""The packages that wasserball has adapters for, as one function each: an attack through their interface."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from art.estimators.classification import PyTorchClassifier
from foolbox.criteria import Misclassification, TargetedMisclassification
from foolbox.models.pytorch import PyTorchModel
from torch import Tensor, nn

import wasserball as wb
from tests.victims import CLASSES
from wasserball.adapters import art as for_art
from wasserball.adapters import foolbox as for_foolbox
from wasserball.adapters import torchattacks as for_torchattacks

Wrapped = Callable[[Tensor, Tensor], Tensor]


class Host(Protocol):
    """Wraps a model, once, and gives back what attacks images."""

    def __call__(self, name: str, model: nn.Module, *, eps: float, targeted: bool = False, **options: Any) -> Wrapped:
        """The attack called ``name`` on ``model``."""


def native(name: str, model: nn.Module, **options: Any) -> Wrapped:
    """wasserball itself."""
    return lambda images, labels: getattr(wb, name)(**options)(model, images, labels).adversarial


def by_binding(name: str, model: nn.Module, **options: Any) -> Wrapped:
    """AutoAttack's habit."""
    return getattr(wb, name)(**options).bind(model).perturb  # type: ignore[no-any-return]


def by_foolbox(
    name: str, model: nn.Module, *, eps: float, targeted: bool = False, bounds: Any = (0, 1), **options: Any
) -> Wrapped:
    """Foolbox, its own clipping included."""
    wrapped = PyTorchModel(model, bounds=bounds, device="cpu")
    criterion: Any = TargetedMisclassification if targeted else Misclassification
    kind = getattr(for_foolbox, name)
    attack = kind(eps=eps, **options) if name == "MinimalRadius" else kind(**options)
    return lambda images, labels: attack(wrapped, images, criterion(labels), epsilons=eps)[1]


def art_classifier(model: nn.Module, shape: tuple[int, ...] = (1, 6, 6), **options: Any) -> PyTorchClassifier:
    """ART's wrapper, ready to be trained."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = dict(clip_values=(0, 1), device_type="cpu") | options
    return PyTorchClassifier(model, nn.CrossEntropyLoss(), shape, CLASSES, optimizer=optimizer, **options)


def by_art(name: str, model: nn.Module, *, bounds: Any = (0, 1), **options: Any) -> Wrapped:
    """ART, with labels in one-hot form."""
    attack = getattr(for_art, name)(art_classifier(model, clip_values=bounds), **options)
    one_hot = np.eye(100)
    return lambda images, labels: torch.from_numpy(attack.generate(images.numpy(), one_hot[labels.numpy()]))


def by_torchattacks(name: str, model: nn.Module, *, targeted: bool = False, **options: Any) -> Wrapped:
    """torchattacks, where the labels are the targets if it is targeted."""
    attack = getattr(for_torchattacks, name)(model, **options)
    if targeted:
        attack.set_mode_targeted_by_label(quiet=True)
    return attack  # type: ignore[no-any-return]


HOSTS: dict[str, Host] = {
    "bind": by_binding,
    "foolbox": by_foolbox,
    "art": by_art,
    "torchattacks": by_torchattacks,
}
ATTACKS: dict[str, dict[str, Any]] = {
    "PGD": dict(steps=8),
    "FrankWolfe": dict(steps=8),
    "Auto": dict(steps=4),
    "MinimalRadius": dict(steps=8),
}


class State(NamedTuple):
    """What an attack has to leave as it was."""

    modes: list[bool]
    needs: list[bool]
    gradients: list[Tensor | None]
    weights: list[Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> "State":
        """The state of ``model`` now."""
        parameters = list(model.parameters())
        return cls(
            [module.training for module in model.modules()],
            [parameter.requires_grad for parameter in parameters],
            [parameter.grad for parameter in parameters],
            [parameter.detach().clone() for parameter in parameters],
        )

    def same(self, other: "State") -> bool:
        """Whether nothing has changed."""
        return (
            self[:3] == other[:3]  # no gradients on either side, or the comparison of two would be one of tensors
            and all(map(torch.equal, self.weights, other.weights))
        )
