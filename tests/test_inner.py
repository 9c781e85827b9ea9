"""The inner maximum of a training: images in the box and nearly in the ball, and as hard as the attacks' own."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.pupils import noisy_network
from tests.truth import minimize_lp
from tests.victims import SIDE, Noisy, grey_images, linear, network, predictions
from wasserball import PGD, Attack, Auto, FrankWolfe, LocalCost, ProjectedSinkhorn, verify, zoo
from wasserball.attacks.drill import Lead
from wasserball.attacks.inner import inner_maximum

SAMPLES = 12
ATTACKS: dict[str, Attack] = {
    "pgd": PGD(eps=0, steps=10),
    "pgd with a fixed step": PGD(eps=0, steps=20, step=0.1),
    "pgd from random points": PGD(eps=0, steps=10, random_start=True),
    "pgd without momentum": PGD(eps=0, steps=10, momentum=0.0),
    "pgd of the paper": PGD(eps=0, steps=20, step=0.1, box="final"),
    "fw": FrankWolfe(eps=0, steps=20),
    "fw from random points": FrankWolfe(eps=0, steps=20, random_start=True),
    "fw with short steps": FrankWolfe(eps=0, steps=20, schedule="short"),
    "fw with a line search": FrankWolfe(eps=0, steps=20, schedule="line-search"),
    "fw that would stop": FrankWolfe(eps=0, steps=20, gap_tolerance=0.5),
    "fw of the paper": FrankWolfe(eps=0, steps=20, gamma=1e-3, momentum=0.0, box="final"),
}
LOST = 0.02
"""Of the mass, at most, is cut off at the rim of the box."""
EXCESS = 1e-3
"""Of a radius, at most, but for mass that was lost: it could be missed from as far as the window reaches …"""
REACH = 8**0.5
"""… which is from one of its corners."""


def radii(eps: float, count: int = SAMPLES) -> Tensor:
    return torch.full((count,), eps, dtype=torch.float64)


def losses(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return F.cross_entropy(model(images), labels, reduction="none")


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, Tensor, Tensor]:
    model, images = network(), grey_images(SAMPLES)
    return model, images, predictions(model, images)


def assert_nearly_in_the_ball(images: Tensor, adversarial: Tensor, eps: Tensor, cost: LocalCost | None = None) -> None:
    """By the exact distance, from the images alone."""
    assert adversarial.min() >= 0
    assert adversarial.max() <= 1
    certificate = verify(images, adversarial, eps=eps, tolerance=LOST, cost=cost or LocalCost())
    assert certificate.exact.all()
    assert (certificate.mass_error <= LOST).all()
    assert (certificate.distance <= eps * (1 + EXCESS) + REACH * certificate.mass_error).all()


@pytest.mark.parametrize("eps", [0.03, 0.1])
@pytest.mark.parametrize("name", ATTACKS)
def test_images_are_in_the_box_and_nearly_in_the_ball(problem: Any, name: str, eps: float) -> None:
    model, images, labels = problem
    adversarial = inner_maximum(ATTACKS[name], model, images, labels, radii(eps))
    assert_nearly_in_the_ball(images, adversarial, radii(eps))
    assert not torch.equal(adversarial, images)


@pytest.mark.parametrize("kind", [PGD, FrankWolfe])
def test_another_cost_is_the_one_that_counts(problem: Any, kind: Any) -> None:
    model, images, labels = problem
    cost = LocalCost(3, metric="l1")
    adversarial = inner_maximum(kind(eps=0, steps=20, cost=cost), model, images, labels, radii(0.1))
    assert_nearly_in_the_ball(images, adversarial, radii(0.1), cost)


@pytest.mark.parametrize("attack", [PGD(eps=0, steps=7), FrankWolfe(eps=0, steps=10)], ids=["pgd", "fw"])
def test_digits_lose_little_mass_with_a_large_radius(attack: Attack) -> None:
    model, (images, labels) = zoo.load_model("mnist-standard"), zoo.load_sample()
    adversarial = inner_maximum(attack, model, images, labels, radii(0.3, len(images)))
    assert adversarial.min() >= 0
    assert adversarial.max() <= 1
    certificate = verify(images, adversarial, eps=0.3, tolerance=0.1)
    assert certificate.mass_error.mean() < LOST
    assert certificate.mass_error.max() < 0.08  # of few digits whose duals go to and fro
    assert (certificate.distance <= 0.3 * (1 + EXCESS) + REACH * certificate.mass_error).all()


@pytest.mark.parametrize("kind", [PGD, FrankWolfe])
def test_who_ignores_the_box_is_cut_off_at_it(problem: Any, kind: Any) -> None:
    model, images, labels = problem
    adversarial = inner_maximum(kind(eps=0, steps=10, box="off"), model, images, labels, radii(0.1))
    assert adversarial.min() >= 0
    assert adversarial.max() <= 1
    mass, left = images.flatten(1).sum(1), adversarial.flatten(1).sum(1)
    assert (left <= mass * (1 + 1e-5)).all()
    assert (left >= mass * 0.9).all()


def test_projected_sinkhorn_is_cut_off_at_the_box_and_no_sample_stops_on_the_way(problem: Any) -> None:
    model, images, labels = problem
    attack = ProjectedSinkhorn(eps=0.1, steps=10, gamma=1e-2)
    found = inner_maximum(attack, model, images, labels, radii(0.1))
    assert found.min() >= 0
    assert found.max() <= 1
    mass, left = images.flatten(1).sum(1), found.flatten(1).sum(1)
    assert (left <= mass * (1 + 1e-5)).all()
    assert (left >= mass * 0.9).all()
    short = inner_maximum(replace(attack, steps=2), model, images, labels, radii(0.1))
    assert (
        losses(model, images, labels).mean() < losses(model, short, labels).mean() < losses(model, found, labels).mean()
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_the_loss_is_higher_than_on_clean_images_and_as_high_as_a_full_attack_makes_it(problem: Any, name: str) -> None:
    model, images, labels = problem
    clean = losses(model, images, labels)
    found = losses(model, inner_maximum(ATTACKS[name], model, images, labels, radii(0.1)), labels)
    full = losses(model, PGD(eps=0.1, steps=100)(model, images, labels).adversarial, labels)
    assert (found >= clean).all()
    assert found.mean() >= full.mean()


@lru_cache
def best_height(sample: int, eps: float) -> float:
    """Of what a linear model makes of an image in ball and box."""
    image = grey_images(4)[sample].double().numpy()
    return -minimize_lp(-weight().numpy(), image, eps * image.sum(), LocalCost(), 1.0)


def weight() -> Tensor:
    return torch.randn(1, SIDE, SIDE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("eps", [0.03, 0.1])
@pytest.mark.parametrize("name", ATTACKS)
def test_most_of_what_a_linear_program_finds_is_found(name: str, eps: float) -> None:
    images, labels = grey_images(4), torch.zeros(4, dtype=torch.int64)
    found = inner_maximum(ATTACKS[name], linear(weight(), 0.0), images, labels, radii(eps, 4))
    clean, reached = ((x.double() * weight()).flatten(1).sum(1) for x in (images, found))
    best = torch.tensor([best_height(sample, eps) for sample in range(4)], dtype=torch.float64)
    share = (reached - clean) / (best - clean)
    lost = (images.double() - found.double()).flatten(1).sum(1)
    assert (share >= (0.75 if "random" in name else 0.85)).all()
    assert (reached <= best + 1e-6 + weight().abs().max() * lost).all()  # better than the optimum: not in the ball


@pytest.mark.parametrize("kind", [PGD, FrankWolfe])
def test_nobody_stops_when_fooled(problem: Any, kind: Any) -> None:
    model, images, labels = problem
    judged = kind(eps=0.3, steps=20)(model, images, labels)
    assert judged.success.any()
    found = inner_maximum(kind(eps=0.3, steps=20), model, images, labels, radii(0.3))
    mine, first = (losses(model, x, labels)[judged.success] for x in (found, judged.adversarial))
    assert mine.mean() > 1.5 * first.mean()
    assert (mine > first).double().mean() > 0.9


@pytest.mark.parametrize("name", ATTACKS)
def test_each_image_has_its_own_radius_and_no_say_in_others(problem: Any, name: str) -> None:
    model, images, labels = problem
    own = torch.linspace(0, 0.1, SAMPLES, dtype=torch.float64)
    adversarial = inner_maximum(ATTACKS[name], model, images, labels, own)
    assert torch.equal(adversarial[0], images[0])
    assert_nearly_in_the_ball(images, adversarial, own)
    part = slice(5, 9)
    alone = inner_maximum(ATTACKS[name], model, images[part], labels[part], own[part])
    torch.testing.assert_close(alone, adversarial[part], atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", [*ATTACKS, "off"])
def test_black_images_stay_black_and_white_ones_in_the_box(name: str) -> None:
    model = network()
    images = torch.stack([torch.zeros(1, SIDE, SIDE), torch.ones(1, SIDE, SIDE), *grey_images(2)])
    attack = ATTACKS.get(name, PGD(eps=0, steps=10, box="off"))
    adversarial = inner_maximum(attack, model, images, predictions(model, images), radii(0.1, 4))
    assert torch.equal(adversarial[0], images[0])
    assert adversarial.isfinite().all()
    assert adversarial[1].max() <= 1
    assert adversarial[1].mean() > 0.85  # there is no room for anything to move to
    assert not torch.equal(adversarial[2], images[2])


def test_the_model_is_left_as_it_was_found() -> None:
    model = noisy_network().eval()
    model[0].train()
    model[1].requires_grad_(False)
    images, before = grey_images(SAMPLES), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    labels = predictions(model, images)
    for kind in (PGD, FrankWolfe):
        inner_maximum(kind(eps=0, steps=3), model.train(), images, labels, radii(0.1))
        assert all(module.training for module in model.modules())
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert parameter.requires_grad != name.startswith("1.")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_images_and_labels_are_left_as_they_were(problem: Any) -> None:
    model, images, labels = problem
    mine = images.clone(), labels.clone()
    for attack in ATTACKS.values():
        found = inner_maximum(attack, model, *mine, radii(0.1))
        found.fill_(0.5)
        assert torch.equal(mine[0], images)
        assert torch.equal(mine[1], labels)


def test_random_starts_come_from_the_seed(problem: Any) -> None:
    model, images, labels = problem
    one, same, other = (
        inner_maximum(PGD(eps=0, steps=2, random_start=True, seed=seed), model, images, labels, radii(0.1))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_several_draws_of_a_noisy_model_are_averaged(problem: Any) -> None:
    model, images, labels = problem
    noisy = Noisy(model)
    torch.manual_seed(0)
    clean = losses(model, images, labels).mean()
    found = inner_maximum(PGD(eps=0, steps=10, eot=8), noisy, images, labels, radii(0.1))
    assert losses(model, found, labels).mean() > clean


def test_other_attacks_are_run_as_they_are(problem: Any) -> None:
    model, images, labels = problem
    attack = Auto(eps=0.1, steps=5)
    found = inner_maximum(attack, model, images[:3], labels[:3], radii(0.1, 3))
    assert torch.equal(found, attack(model, images[:3], labels[:3]).adversarial)


def visit(
    attack: PGD, model: nn.Module, images: Tensor, labels: Tensor, eps: Tensor, times: int
) -> tuple[Tensor, Lead]:
    """What the last of some visits finds, and what it leaves."""
    lead = Lead(torch.zeros_like(images), known=False)
    for _ in range(times):
        found = inner_maximum(attack, model, images, labels, eps, lead)
        lead.known = True
    return found, lead


def test_who_comes_again_gets_further_in_the_same_ball() -> None:
    model, (images, labels), eps = zoo.load_model("mnist-robust"), zoo.load_sample(), radii(0.3, 200)
    attack = PGD(eps=0, steps=3)
    once, again, often = (visit(attack, model, images, labels, eps, times) for times in (1, 2, 5))
    first, second, last = (losses(model, found, labels).mean() for found, _ in (once, again, often))
    assert first < second < last
    assert last > losses(model, inner_maximum(replace(attack, steps=5), model, images, labels, eps), labels).mean()
    found, lead = often
    assert found.min() >= 0
    assert found.max() <= 1
    certificate = verify(images, found, eps=0.3, tolerance=0.1)
    assert certificate.mass_error.max() < 0.05
    assert (certificate.distance <= 0.3 * (1 + EXCESS) + REACH * certificate.mass_error).all()
    torch.testing.assert_close(lead.direction.abs().flatten(1).amax(1), torch.ones(200))


def test_what_is_remembered_is_not_asked_for(problem: Any) -> None:
    model, images, labels = problem
    asked: list[int] = []

    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            asked.append(len(x))
            logits: Tensor = model(x)
            return logits

    for times, calls in ((1, 3), (2, 3 + 2), (3, 3 + 2 + 2)):
        asked.clear()
        visit(PGD(eps=0, steps=3), Counted(), images, labels, radii(0.1), times)
        assert asked == [SAMPLES] * calls


def test_a_lead_has_no_say_in_others_and_none_where_there_is_no_radius(problem: Any) -> None:
    model, images, labels = problem
    own = torch.linspace(0, 0.1, SAMPLES, dtype=torch.float64)
    found, lead = visit(PGD(eps=0, steps=3), model, images, labels, own, 3)
    assert torch.equal(found[0], images[0])
    part = slice(5, 9)
    alone, left = visit(PGD(eps=0, steps=3), model, images[part], labels[part], own[part], 3)
    torch.testing.assert_close(alone, found[part], atol=1e-3, rtol=0)
    torch.testing.assert_close(left.direction, lead.direction[part], atol=1e-3, rtol=0)
