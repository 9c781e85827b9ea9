"""torchattacks: the attacks as ``attack(images, labels)``, with its normalisation, its modes and ``MultiAttack``."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from wasserball import attacks
from wasserball.adapters.native import make_attack
from wasserball.attacks import AttackResult
from wasserball.attacks.classifier import frozen

try:
    from torchattacks.attack import Attack as TorchAttack
except ImportError as error:
    raise ImportError(
        "wasserball.adapters.torchattacks needs torchattacks: pip install wasserball[torchattacks]"
    ) from error

TAKEN = {
    "bounds": "they are (0, 1), as always in torchattacks",
    "targeted": "call set_mode_targeted_by_label, or another of the modes",
}
NORMALISATION_ERROR = 1e-5
"""By how much a pixel may be out of [0, 1] after a normalisation was undone: rounding, and nothing else."""


class _Adapter(TorchAttack):  # type: ignore[misc]
    """An attack of torchattacks whose work an attack of wasserball does."""

    kind: ClassVar[type[attacks.Attack]]

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(type(self).__name__, model)
        self.supported_mode = ["default", "targeted"]
        self.native = make_attack(self.kind, options, TAKEN)
        self.result: AttackResult | None = None
        """Of the last call, with all certificates; its images are not normalised."""

    def __call__(self, inputs: Tensor, labels: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """The adversarial images, normalised if the inputs are."""
        # torchattacks puts a model that was training back into training as a whole, layers that were not included.
        with frozen(self.model):
            adversarial: Tensor = super().__call__(inputs, labels, *args, **kwargs)
        return adversarial

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The adversarial images of images in [0, 1]; without labels, what the model answers now is to be avoided."""
        images = images.detach().to(self.device)
        labels = None if labels is None else labels.detach().to(self.device)
        if self.normalization_used is not None:
            clamped = images.clamp(0, 1)
            images = torch.where((clamped - images).abs() <= NORMALISATION_ERROR, clamped, images)
        if self.targeted:
            labels = self.get_target_label(images, labels)
        self.result = replace(self.native, targeted=self.targeted).bind(self.get_logits).run(images, labels)
        return self.result.adversarial

    def __repr__(self) -> str:
        normalised = self.normalization_used is not None
        return f"{self.native!r} ({self.attack_mode}, normalization_used={normalised})"


class PGD(_Adapter):
    """:class:`wasserball.PGD` for torchattacks, with its options."""

    kind = attacks.PGD


class FrankWolfe(_Adapter):
    """:class:`wasserball.FrankWolfe` for torchattacks, with its options."""

    kind = attacks.FrankWolfe


class Auto(_Adapter):
    """:class:`wasserball.Auto` for torchattacks, with its options."""

    kind = attacks.Auto


class MinimalRadius(_Adapter):
    """:class:`wasserball.MinimalRadius` for torchattacks, with its options."""

    kind = attacks.MinimalRadius
