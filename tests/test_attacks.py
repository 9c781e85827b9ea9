"""The contract of all attacks: one table of them drives every test. What an attack finds is judged elsewhere."""

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wasserball as wb
from tests.victims import CLASSES, SIDE, Noisy, OneByOne, grey_images, linear, network, predictions
from wasserball.attacks.attack import Ascent, random_directions
from wasserball.attacks.classifier import Classifier
from wasserball.attacks.frank_wolfe import Flow
from wasserball.attacks.losses import LossName, margin
from wasserball.attacks.trial import no_report
from wasserball.operators.oracle import mixture

COST = wb.LocalCost(3)
EPS = 0.05
ATTACKS: dict[str, wb.Attack] = {
    "PGD": wb.PGD(eps=EPS, steps=4, cost=COST),
    "PGD as in the paper": wb.PGD(eps=EPS, steps=3, cost=COST, step=0.1, box="final"),
    "PGD without box": wb.PGD(eps=EPS, steps=4, cost=COST, box="off"),
    "FrankWolfe": wb.FrankWolfe(eps=EPS, steps=4, cost=COST),
    "FrankWolfe, entropic": wb.FrankWolfe(eps=EPS, steps=3, cost=COST, gamma=0.05, box="final", momentum=0),
    "FrankWolfe without box": wb.FrankWolfe(eps=EPS, steps=4, cost=COST, box="off"),
    "FrankWolfe, short": wb.FrankWolfe(eps=EPS, steps=4, cost=COST, schedule="short", gap_tolerance=0.3),
    "FrankWolfe, line search": wb.FrankWolfe(eps=EPS, steps=2, cost=COST, schedule="line-search"),
    "ProjectedSinkhorn": wb.ProjectedSinkhorn(eps=EPS, steps=3, cost=COST, gamma=0.01, max_iterations=10),
    "Auto": wb.Auto(eps=EPS, steps=1, cost=COST),
    "MinimalRadius": wb.MinimalRadius(eps=EPS, steps=4, cost=COST),
}
KINDS = ["PGD", "FrankWolfe", "ProjectedSinkhorn", "Auto", "MinimalRadius"]
IGNORE_BOX = ["PGD without box", "FrankWolfe without box", "ProjectedSinkhorn"]
attacks = pytest.mark.parametrize("name", ATTACKS)
one_of_each_kind = pytest.mark.parametrize("name", KINDS)
alone = pytest.mark.parametrize("name", ["PGD", "FrankWolfe", "ProjectedSinkhorn", "MinimalRadius"])  # not a battery
from_one_start = pytest.mark.parametrize("name", ["PGD", "FrankWolfe", "ProjectedSinkhorn"])

GREY, WRONG, BLACK, WHITE = slice(0, 4), 4, 5, 6


def batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Four images that the network gets right, one that it does not, a black one, a white one."""
    images = grey_images(7, dtype=dtype)
    images[BLACK], images[WHITE] = 0, 1
    labels = predictions(network(dtype=torch.float64), images.double())
    labels[WRONG] = (labels[WRONG] + 1) % CLASSES
    return images, labels


@lru_cache
def attacked(name: str) -> wb.AttackResult:
    """What each attack, told to return its plans, does to the batch; no test may change it."""
    return dataclasses.replace(ATTACKS[name], return_plan=True)(network(), *batch())


def ascent(name: str, **changes: Any) -> Ascent:
    attack = dataclasses.replace(ATTACKS[name], **changes)
    assert isinstance(attack, Ascent)
    return attack


def from_random_start(attack: wb.Attack) -> wb.Attack:
    return dataclasses.replace(attack, random_start=True) if isinstance(attack, Ascent) else attack


def same(one: wb.AttackResult, other: wb.AttackResult, samples: Any = slice(None)) -> bool:
    """Whether all that is said about a sample is equal, bit for bit; ``one`` has only the ``samples`` of ``other``."""
    names = ("adversarial", "success", "prediction", "distance", "valid", "loss", "margin")
    columns = [(getattr(one, column), getattr(other, column)) for column in names]
    columns += list(zip(one.queries, other.queries, strict=True))
    return all(torch.equal(ours, theirs[samples]) for ours, theirs in columns)


@attacks
def test_some_are_fooled_and_some_are_not(name: str) -> None:
    """Else the other tests would show little."""
    success = attacked(name).success[GREY]
    assert success.any()
    assert not success.all()


@attacks
def test_shapes_and_types(name: str) -> None:
    images, labels = batch()
    result = attacked(name)
    assert len(result) == len(images)
    assert result.adversarial.shape == images.shape
    assert result.adversarial.dtype == images.dtype
    for column in (result.success, result.valid):
        assert column.shape == labels.shape
        assert column.dtype == torch.bool
    for column in (result.prediction, *result.queries):
        assert column.shape == labels.shape
        assert column.dtype == torch.int64
    for column in (result.distance, result.loss, result.margin, result.eps):
        assert column.shape == labels.shape
        assert column.dtype == torch.float64
        assert torch.isfinite(column).all()
    assert torch.equal(result.images, images)
    assert torch.equal(result.labels, labels)
    assert result.eps.tolist() == [EPS] * len(images)
    assert (result.gap is not None) == name.startswith("FrankWolfe")
    assert (result.part is not None) == bool(result.parts) == (name == "Auto")
    assert result.attack == repr(dataclasses.replace(ATTACKS[name], return_plan=True))
    assert result.seconds > 0
    assert not result.adversarial.requires_grad


@attacks
def test_the_plan_proves_that_the_image_is_in_the_ball(name: str) -> None:
    result = attacked(name)
    assert result.plan is not None
    judge = partial(wb.verify, result.images, result.adversarial, eps=EPS, plan=result.plan, cost=result.cost)
    certificate = judge(bounds=None)
    assert certificate.valid.all(), str(certificate)
    assert torch.equal(result.distance, certificate.distance)
    assert torch.equal(result.valid, judge().valid)
    if name not in IGNORE_BOX:
        assert result.valid.all()
        assert result.adversarial.max() <= 1
    else:
        assert not result.valid[GREY].all()


@attacks
def test_the_images_alone_prove_as_much(name: str) -> None:
    result = attacked(name)
    certificate = wb.verify(result.images, result.adversarial, eps=EPS, cost=COST, bounds=None)
    assert certificate.valid.all(), str(certificate)
    assert certificate.exact.all()
    assert (certificate.distance <= result.distance + 1e-6).all()


@attacks
def test_success_is_judged_on_exactly_what_is_returned(name: str) -> None:
    result = attacked(name)
    with torch.no_grad():
        logits = network()(result.adversarial)
    assert torch.equal(result.prediction, logits.argmax(1))
    assert torch.equal(result.success, logits.argmax(1) != result.labels)
    torch.testing.assert_close(result.margin, margin(logits, result.labels).double(), rtol=0, atol=1e-5)
    assert result.robust_accuracy() == 1 - result.success.double().mean().item()


@attacks
def test_what_is_wrong_already_comes_back_unchanged(name: str) -> None:
    result = attacked(name)
    assert result.success[WRONG]
    assert result.distance[WRONG] == 0
    assert torch.equal(result.adversarial[WRONG], result.images[WRONG])
    assert result.queries.backward[WRONG] == 0


@attacks
def test_a_black_image_stays_black(name: str) -> None:
    result = attacked(name)
    assert torch.equal(result.adversarial[BLACK], result.images[BLACK])
    assert not result.success[BLACK]
    assert result.valid[BLACK]
    assert result.distance[BLACK] == 0
    assert result.queries.backward[BLACK] == 0


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in IGNORE_BOX])
def test_a_white_image_stays_white(name: str) -> None:
    torch.testing.assert_close(attacked(name).adversarial[WHITE], attacked(name).images[WHITE], rtol=0, atol=1e-6)


@attacks
def test_the_plan_may_be_left_out(name: str) -> None:
    without = ATTACKS[name](network(), *batch())
    assert without.plan is None
    if name == "FrankWolfe without box":  # nothing certifies it then, and no rounding mends it
        torch.testing.assert_close(without.adversarial, attacked(name).adversarial)
        torch.testing.assert_close(without.distance, attacked(name).distance)
        assert without.valid.tolist() == [index in (WRONG, BLACK) for index in range(7)]
    else:
        assert same(without, attacked(name))


@one_of_each_kind
@pytest.mark.parametrize("count", [1, 0])
def test_one_sample_or_none(name: str, count: int) -> None:
    images, labels = batch()
    calls = []

    def model(images: Tensor) -> Tensor:
        calls.append(len(images))
        logits: Tensor = network()(images)
        return logits

    result = ATTACKS[name](model, images[:count], labels[:count])
    assert len(result) == count
    assert result.adversarial.shape == (count, 1, SIDE, SIDE)
    assert bool(calls) == bool(count)
    assert result.success.dtype == result.valid.dtype == torch.bool
    assert result.valid.all() or name in IGNORE_BOX
    assert str(count) in result.summary() or "no samples" in result.summary()


@one_of_each_kind
@pytest.mark.parametrize("value", [0.4, 1.0])
def test_one_pixel_has_nowhere_to_go(name: str, value: float) -> None:
    images = torch.full((2, 1, 1, 1), value)
    result = ATTACKS[name](network(1), images, predictions(network(1), images))
    torch.testing.assert_close(result.adversarial, images)
    assert not result.success.any()


@one_of_each_kind
def test_no_radius_no_change(name: str) -> None:
    result = dataclasses.replace(ATTACKS[name], eps=0.0)(network(), *batch())
    assert torch.equal(result.adversarial, batch()[0])
    assert result.success.nonzero().tolist() == [[WRONG]]


@one_of_each_kind
def test_a_model_without_any_slope_is_no_crash(name: str) -> None:
    """A model of rounded pixels has a gradient, and it is zero."""
    images, model = grey_images(3), nn.Sequential(Rounded(), network())
    result = ATTACKS[name](model, images, predictions(model, images))
    assert result.valid.all()
    if name != "Auto":  # which also starts at random, and may be lucky
        assert torch.equal(result.adversarial, images)


class Rounded(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.round()


class Messy(nn.Module):
    """A model in pieces, each in a state of its own, that may raise when it is asked once too often."""

    def __init__(self, calls: float = math.inf) -> None:
        super().__init__()
        self.body, self.calls = network(), calls
        self.seen: list[bool] = []
        self.unused = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.9))
        self.body[1].training = self.unused[0].training = False
        self.body[1].weight.requires_grad_(False)
        self.unused[0].bias.requires_grad_(False)
        self.body[3].bias.grad = torch.ones(CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        states = [module.training for module in self.modules()]
        states += [parameter.requires_grad for parameter in self.parameters()]
        self.seen.append(any(states))
        if len(self.seen) > self.calls:
            raise ArithmeticError("asked too often")
        logits: Tensor = self.body(images)
        return logits

    def state(self) -> tuple[Any, ...]:
        return (
            [module.training for module in self.modules()],
            [parameter.requires_grad for parameter in self.parameters()],
            [None if parameter.grad is None else parameter.grad.clone() for parameter in self.parameters()],
            {key: value.clone() for key, value in self.state_dict().items()},
        )


def check_left_as_found(model: Messy, before: tuple[Any, ...]) -> None:
    after = model.state()
    assert after[:2] == before[:2]
    assert [grad is None for grad in after[2]] == [grad is None for grad in before[2]]
    assert all(torch.equal(*pair) for pair in zip(after[2], before[2], strict=True) if pair[0] is not None)
    assert all(torch.equal(value, before[3][key]) for key, value in after[3].items())
    assert model.seen
    assert not any(model.seen)


@one_of_each_kind
def test_the_model_is_left_as_it_was_found(name: str) -> None:
    model = Messy()
    before = model.state()
    assert True in before[0]
    assert False in before[0]
    assert same(ATTACKS[name](model, *batch()), attacked(name))
    check_left_as_found(model, before)


@one_of_each_kind
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_the_model_is_left_as_it_was_found_when_it_raises(name: str, calls: int) -> None:
    model = Messy(calls)
    before = model.state()
    with pytest.raises(ArithmeticError, match="asked too often"):
        ATTACKS[name](model, *batch())
    check_left_as_found(model, before)


@one_of_each_kind
def test_the_random_state_is_left_as_it_was_found(name: str) -> None:
    noisy, messy, (images, labels) = Noisy(network()), Messy(2), batch()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    from_random_start(ATTACKS[name])(noisy, images, labels)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ArithmeticError):
        ATTACKS[name](messy, images, labels)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_image_each_seed_and_each_start_has_its_own_noise() -> None:
    images = grey_images(3)
    noise = [random_directions(images, seed, start) for seed, start in ((0, 1), (0, 2), (1, 1), (2**40, 1), (-1, 1))]
    everything = torch.cat(noise).flatten(1)
    assert len({tuple(row) for row in everything.tolist()}) == 15
    assert everything.abs().amax(1).tolist() == [1] * 15
    assert torch.equal(random_directions(images[1:], 0, 1), noise[0][1:])


@from_one_start
def test_a_random_start_depends_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    first, again, other = (ascent(name, random_start=True, seed=seed)(network(), *batch()) for seed in (5, 5, 6))
    assert same(first, again)
    assert not torch.equal(first.adversarial[GREY], other.adversarial[GREY])
    assert not torch.equal(first.adversarial[GREY], attacked(name).adversarial[GREY])


@pytest.mark.parametrize("name", [*KINDS, "PGD as in the paper", "FrankWolfe, entropic", "FrankWolfe, short"])
def test_no_bit_depends_on_batch_mates(name: str) -> None:
    attack = from_random_start(ATTACKS[name])
    some = torch.tensor([0, WRONG, 2])
    model, (images, labels) = OneByOne(network()), (column[some] for column in batch())
    together = attack(model, images, labels)
    assert same(dataclasses.replace(attack, batch_size=1)(model, images, labels), together)
    order = torch.tensor([2, 0])
    assert same(attack(model, images[order], labels[order]), together, order)


@alone
@pytest.mark.parametrize(
    ("image_type", "model_type"),
    [
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float64, torch.float32),
    ],
    ids=str,
)
def test_images_and_models_of_all_types(name: str, image_type: torch.dtype, model_type: torch.dtype) -> None:
    images, labels = (column[GREY] for column in batch(image_type))
    model = network().to(model_type)
    result = dataclasses.replace(ATTACKS[name], eps=0.3, steps=3, return_plan=True)(model, images, labels)
    assert result.adversarial.dtype == (torch.float64 if image_type == torch.float64 else torch.float32)
    assert result.success.any()
    assert torch.equal(result.prediction, predictions(model, result.adversarial.to(model_type)))
    assert result.valid.all() or name in IGNORE_BOX
    clean = images if image_type == torch.float64 else images.float()
    assert wb.verify(clean, result.adversarial, eps=0.3, plan=result.plan, cost=result.cost, bounds=None).valid.all()


@pytest.mark.parametrize("name", ["PGD", "FrankWolfe"])
@pytest.mark.parametrize("form", ["transposed", "expanded", "channels last", "a slice", "with a gradient"])
def test_images_in_any_form(name: str, form: str) -> None:
    images, labels = batch()
    wide = torch.zeros(7, 3, SIDE, SIDE + 2)
    wide[:, 1:2, :, 2:] = images
    given = {
        "transposed": images.mT.contiguous().mT,
        "expanded": images[:1].expand(7, 1, SIDE, SIDE),
        "channels last": images.to(memory_format=torch.channels_last),
        "a slice": wide[:, 1:2, :, 2:],
        "with a gradient": images.clone().requires_grad_(),
    }[form]
    before = given.detach().clone()
    result = ATTACKS[name](network(), given, labels)
    expected = ATTACKS[name](network(), images[:1].expand_as(images).clone(), labels) if form == "expanded" else None
    assert same(result, expected or attacked(name))
    assert torch.equal(given, before)
    assert not result.adversarial.requires_grad
    assert not result.images.requires_grad
    assert given.grad is None
    assert result.adversarial.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("name", "mode"), [("PGD", torch.no_grad), *((name, torch.inference_mode) for name in KINDS)], ids=str
)
def test_inside_a_mode_without_gradients(name: str, mode: Callable[[], Any]) -> None:
    model = network()
    with mode():
        images, labels = batch()
        result = ATTACKS[name](model, images, labels.int())
    assert same(result, attacked(name))


@one_of_each_kind
def test_several_channels(name: str) -> None:
    images = grey_images(3, side=4, channels=3)
    model = network(48)
    result = dataclasses.replace(ATTACKS[name], return_plan=True)(model, images, predictions(model, images))
    mass, moved = (tensor.double().sum((2, 3)) for tensor in (images, result.adversarial))
    torch.testing.assert_close(mass, moved, rtol=1e-6, atol=0)
    certificate = wb.verify(images, result.adversarial, eps=EPS, plan=result.plan, cost=result.cost, bounds=None)
    assert certificate.valid.all(), str(certificate)


@alone
def test_bounds_are_a_matter_of_units(name: str) -> None:
    """Images from 0 to 255 and a model of them: the same attack, up to rounding."""
    images, labels = batch(torch.float64)
    small = ATTACKS[name](network(dtype=torch.float64), images, labels)
    changes: dict[str, Any] = {"step": 25.5} if name == "ProjectedSinkhorn" else {}
    large = dataclasses.replace(ATTACKS[name], bounds=(0, 255), **changes)(
        lambda pixels: network(dtype=torch.float64)(pixels / 255), images * 255, labels
    )
    assert torch.equal(large.success, small.success)
    torch.testing.assert_close(large.adversarial / 255, small.adversarial, rtol=0, atol=1e-6)
    torch.testing.assert_close(large.distance[:WHITE], small.distance[:WHITE], rtol=0, atol=1e-6)
    assert large.adversarial.max() <= 255 or name in IGNORE_BOX


@one_of_each_kind
def test_each_image_may_have_a_radius_of_its_own(name: str) -> None:
    images, labels = batch()
    radii = torch.tensor([0.0, 0.3, 0.01, 0.1, 0.1, 0.1, 0.1])
    model = OneByOne(network())
    together = dataclasses.replace(ATTACKS[name], eps=radii, batch_size=4)(model, images, labels)
    assert torch.equal(together.eps, radii.double())
    assert (together.distance <= radii * (1 + 1e-5)).all()
    assert torch.equal(together.adversarial[0], images[0])
    alone = dataclasses.replace(ATTACKS[name], eps=radii[2].double())
    assert same(alone(model, images[[2]], labels[[2]]), together, [2])


@pytest.mark.parametrize("name", ["PGD", "Auto"])
def test_progress_is_shown_where_it_is_wanted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert same(dataclasses.replace(ATTACKS[name], progress=True)(network(), *batch()), attacked(name))
    assert name in capsys.readouterr().out


def test_progress_over_several_batches_ends_with_all_samples(capsys: pytest.CaptureFixture[str]) -> None:
    ATTACKS["PGD"](network(), *batch())
    assert capsys.readouterr() == ("", "")
    dataclasses.replace(ATTACKS["PGD"], batch_size=3, progress=True)(network(), *batch())
    assert "7/7" in capsys.readouterr().out


@one_of_each_kind
def test_bind_gives_the_images_alone(name: str) -> None:
    bound = ATTACKS[name].bind(network())
    assert torch.equal(bound(*batch()), attacked(name).adversarial)
    assert torch.equal(bound.perturb(*batch()), attacked(name).adversarial)


def test_bound_attacks_avoid_what_the_model_answers_where_no_labels_are_given() -> None:
    model, (images, _) = network().train(), batch()
    answers = predictions(network(), images)
    found = wb.PGD(eps=0.1, steps=5).bind(model).run(images)
    assert torch.equal(found.labels, answers)
    assert torch.equal(found.adversarial, wb.PGD(eps=0.1, steps=5)(model, images, answers).adversarial)
    assert model.training
    with pytest.raises(ValueError, match="labels must be given where targeted is True"):
        wb.PGD(eps=0.1, targeted=True).bind(model).perturb(images)


@attacks
def test_the_representation_makes_the_same_attack(name: str) -> None:
    attack = ATTACKS[name]
    names = {"LocalCost": wb.LocalCost, type(attack).__name__: type(attack)}
    assert eval(repr(attack), names) == attack
    assert hash(eval(repr(attack), names)) == hash(attack)
    usual = {field.name for field in dataclasses.fields(attack) if getattr(attack, field.name) == field.default}
    assert {"targeted", "seed", "bounds"} <= usual
    assert not any(f"{field}=" in repr(attack) for field in usual)


def test_the_representation_of_defaults_is_short() -> None:
    assert repr(wb.PGD(eps=0.1)) == "PGD(eps=0.1)"
    assert repr(wb.FrankWolfe(eps=1, gamma=0.5)) == "FrankWolfe(eps=1, gamma=0.5)"
    assert repr(wb.MinimalRadius()) == "MinimalRadius()"
    assert repr(wb.PGD(eps=0.1, loss=margin)) == "PGD(eps=0.1, loss=margin)"


@attacks
def test_attacks_are_frozen_and_keyword_only(name: str) -> None:
    attack = ATTACKS[name]
    with pytest.raises(dataclasses.FrozenInstanceError):
        attack.eps = 0.5  # type: ignore[misc]
    with pytest.raises(TypeError):
        type(attack)(0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="stepz"):
        type(attack)(eps=0.1, stepz=3)  # type: ignore[call-arg]
    larger = dataclasses.replace(attack, eps=0.5)
    assert larger.eps == 0.5
    assert dataclasses.replace(larger, eps=attack.eps) == attack


@one_of_each_kind
def test_a_target_is_reached_or_not(name: str) -> None:
    images, _ = batch()
    targets = (predictions(network(), images) + 1) % CLASSES
    targets[0] = predictions(network(), images)[0]  # already there
    result = dataclasses.replace(ATTACKS[name], targeted=True, eps=0.5)(network(), images, targets)
    assert torch.equal(result.success, predictions(network(), result.adversarial) == targets)
    assert torch.equal(result.adversarial[0], images[0])
    assert result.success[0]
    assert result.success[1:4].any()
    assert result.targeted
    assert torch.equal(result.success, result.margin > 0)


@from_one_start
@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
@pytest.mark.parametrize("targeted", [False, True])
def test_all_losses_rise(name: str, loss: LossName, targeted: bool) -> None:
    images, labels = (column[GREY] for column in batch())
    labels = (labels + targeted) % CLASSES
    attack = ascent(name, loss=loss, targeted=targeted, eps=0.5)
    still = dataclasses.replace(attack, eps=0.0)(network(), images, labels)
    result = attack(network(), images, labels)
    assert (result.loss > still.loss).all()
    assert loss == "dlr" or (result.margin > still.margin).all()
    assert result.success.any()


@from_one_start
def test_a_loss_may_be_a_callable(name: str) -> None:
    named = ascent(name, loss="margin")(network(), *batch())
    assert same(ascent(name, loss=margin)(network(), *batch()), named)


@from_one_start
@pytest.mark.parametrize("rival", [1, 3, 9])
def test_a_rival_is_aimed_at_and_any_wrong_answer_counts(name: str, rival: int) -> None:
    result = ascent(name, rival=rival, eps=0.4)(network(), *batch())
    with torch.no_grad():
        logits = network()(batch()[0]).scatter(1, result.labels.unsqueeze(1), -math.inf)
    aims = logits.argsort(1, descending=True)[:, min(rival, CLASSES - 1) - 1]
    assert torch.equal(result.success, result.prediction != result.labels)
    assert result.success[GREY].any()
    moved = result.success & (result.distance > 0)
    if rival == 1:
        assert (result.prediction == aims)[moved].any()
    with torch.no_grad():
        expected = -nn.functional.cross_entropy(network()(result.adversarial).double(), aims, reduction="none")
    torch.testing.assert_close(result.loss, expected, rtol=0, atol=1e-5)


@from_one_start
def test_restarts_never_make_it_worse(name: str) -> None:
    once, more = (ascent(name, loss="margin", restarts=restarts)(network(), *batch()) for restarts in (1, 3))
    assert (more.success >= once.success).all()
    assert (more.loss >= once.loss)[~more.success].all()
    assert (more.queries.forward >= once.queries.forward).all()
    assert same(once, ascent(name, loss="margin")(network(), *batch()))


@one_of_each_kind
def test_several_draws_of_a_stochastic_model(name: str) -> None:
    images, labels = (column[:2] for column in batch())
    attack = dataclasses.replace(ATTACKS[name], eot=2)
    torch.manual_seed(0)
    first = attack(Noisy(network()), images, labels)
    torch.manual_seed(1)
    assert same(attack(Noisy(network()), images, labels), first)
    if name == "PGD":
        assert not same(dataclasses.replace(attack, seed=1)(Noisy(network()), images, labels), first)
    assert (first.queries.forward % 2 == 0).all()
    assert (first.queries.backward % 2 == 0).all()


@one_of_each_kind
def test_draws_of_a_deterministic_model_are_all_the_same(name: str) -> None:
    twice = dataclasses.replace(ATTACKS[name], eot=2)(network(), *batch())
    assert torch.equal(twice.adversarial, attacked(name).adversarial)
    assert torch.equal(twice.queries.forward, 2 * attacked(name).queries.forward)


@pytest.mark.parametrize("name", [*KINDS, "FrankWolfe without box", "FrankWolfe, line search"])
def test_queries_are_what_the_model_saw(name: str) -> None:
    seen, back = [], []

    def model(images: Tensor) -> Tensor:
        seen.append(len(images))
        back.append(len(images) if images.requires_grad else 0)
        logits: Tensor = network()(images)
        return logits

    result = dataclasses.replace(ATTACKS[name], return_plan=True)(model, *batch())
    assert same(result, attacked(name))
    assert int(result.queries.forward.sum()) == sum(seen)
    assert int(result.queries.backward.sum()) == sum(back)


@pytest.mark.parametrize("name", ["PGD", "FrankWolfe", "MinimalRadius", "Auto"])
@pytest.mark.parametrize("shape", [(9,), (2, 9)], ids=str)
def test_histograms_on_points_with_a_cost_matrix(name: str, shape: tuple[int, ...]) -> None:
    place = torch.linspace(0, 1, 9, dtype=torch.float64)
    cost = wb.DenseCost((place[:, None] - place[None, :]).abs())
    mass = grey_images(4, 3, math.prod(shape) // 9, torch.float64).view(4, *shape)
    model = network(math.prod(shape), dtype=torch.float64)
    attack = dataclasses.replace(ATTACKS[name], cost=cost, eps=0.2, return_plan=True)
    result = attack(model, mass, predictions(model, mass))
    certificate = wb.verify(mass, result.adversarial, eps=0.2, plan=result.plan, cost=cost)
    assert certificate.valid.all(), str(certificate)
    assert wb.verify(mass, result.adversarial, eps=0.2, cost=cost).valid.all()
    assert torch.equal(result.success, predictions(model, result.adversarial) != result.labels)
    assert result.success.any()
    assert "9 points" in repr(attack)


@pytest.mark.parametrize("name", ["PGD", "Auto", "MinimalRadius"])
def test_two_classes_are_enough(name: str) -> None:
    model = network(classes=2)
    images = batch()[0]
    result = ATTACKS[name](model, images, predictions(model, images))
    assert torch.equal(result.success, predictions(model, result.adversarial) != result.labels)


@pytest.mark.parametrize("name", ["PGD", "Auto"])
def test_probabilities_instead_of_logits_are_worth_a_warning(name: str) -> None:
    model = nn.Sequential(network(), nn.Softmax(1))
    with pytest.warns(UserWarning, match="probabilities"):
        result = ATTACKS[name](model, *batch())
    assert torch.equal(result.success, predictions(model, result.adversarial) != result.labels)


def test_sinkhorn_says_where_it_overflowed() -> None:
    attack = wb.ProjectedSinkhorn(eps=EPS, steps=2, cost=COST, gamma=1e-300, max_iterations=5)
    with pytest.warns(RuntimeWarning, match=r"overflowed on \d of 7 samples with gamma=1e-300"):
        result = attack(network(), *batch())
    assert torch.isfinite(result.adversarial).all()
    assert torch.isfinite(result.loss).all()


def test_a_tie_is_no_success() -> None:
    """Where two logits are equal, the first one is the answer: the margin is 0, and so is the label 0."""
    images = grey_images(2)
    result = wb.PGD(eps=EPS, cost=COST, steps=3)(linear(torch.zeros(1, SIDE, SIDE), 0.0), images, torch.zeros(2).long())
    assert not result.success.any()
    assert result.margin.tolist() == [0, 0]


def test_the_radius_of_a_model_that_changes_its_mind() -> None:
    """Right about the clean images at first and wrong ever after: nothing has to move."""
    images, labels = (column[GREY] for column in batch())
    answers = iter([network()(images)])

    def model(images: Tensor) -> Tensor:
        logits: Tensor = network()(images)
        return next(answers, -logits)

    result = wb.MinimalRadius(eps=EPS, steps=3, cost=COST)(model, images, labels)
    assert result.success.all()
    assert not result.distance.any()
    torch.testing.assert_close(result.adversarial, images)


def test_a_plan_beside_its_scale_is_the_plan() -> None:
    """Frank-Wolfe's plan and a number for each sample, after so many halvings that it had to be written out."""
    images = grey_images(3)
    labels = torch.zeros(3, dtype=torch.int64)
    model = network()
    trial = wb.FrankWolfe(eps=0.1)._trial(
        Classifier(model, images, 1), images, labels, torch.full((3,), 0.1), no_report
    )
    flow = Flow.start(trial, torch.arange(3), with_plan=True, priced=False)
    assert flow.plan is not None
    known = flow.plan.double()
    generator = torch.Generator().manual_seed(0)
    for number in range(50):
        share = torch.tensor([0.5, 1 / (number + 1), 0.0 if number % 3 else 0.9], dtype=torch.float64)
        best = mixture(torch.randn(images.shape, generator=generator), flow.mass, flow.budget, trial.cost)
        best.blend(known, 1 - share, share)
        flow.move(best, share)
    assert (flow.scale != 1).any()
    flow.fold(torch.arange(3), trial)
    assert (flow.scale == 1).all()
    torch.testing.assert_close(flow.plan.double(), known, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(flow.image, trial.cost.scatter(known).float(), rtol=1e-5, atol=1e-6)
