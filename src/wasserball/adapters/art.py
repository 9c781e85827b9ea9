"""The Adversarial Robustness Toolbox: the attacks as evasion attacks, ``attack.generate(x, y)`` on numpy arrays."""

from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wasserball import attacks
from wasserball.adapters.native import make_attack
from wasserball.attacks import AttackResult
from wasserball.attacks.classifier import frozen

try:
    from art.attacks.attack import EvasionAttack
    from art.estimators.classification.classifier import ClassifierMixin
    from art.estimators.pytorch import PyTorchEstimator
except ImportError as error:
    raise ImportError("wasserball.adapters.art needs ART: pip install wasserball[art]") from error

TAKEN = {"bounds": "they are the estimator's clip_values"}
Array = npt.NDArray[Any]


class _Adapter(EvasionAttack):  # type: ignore[misc]
    """An evasion attack of ART whose work an attack of wasserball does."""

    kind: ClassVar[type[attacks.Attack]]
    _estimator_requirements = (PyTorchEstimator, ClassifierMixin)

    def __init_subclass__(cls) -> None:
        cls.attack_params = [item.name for item in fields(cls.kind) if item.name not in TAKEN]

    def __init__(self, estimator: Any, **options: Any) -> None:
        self._attack = make_attack(self.kind, options, TAKEN)
        super().__init__(estimator=estimator)
        if not estimator.all_framework_preprocessing:
            raise ValueError("preprocessing of the estimator must be PyTorch's own, to have a gradient")
        self.result: AttackResult | None = None
        """Of the last call, with all certificates; its images have their channels first."""

    @property
    def targeted(self) -> bool:
        """Whether the labels are the answers to provoke, rather than those to avoid."""
        return self._attack.targeted

    def set_params(self, **kwargs: Any) -> None:
        """Change some options."""
        for name in kwargs:
            if name not in self.attack_params:
                raise ValueError(f"{name} must be one of {', '.join(self.attack_params)}")
        self._attack = replace(self._attack, **kwargs)

    def generate(self, x: Array, y: Array | None = None, **kwargs: Any) -> Array:
        """The adversarial images of ``x``, in float32; labels are indices or one-hot. Without, what the estimator
        answers now is what to avoid."""
        if kwargs:
            raise ValueError(f"{next(iter(kwargs))} must not be given: generate takes x and y")
        images = torch.from_numpy(np.array(x, np.float32)).to(self.estimator.device)
        if not self.estimator.channels_first:
            images = images.movedim(-1, 1)
        attack = replace(self._attack, bounds=self._bounds())
        with frozen(self.estimator.model):
            self.result = attack.bind(self._logits).run(images, self._labels(y, images))
        adversarial = self.result.adversarial
        if not self.estimator.channels_first:
            adversarial = adversarial.movedim(1, -1)
        return adversarial.cpu().contiguous().numpy()

    def _bounds(self) -> tuple[float, float]:
        seen = self.estimator.clip_values
        if seen is None:
            raise ValueError(
                "clip_values of the estimator must be (0, high), since images have to stay in a box, got None"
            )
        low, high = (np.unique(end) for end in seen)
        if len(low) > 1 or len(high) > 1 or low[0] != 0:
            raise ValueError(
                f"clip_values of the estimator must be (0, high) for all pixels, mass is measured from 0, got {seen}"
            )
        return 0, float(high[0])

    def _labels(self, y: Array | None, images: Tensor) -> Tensor | None:
        if y is None:
            return None
        labels = np.asarray(y)
        if labels.ndim == 2:
            labels = labels.argmax(1) if labels.shape[1] > 1 else labels[:, 0]
        return torch.from_numpy(labels).to(images.device)

    def _logits(self, images: Tensor) -> Tensor:
        """What the estimator answers, with its preprocessing."""
        seen = images if self.estimator.channels_first else images.movedim(1, -1)
        for step in self.estimator.preprocessing_operations:
            if step.apply_predict:
                # A defence may have no gradient; what ART differentiates in its place has one.
                rise = step.estimate_forward(seen)
                seen = rise + (step.forward(seen)[0] - rise).detach()
        logits: Tensor = self.estimator.model(seen)
        return logits


class PGD(_Adapter):
    """:class:`wasserball.PGD` for ART, with its options."""

    kind = attacks.PGD


class FrankWolfe(_Adapter):
    """:class:`wasserball.FrankWolfe` for ART, with its options."""

    kind = attacks.FrankWolfe


class Auto(_Adapter):
    """:class:`wasserball.Auto` for ART, with its options."""

    kind = attacks.Auto


class MinimalRadius(_Adapter):
    """:class:`wasserball.MinimalRadius` for ART, with its options."""

    kind = attacks.MinimalRadius
