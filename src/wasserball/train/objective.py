"""What is minimised, given images and what an attack has made of them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        return _cross_entropy(logits, labels, recipe.smoothing), logits
    calm, excited = model(torch.cat([images, adversarial])).tensor_split(2)
    clean = _cross_entropy(calm, labels, recipe.smoothing)
    if recipe.trades:
        away = F.kl_div(excited.log_softmax(1), calm.log_softmax(1), reduction="none", log_target=True).sum(1)
        return clean + recipe.trades * away, excited
    return torch.lerp(_cross_entropy(excited, labels, recipe.smoothing), clean, recipe.clean_share), excited


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


class Cast(nn.Module):
    """A model whose passes are in bfloat16 where that is wanted, and in the memory layout that suits them."""

    def __init__(self, model: nn.Module, recipe: Recipe, device: torch.device) -> None:
        super().__init__()
        self.model, self.kind = model, device.type
        self.dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
        self.coarse = recipe.precision == "bfloat16"
        self.layout = torch.channels_last if recipe.channels_last else torch.contiguous_format

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(self.kind, torch.bfloat16, enabled=self.coarse):
            logits: Tensor = self.model(images.to(self.dtype).contiguous(memory_format=self.layout))
        return logits if logits.dtype == torch.float64 else logits.float()
