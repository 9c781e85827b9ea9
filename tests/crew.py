"""What the processes that torchrun starts do in the tests: normalise, then train, and leave behind what came out."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.pupils import QUICK, bars, convolutional_network
from wasserball import PGD
from wasserball.evaluate.workers import Workers, join_workers
from wasserball.train import train, trainer
from wasserball.train.objective import objective
from wasserball.train.parallel import WholeBatchNorm, together

COUNT = 2
PARTS = (slice(0, 2), slice(2, 7))
"""Of a batch of seven: one process has less of it than the other."""
RECIPE = replace(
    QUICK,
    attack=PGD(eps=0.3, steps=3),
    batch_size=47,  # batches of 47, 47 and 46: one process has one more than the other
    epochs=3,
    radius="random",
    remember=True,
    optimizer="sgd",  # Adam would make much of what is rounding
    rate=0.05,
    average=0.8,
    clip=1.0,
)
FATAL = 5
"""The step of its first life in which the second process dies."""


def whole_batch() -> tuple[Tensor, Tensor]:
    """Features far from 0, and what their normalised values are multiplied with."""
    generator = torch.Generator().manual_seed(4)
    features = 3 * torch.rand(7, 3, 4, 5, generator=generator) + torch.tensor([10.0, 0.0, -5.0]).view(3, 1, 1)
    return features, torch.randn(7, 3, 4, 5, generator=generator)


def norm(momentum: float | None) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(3, momentum=momentum)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
        layer.bias.copy_(torch.tensor([0.0, -1.0, 3.0]))
    return layer


def outcome(layer: nn.Module, learner: nn.Module, features: Tensor, factors: Tensor, share: float) -> dict[str, Tensor]:
    """Two passes in training mode, the gradients of the second, and one in evaluation mode."""
    learner(features)
    layer.zero_grad()
    mine = features.clone().requires_grad_()
    normal = learner(mine)
    torch.autograd.backward((normal * factors).sum() * share)
    answer = {"normal": normal.detach(), "slope": mine.grad, "weight": layer.weight.grad, "bias": layer.bias.grad}
    answer |= {name: tensor.clone() for name, tensor in layer.state_dict(prefix="state.").items()}
    answer["judged"] = layer.eval()(features).detach()
    layer.train()
    return {name: tensor.clone() for name, tensor in answer.items() if isinstance(tensor, Tensor)}


def normalise(workers: Workers, folder: Path) -> None:
    features, factors = (tensor[PARTS[workers.rank]] for tensor in whole_batch())
    for momentum in (0.1, None):
        layer = norm(momentum)
        with together(layer, workers) as learner:
            assert isinstance(layer, WholeBatchNorm)
            found = outcome(layer, learner, features, factors, share=workers.count)
        assert type(layer) is nn.BatchNorm2d
        save_file(found, folder / f"norm {momentum} {workers.rank}.safetensors")


def meet_and_part() -> None:
    """With a learner that outlives the company, and a last word that may still be under way."""
    with join_workers() as workers:
        with together(norm(0.1), workers) as learner:
            torch.autograd.backward(learner(whole_batch()[0]).sum())
        workers.sum(torch.ones(3))


def learn(rank: int, folder: Path, *, dies: bool) -> None:
    """Train; the second process may die once, and be started again."""
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    steps = 0

    def fatal(*arguments: Any) -> tuple[Tensor, Tensor]:
        nonlocal steps
        steps += 1
        if dies and first and rank == 1 and steps == FATAL:
            os.kill(os.getpid(), signal.SIGKILL)
        return objective(*arguments)

    setattr(trainer, "objective", fatal)  # noqa: B010
    model = convolutional_network()
    if rank == 1:  # whatever a process begins with, what counts is what the first of them has
        nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
    training = train(model, bars(), out=folder / "run", recipe=RECIPE)
    assert type(model[1]) is nn.BatchNorm2d
    save_file(model.state_dict(), folder / f"model {rank}.safetensors", {"epochs": str(len(training.history))})


if __name__ == "__main__":
    target = Path(sys.argv[1])
    with join_workers() as company:
        normalise(company, target)
    for _ in range(20):
        meet_and_part()
    learn(company.rank, target, dies="dies" in sys.argv)
