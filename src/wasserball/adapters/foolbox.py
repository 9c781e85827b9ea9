"""Foolbox: the attacks as ``attack(fmodel, images, labels, epsilons=[…])``, and the Wasserstein distance."""

from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from wasserball import attacks
from wasserball.adapters.native import make_attack
from wasserball.attacks import AttackResult
from wasserball.threat import Cost, LocalCost, check_cost
from wasserball.verify import verify

try:
    from eagerpy.astensor import astensor, astensor_, astensors_
    from eagerpy.tensor.tensor import Tensor as EagerTensor
    from foolbox.attacks.base import FixedEpsilonAttack, MinimizationAttack, get_criterion, raise_if_kwargs
    from foolbox.criteria import Misclassification, TargetedMisclassification
    from foolbox.distances import Distance
    from foolbox.models.base import Model
except ImportError as error:
    raise ImportError("wasserball.adapters.foolbox needs Foolbox: pip install wasserball[foolbox]") from error

T = TypeVar("T")
LOCAL = LocalCost()
TAKEN = {
    "bounds": "they are those of the Foolbox model",
    "targeted": "pass a TargetedMisclassification as the criterion",
}


class WassersteinDistance(Distance):
    """The Wasserstein distance between images, relative to the mass of the first; infinite where mass is not kept."""

    def __init__(self, cost: Cost = LOCAL) -> None:
        check_cost(cost)
        self.cost = cost

    def __repr__(self) -> str:
        return f"WassersteinDistance({self.cost!r})"

    def __call__(self, references: T, perturbed: T) -> T:
        """The distance of each pair, by optimal transport (this needs POT)."""
        (clean, moved), restore_type = astensors_(references, perturbed)
        distances = self._distances(_raw(clean), _raw(moved))
        return restore_type(astensor(distances.to(clean.raw.dtype)))

    def clip_perturbation(self, references: T, perturbed: T, epsilon: float) -> T:
        """Where it is farther than ``epsilon``, shrink the plan towards staying at home until it is not.

        ``(1 − t)·identity + t·Π`` leads to ``(1 − t)·clean + t·image`` at ``t`` times the price, and stays in the box.
        What cannot be shrunk into the ball, because its mass is another, is given up for the clean image.
        """
        (clean, moved), restore_type = astensors_(references, perturbed)
        images = _raw(clean).double()
        share = (epsilon / self._distances(_raw(clean), _raw(moved))).nan_to_num(1.0).clamp(max=1.0)
        share = share.reshape(-1, *[1] * (images.ndim - 1))
        shrunk = torch.where(share > 0, torch.lerp(images, _raw(moved).double(), share), images).to(moved.raw.dtype)
        # An image that needs no clipping is not touched, not even by rounding.
        return restore_type(astensor(torch.where(share < 1, shrunk, moved.raw)))

    def _distances(self, images: Tensor, adversarial: Tensor) -> Tensor:
        return verify(images, adversarial, eps=0.0, cost=self.cost, bounds=None).distance


class _Certified(WassersteinDistance):
    """The distance that an attack measures with: for its own images the one that their plans prove, which saves the
    optimal transport, for others the exact one."""

    def __init__(self, result: AttackResult) -> None:
        super().__init__(result.cost)
        self._result = result

    def _distances(self, images: Tensor, adversarial: Tensor) -> Tensor:
        known = self._result
        if adversarial is not known.adversarial or not torch.equal(images.to(known.images), known.images):
            return super()._distances(images, adversarial)
        # Certified for this radius, up to rounding: nothing is to be clipped at it.
        proved = torch.minimum(known.distance, known.eps)
        return torch.where(known.valid, proved, torch.inf)


class _Adapter:
    """What the attacks of both kinds share."""

    kind: ClassVar[type[attacks.Attack]]
    result: AttackResult | None
    """Of the last run, with all certificates."""

    def __init__(self, options: dict[str, Any], taken: dict[str, str], **given: Any) -> None:
        self.options = options
        self.attack = make_attack(self.kind, options, TAKEN | taken, **given)
        self.result = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    @property
    def distance(self) -> WassersteinDistance:
        """The Wasserstein distance with the attack's own cost."""
        return WassersteinDistance(self.attack.cost) if self.result is None else _Certified(self.result)

    def _run(self, model: Model, inputs: T, criterion: Any, **options: Any) -> T:
        images, restore_type = astensor_(inputs)
        goal = get_criterion(criterion)
        targeted = isinstance(goal, TargetedMisclassification)
        if isinstance(goal, TargetedMisclassification):
            labels = goal.target_classes
        elif isinstance(goal, Misclassification):
            labels = goal.labels
        else:
            raise ValueError(f"criterion must be a (Targeted)Misclassification or labels, got {goal!r}")
        lower, upper = model.bounds
        if lower != 0:
            raise ValueError(
                f"model must have bounds that start at 0, since mass is measured from 0, got {(lower, upper)}: "
                "use model.transform_bounds((0, 1))"
            )
        attack = replace(self.attack, bounds=(0, upper), targeted=targeted, **options)
        self.result = attack(model, _raw(images), _raw(labels))
        return restore_type(astensor(self.result.adversarial))


class _FixedRadius(_Adapter, FixedEpsilonAttack):
    """An attack with a given radius."""

    def __init__(self, **options: Any) -> None:
        super().__init__(options, {"eps": "the radii are the epsilons of a call"}, eps=0.0)

    def run(self, model: Model, inputs: T, criterion: Any, *, epsilon: float, **kwargs: Any) -> T:
        """The adversarial images for one radius."""
        raise_if_kwargs(kwargs)
        return self._run(model, inputs, criterion, eps=epsilon)


class PGD(_FixedRadius):
    """:class:`wasserball.PGD` for Foolbox, with its options."""

    kind = attacks.PGD


class FrankWolfe(_FixedRadius):
    """:class:`wasserball.FrankWolfe` for Foolbox, with its options."""

    kind = attacks.FrankWolfe


class Auto(_FixedRadius):
    """:class:`wasserball.Auto` for Foolbox, with its options."""

    kind = attacks.Auto


class MinimalRadius(_Adapter, MinimizationAttack):
    """:class:`wasserball.MinimalRadius` for Foolbox, with its options; ``eps`` is the largest radius it looks at."""

    kind = attacks.MinimalRadius

    def __init__(self, **options: Any) -> None:
        super().__init__(options, {})

    def run(self, model: Model, inputs: T, criterion: Any, *, early_stop: float | None = None, **kwargs: Any) -> T:
        """The nearest adversarial images; it makes no use of ``early_stop``, since all samples are walked at once."""
        raise_if_kwargs(kwargs)
        return self._run(model, inputs, criterion)


def _raw(tensor: EagerTensor) -> Tensor:
    raw = tensor.raw
    if not isinstance(raw, Tensor):
        raise ValueError(f"inputs and labels must be tensors of PyTorch, got {type(raw).__name__}")
    return raw
