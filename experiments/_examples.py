"""Some adversarial images of a result with their plans, small enough to lie beside it, for anybody to check."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import wasserball as wb


class Examples(NamedTuple):
    """Images, and how their mass got there; ``prediction`` is what the attacked model saw in them."""

    adversarial: Tensor
    prediction: Tensor
    plan: wb.TransportPlan


def save_examples(path: Path, result: wb.AttackResult) -> None:
    """What was seen in the images of a result, and of their plans the pixels whose mass does not all stay, exactly.

    The images themselves are what arrives by these plans, bit for bit.
    """
    assert result.plan is not None
    assert isinstance(result.plan.cost, wb.LocalCost)
    values = result.plan.values.detach().cpu()
    assert torch.equal(arrived(values, result.plan.cost), result.adversarial.cpu())
    moving = values.clone()
    moving[:, result.plan.cost.offsets.index((0, 0))] = 0
    at = (values * moving.any(1, keepdim=True)).nonzero(as_tuple=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        prediction=result.prediction.cpu().numpy(),
        window=result.plan.cost.window,
        place=np.stack([index.numpy().astype(np.uint16) for index in at]),
        mass=values[at].numpy(),
    )


def load_examples(path: Path, clean: Tensor) -> Examples:
    """What :func:`save_examples` wrote, given the clean images."""
    with np.load(path) as file:
        cost = wb.LocalCost(int(file["window"]))
        sample, move, *pixel = torch.from_numpy(file["place"].astype(np.int64))
        values = cost.identity(clean)
        values[sample, :, *pixel] = 0
        values[sample, move, *pixel] = torch.from_numpy(file["mass"])
        prediction = torch.from_numpy(file["prediction"])
    return Examples(arrived(values, cost), prediction, wb.TransportPlan(values, cost))


def arrived(plan: Tensor, cost: wb.LocalCost) -> Tensor:
    """The images that plans lead to."""
    return cost.scatter(plan.double()).to(plan.dtype)
