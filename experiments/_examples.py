"""Some adversarial images of a result, small enough to lie beside it, for anybody to check.

A sparse plan says all: the image is what arrives. Where entropy leaves a little everywhere the plan is larger than all
images together, and the images are kept instead, as the bits in which they differ from the clean ones, to be checked by
exact transport. So it takes the clean images to read a file.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import wasserball as wb

DENSE = 0.15
"""The share of a plan's entries from which on it is not kept."""


class Examples(NamedTuple):
    """Images, and where it is sparse how their mass got there; ``prediction`` is what the attacked model saw."""

    adversarial: Tensor
    prediction: Tensor
    plan: wb.TransportPlan | None


def save_examples(path: Path, images: Tensor, adversarial: Tensor, prediction: Tensor, plan: wb.TransportPlan) -> None:
    """What an attack made of images, exactly: of a plan the pixels whose mass does not all stay, or the images as the
    bits in which they differ from the clean ones."""
    assert isinstance(plan.cost, wb.LocalCost)
    values, images, adversarial = plan.values.detach().cpu(), images.cpu(), adversarial.cpu()
    assert torch.equal(arrived(values, plan.cost), adversarial)
    moving = values.clone()
    moving[:, plan.cost.offsets.index((0, 0))] = 0
    at = (values * moving.any(1, keepdim=True)).nonzero(as_tuple=True)
    kept: dict[str, Any]
    if len(at[0]) < DENSE * len(plan.cost.offsets) * int((images > 0).sum()):
        kept = dict(
            window=plan.cost.window,
            place=np.stack([index.numpy().astype(np.uint16) for index in at]),
            mass=values[at].numpy(),
        )
    else:
        kept = dict(bits=(adversarial.view(torch.int32) ^ images.view(torch.int32)).numpy())
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, prediction=prediction.cpu().numpy(), **kept)


def load_examples(path: Path, clean: Tensor) -> Examples:
    """What :func:`save_examples` wrote, given the clean images."""
    with np.load(path) as file:
        prediction = torch.from_numpy(file["prediction"])
        if "bits" in file:
            bits = torch.from_numpy(file["bits"]) ^ clean.view(torch.int32)
            return Examples(bits.view(torch.float32), prediction, None)
        cost = wb.LocalCost(int(file["window"]))
        sample, move, *pixel = torch.from_numpy(file["place"].astype(np.int64))
        values = cost.identity(clean)
        values[sample, :, *pixel] = 0
        values[sample, move, *pixel] = torch.from_numpy(file["mass"])
    return Examples(arrived(values, cost), prediction, wb.TransportPlan(values, cost))


def arrived(plan: Tensor, cost: wb.LocalCost) -> Tensor:
    """The images that plans lead to."""
    return cost.scatter(plan.double()).to(plan.dtype)
