"""Operators and attacks on a GPU: the answers of the CPU, and bits that do not depend on batch mates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.victims import OneByOne, grey_images, network
from wasserball import (
    PGD,
    Attack,
    Auto,
    Cost,
    DenseCost,
    FrankWolfe,
    LocalCost,
    MinimalRadius,
    ProjectedSinkhorn,
    Recipe,
    minimize,
    operators,
    train,
    verify,
)
from wasserball.attacks.drill import Lead
from wasserball.attacks.inner import inner_maximum
from wasserball.operators import Solution
from wasserball.solvers import Method
from wasserball.train.replay import Replay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")

Operator = Callable[[Tensor, Tensor, Tensor, Tensor, Cost], Solution]
"""Of target, mass, gradient and budget."""

EXACT: dict[str, Operator] = {
    "project": lambda target, mass, gradient, budget, cost: operators.project(target, mass, budget, cost),
    "project_box": lambda target, mass, gradient, budget, cost: operators.project_box(target, mass, budget, cost),
    "linear_minimizer": lambda target, mass, gradient, budget, cost: operators.linear_minimizer(
        gradient, mass, budget, cost, return_plan=True
    ),
    "entropic": lambda target, mass, gradient, budget, cost: operators.linear_minimizer(
        gradient, mass, budget, cost, gamma=1e-2, return_plan=True
    ),
    "sinkhorn": lambda target, mass, gradient, budget, cost: operators.sinkhorn(
        mass + 0.1 * gradient.abs(), mass, budget, cost, gamma=1e-3
    ),
    "dykstra": lambda target, mass, gradient, budget, cost: operators.dykstra(
        target, mass, budget, cost, max_iterations=30
    ),
}


def points() -> DenseCost:
    matrix = torch.rand(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    matrix[0, 3] = torch.inf
    return DenseCost(matrix.fill_diagonal_(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("cost", "shape"),
    [(LocalCost(5), (6, 3, 16, 12)), (LocalCost(3, "l1", 2), (6, 1, 5, 9)), (points(), (6, 2, 7)), (points(), (6, 7))],
)
@pytest.mark.parametrize("operator", EXACT.values(), ids=EXACT)
def test_cuda_agrees_with_the_cpu(operator: Operator, cost: Cost, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    mass = (1.5 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.4).clamp(0, 1).to(dtype)
    gradient = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    target = cost.identity(mass) + 0.3 * cost.gather(gradient)
    total = mass.double().flatten(1).sum(1)
    budget = total * 10.0 ** torch.linspace(-3, 0, 6)
    here = operator(target, mass, gradient, budget, cost)
    target, mass, gradient, budget = target.cuda(), mass.cuda(), gradient.cuda(), budget.cuda()
    there = operator(target, mass, gradient, budget, cost)
    assert there.image.is_cuda
    torch.testing.assert_close(there.image.cpu(), here.image, rtol=0, atol=1e-6)
    for sample in range(6):
        alone = operator(target[[sample]], mass[[sample]], gradient[[sample]], budget[[sample]], cost)
        assert torch.equal(alone.image[0], there.image[sample])
    certificate = verify(mass, there.image, eps=budget.cpu() / total, plan=there.plan, cost=cost, bounds=None)
    assert certificate.valid.is_cuda
    assert certificate.valid[there.converged].all(), str(certificate)


@pytest.mark.parametrize("method", ["pgd", "frank-wolfe"])
def test_minimize_runs_on_cuda(method: Method) -> None:
    mass = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(2)).cuda()
    goal = mass.flip(-1)
    result = minimize(lambda image: (image - goal).square().flatten(1).sum(1), mass, eps=0.1, method=method)
    assert result.image.is_cuda
    assert verify(mass, result.image, eps=0.1, plan=result.plan, bounds=None).valid.all()


ATTACKS = [
    PGD(eps=0.05, steps=10, restarts=2, return_plan=True),
    FrankWolfe(eps=0.05, steps=10, return_plan=True),
    Auto(eps=0.05, steps=5, return_plan=True),
    MinimalRadius(steps=10, return_plan=True),
    ProjectedSinkhorn(eps=0.05, steps=5, return_plan=True),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_attacks_on_cuda(attack: Attack) -> None:
    model = OneByOne(network(dtype=torch.float64))
    images = grey_images(12, dtype=torch.float64)
    with torch.no_grad():
        labels = model(images).argmax(1)
    here, there = attack(model, images, labels), attack(model.cuda(), images.cuda(), labels.cuda())
    assert all(tensor.is_cuda for tensor in (there.adversarial, there.success, there.valid, *there.queries))
    # The model's own rounding differs, and with it where an attack ends; not by much, where it succeeds.
    assert abs(int(there.success.sum()) - int(here.success.sum())) <= 1
    if not isinstance(attack, ProjectedSinkhorn):
        assert there.plan is not None
        certificate = verify(images.cuda(), there.adversarial, eps=attack.eps, plan=there.plan, cost=there.plan.cost)
        assert certificate.valid.all(), str(certificate)
        assert there.valid.all()


INNER = [PGD(eps=1.0, steps=5), FrankWolfe(eps=1.0, steps=5), FrankWolfe(eps=1.0, steps=5, gamma=1e-3)]


@pytest.mark.parametrize("attack", INNER, ids=repr)
def test_a_recorded_attack_sees_new_images_and_new_weights(attack: Attack) -> None:
    model = network(dtype=torch.float32).cuda()
    replay = Replay(attack, model)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        images = torch.rand(6, 1, 6, 6, generator=generator).cuda()
        labels, eps = torch.arange(6).cuda() % 3, torch.linspace(0, 0.2, 6, dtype=torch.float64).cuda()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).cuda())
        seen = replay(images, labels, eps).clone()
        assert (seen - inner_maximum(attack, model, images, labels, eps)).abs().max() < 2e-3
        assert torch.equal(seen[0], images[0])
        assert (seen[1:] != images[1:]).flatten(1).any(1).all()


def test_a_recorded_attack_remembers_like_another() -> None:
    model, attack = network(dtype=torch.float32).cuda(), INNER[0]
    replay = Replay(attack, model)
    images = torch.rand(6, 1, 6, 6, generator=torch.Generator().manual_seed(0)).cuda()
    labels, eps = torch.arange(6).cuda() % 3, torch.full((6,), 0.1, dtype=torch.float64).cuda()
    played, plain = (Lead(torch.zeros_like(images), known=False) for _ in range(2))
    for _ in range(3):
        seen = replay(images, labels, eps, played).clone()
        assert (seen - inner_maximum(attack, model, images, labels, eps, plain)).abs().max() < 2e-3
        assert (played.direction - plain.direction).abs().max() < 2e-3
        played.known = plain.known = True


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_inner_maximum_never_waits_for_the_gpu() -> None:
    model, images = network(dtype=torch.float32).cuda(), grey_images(8, dtype=torch.float32).cuda()
    labels, eps = torch.zeros(8, dtype=torch.int64).cuda(), torch.full((8,), 0.1, dtype=torch.float64).cuda()
    for attack in INNER:
        inner_maximum(attack, model, images, labels, eps)
        torch.cuda.set_sync_debug_mode("error")
        try:
            inner_maximum(attack, model, images, labels, eps)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(replay=True, radius="random", average=0.9),
        dict(precision="bfloat16", channels_last=True, augment="crop-flip", optimizer="sgd"),
        dict(radius="own", trades=1.0, augment="elastic", replay=True),
        dict(radius="grown", low=0.002),
        dict(radius="own", bounded=0.5, clean_share=0.2, leak=0.2, optimizer="muon", average=0.9, replay=True),
        dict(radius="own", remember=True),
        dict(radius="own", remember=True, replay=True),
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_training_on_cuda_and_going_on_with_it(tmp_path: Path, options: dict[str, Any]) -> None:
    images = torch.rand(120, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    labels = (images[:, 0, :, :6].sum((1, 2)) > images[:, 0, :, 6:].sum((1, 2))).long()
    recipe = Recipe(attack=PGD(eps=0.02, steps=3), epochs=2, batch_size=50, held_out=20, rate=1e-2, **options)

    def build() -> nn.Module:
        torch.manual_seed(0)
        features = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        return nn.Sequential(*features, nn.Flatten(), nn.Linear(128, 2)).cuda()

    model = build()
    training = train(model, (images, labels), out=tmp_path / "run", recipe=recipe)
    assert len(training.history) == 2
    assert all(tensor.is_cuda and tensor.is_contiguous() for tensor in model.state_dict().values())
    again = train(build(), (images, labels), out=tmp_path / "run", recipe=recipe, resume=True)
    assert again == training
