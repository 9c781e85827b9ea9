"""What is minimised, given images and what an attack has made of them."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wasserball.train.leak import Leak
from wasserball.train.recipe import Recipe


def objective(
    model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor, recipe: Recipe
) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and the logits of the adversarial images.

    Cross entropy on adversarial images (Madry et al. 2018), with a share of it on clean ones, or TRADES. Where both
    kinds of images count they go through the model as one batch, and batch norms see both.
    """
    if recipe.trades == 0 and recipe.clean_share == 0:
        logits = model(adversarial)
        return _loss(logits, labels, recipe), logits
    calm, excited = model(torch.cat([images, adversarial])).tensor_split(2)
    clean = _loss(calm, labels, recipe)
    if recipe.trades:
        away = F.kl_div(excited.log_softmax(1), calm.log_softmax(1), reduction="none", log_target=True).sum(1)
        return clean + recipe.trades * away, excited
    return torch.lerp(_loss(excited, labels, recipe), clean, recipe.clean_share), excited


def _loss(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """Cross entropy, or the generalised one, which has a bound."""
    losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=recipe.smoothing)
    return -(-recipe.bounded * losses).expm1() / recipe.bounded if recipe.bounded else losses


class Cast(nn.Module):
    """A model whose passes are in bfloat16 where that is wanted, in the memory layout that suits them, and with a leak
    where it has one."""

    def __init__(self, model: nn.Module, recipe: Recipe, device: torch.device) -> None:
        super().__init__()
        self.leak = Leak(model, device) if recipe.leak else None
        self.model, self.kind = model, device.type
        self.dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
        self.coarse = recipe.precision == "bfloat16"
        self.layout = torch.channels_last if recipe.channels_last else torch.contiguous_format

    def forward(self, images: Tensor) -> Tensor:
        leak = nullcontext() if self.leak is None else self.leak.open()
        with leak, torch.autocast(self.kind, torch.bfloat16, enabled=self.coarse):
            logits: Tensor = self.model(images.to(self.dtype).contiguous(memory_format=self.layout))
        return logits if logits.dtype == torch.float64 else logits.float()
