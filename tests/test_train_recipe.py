"""Recipes: what they refuse, which radii and rates follow from them, and what an attack is asked for with these."""

import copy
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.pupils import ATTACK, QUICK, STEPS, bars, history_of, perceptron
from wasserball import PGD, ProjectedSinkhorn
from wasserball.attacks import Attack
from wasserball.attacks.drill import Lead
from wasserball.attacks.inner import inner_maximum
from wasserball.evaluate.workers import Workers
from wasserball.train import RECIPES, Recipe, train, trainer
from wasserball.train.objective import objective
from wasserball.train.radius import OwnRadii
from wasserball.train.recipe import choose_recipe
from wasserball.train.setting import Setting
from wasserball.zoo import NETWORKS

NUMBERS = (
    "low",
    "focus",
    "warm_up",
    "rate_warm_up",
    "clean_share",
    "bounded",
    "bounded_late",
    "smoothing",
    "average",
    "trades",
    "weight_decay",
    "clip",
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(attack="fw"), "attack must be an attack of wasserball, got str"),
        (dict(attack=replace(ATTACK, targeted=True)), "attack must not be targeted"),
        (dict(attack=replace(ATTACK, eps=torch.ones(3))), "attack must have one radius for all images"),
        (dict(radius="wide"), "radius must be one of fixed, random, grown, .*, got 'wide'"),
        (dict(optimizer="lion"), "optimizer must be one of adam, sgd, muon, got 'lion'"),
        (dict(precision="half"), "precision must be one of float32, bfloat16, got 'half'"),
        (dict(augment=None), "augment must be one of none, crop-flip, .*, got None"),
        (dict(channels_last="no"), "channels_last must be one of True, False, got 'no'"),
        (dict(replay=None), "replay must be one of True, False, got None"),
        (dict(remember=1.5), r"remember must be one of True, False, got 1\.5"),
        (dict(remember=True), r'remember must be False but for PGD with box="loop" .*, got FrankWolfe'),
        (dict(attack=PGD(eps=0.3, box="final"), remember=True), "remember must be False but for PGD .*, got PGD"),
        (dict(attack=PGD(eps=0.3, random_start=True), remember=True), "remember must be False .* random_start"),
        (
            dict(attack=PGD(eps=0.3), remember=True, augment="crop-flip"),
            "remember must be False where images are augmented .*, got augment='crop-flip'",
        ),
        (
            dict(attack=PGD(eps=0.3), remember=True, radius="grown", low=0.1),
            "remember must be False where .* radii are grown, got augment='none', radius='grown'",
        ),
        (dict(epochs=0), "epochs must be an integer >= 1, got 0"),
        (dict(batch_size=0), "batch_size must be an integer >= 1, got 0"),
        (dict(held_out=0), "held_out must be an integer >= 1, got 0"),
        (dict(bounded_late=0.8), r"bounded_late must be 0 where bounded is, got 0\.8"),
        (dict(stages=0), "stages must be an integer >= 1, got 0"),
        (dict(judge_steps=1.5), r"judge_steps must be an integer >= 1, got 1\.5"),
        (dict(rate=0), "rate must be a finite number > 0, got 0"),
        (dict(low=0.4), r"low must be a number from 0 to the radius of the attack, 0\.3, got 0\.4"),
        (dict(radius="own", focus=0.4), r"focus must be a number from 0 to the radius of the attack, 0\.3, got 0\.4"),
        (dict(focus=0.2), r"focus must be 0 where radii are not each sample's own, got 0\.2"),
        (dict(warm_up=11), "warm_up must be a number from 0 to the 10 epochs, got 11"),
        (dict(rate_warm_up=11), "rate_warm_up must be a number from 0 to the 10 epochs, got 11"),
        (dict(clean_share=1), r"clean_share must be a number in \[0, 1\), got 1"),
        (dict(bounded=1.1), r"bounded must be a number in \[0, 1\], got 1\.1"),
        (dict(bounded=0.5, trades=1.0), r"bounded must be 0 where trades or smoothing are not, got 0\.5"),
        (dict(bounded=0.5, smoothing=0.1), r"bounded must be 0 where trades or smoothing are not, got 0\.5"),
        (dict(smoothing=1.0), r"smoothing must be a number in \[0, 1\), got 1\.0"),
        (dict(leak=1.0), r"leak must be a number in \[0, 1\), got 1\.0"),
        (dict(average=1.0), r"average must be a number in \[0, 1\), got 1\.0"),
        (dict(trades=math.inf), "trades must be a number >= 0, got inf"),
        (dict(weight_decay=-1.0), r"weight_decay must be a number >= 0, got -1\.0"),
        (dict(clip=-1), "clip must be a number >= 0, got -1"),
        (dict(patience=-1), "patience must be an integer >= 0, got -1"),
        (dict(seed=1.0), r"seed must be an integer >= 0, got 1\.0"),
        (dict(trades=6.0, clean_share=0.5), r"clean_share must be 0 where trades is not: it has its own, got 0\.5"),
        (dict(radius="grown", low=0.1, stages=1), "stages must be at least 2 for a radius that is grown, got 1"),
        (dict(attack=replace(ATTACK, rival=2)), "attack must not aim at a rival"),
        (dict(attack=replace(ATTACK, random_start=True), replay=True), "replay must be False but for PGD and Frank"),
        (dict(attack=ProjectedSinkhorn(eps=0.3), replay=True), "replay must be False but for PGD and FrankWolfe"),
        (dict(radius="grown", low=0.1, replay=True), "replay must be False .* a radius that is not grown"),
        (dict(radius="grown"), r"low must be above 0 and below 0\.3 for a radius that is grown, got 0\.0"),
        (dict(radius="grown", low=0.3), r"low must be above 0 and below 0\.3 .*, got 0\.3"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_recipe_refuses_nonsense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**options)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-0.1, math.nan, True, "1", None])
def test_a_number_of_a_recipe_is_a_number(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a number .*, got {value!r}"):
        Recipe(**{name: value})


def test_a_recipe_is_chosen_by_name_and_changed() -> None:
    chosen = choose_recipe("default", dict(attack=replace(ATTACK, return_plan=True, progress=True), seed=7))
    assert chosen == replace(RECIPES["default"], attack=ATTACK, seed=7)
    assert choose_recipe(QUICK, {}) == QUICK
    with pytest.raises(ValueError, match=r"recipe must be one of default, .*, got 'best'"):
        choose_recipe("best", {})
    with pytest.raises(ValueError, match="recipe must be a Recipe or the name of one, got dict"):
        choose_recipe({}, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"nothing like 'eps' to choose in a recipe, only network, attack, .* seed"):
        choose_recipe("default", dict(eps=0.3))


def test_all_recipes_are_for_networks_that_there_are() -> None:
    assert "finetune" in RECIPES
    for recipe in RECIPES.values():
        assert recipe.network in NETWORKS
        eps = recipe.low if recipe.radius == "grown" else recipe.focus or recipe.eps
        assert recipe.judge == PGD(eps=eps, steps=recipe.judge_steps, cost=recipe.attack.cost)
        assert json.loads(json.dumps(recipe.content())) == recipe.content()


def setting(**changes: Any) -> Setting:
    """Of 100 samples, two steps in an epoch."""
    recipe = Recipe(**dict(epochs=4, batch_size=50, rate=0.1, warm_up=0) | changes).content()
    return Setting(model="m", data="d", data_fingerprint="f", samples=100, recipe=recipe, device="cpu")


def test_the_rate_rises_on_a_slope_and_falls_on_a_cosine() -> None:
    assert [setting().rate_at(step) for step in (0, 4, 8)] == pytest.approx([0.1, 0.05, 0])
    for step in range(8):
        cosine = 0.1 * (1 + math.cos(math.pi * step / 8)) / 2
        assert setting(rate_warm_up=2).rate_at(step) == pytest.approx(cosine * min(1, (step + 1) / 4))


def test_the_radius_rises_from_nothing() -> None:
    assert [setting(warm_up=2).radius_share(step) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    assert setting().radius_share(0) == 1


def test_what_is_late_comes_between_half_and_three_quarters() -> None:
    assert [setting().late(step) for step in range(8)] == [0, 0, 0, 0, 0, 0.5, 1, 1]


def test_samples_near_the_focus_weigh_more() -> None:
    radii = OwnRadii(4, 0.0, 0.4, torch.device("cpu"))
    radii.restore(torch.tensor([0.0, 0.3, 0.3 + 0.155 * 0.4, 0.4], dtype=torch.float64))
    weights = radii.weights(torch.tensor([1, 0, 2, 3]), 0.3, 1.0)
    assert weights[[0, 2]].tolist() == pytest.approx([1, (1 + 3 * math.exp(-0.5)) / 4])
    assert 0.25 < weights[1] < 0.26 < weights[3] < weights[2]
    assert radii.weights(torch.arange(4), 0.3, 0.0).tolist() == [1] * 4
    assert radii.weights(torch.arange(4), 0.3, 0.5)[1] == 1
    assert radii.weights(torch.arange(4), 0.3, 0.5)[0] == pytest.approx(0.4, abs=1e-3)


def test_the_model_learns_from_what_is_near_the_focus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def nothing(self: OwnRadii, places: Tensor, focus: float, share: float) -> Tensor:
        asked.append((focus, share))
        return torch.zeros_like(self.values[places])

    monkeypatch.setattr(OwnRadii, "weights", nothing)
    model = perceptron()
    before = copy.deepcopy(model.state_dict())
    train(model, bars(), out=tmp_path / "run", recipe=QUICK, radius="own", focus=0.2, epochs=4)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [share for _, share in asked] == pytest.approx(
        [min(1.0, max(0.0, (step / (4 * STEPS) - 0.5) * 4)) for step in range(4 * STEPS)]
    )
    assert {focus for focus, _ in asked} == {0.2}


def test_a_setting_can_be_written_read_and_compared() -> None:
    mine = setting()
    assert Setting.parse(json.loads(mine.json("train"))) == mine
    assert mine.differences(mine) == []
    assert mine.differences(setting(rate=0.5, clip=1)) == ["rate is 0.1, there 0.5", "clip is 0.0, there 1"]


class Orders(list[tuple[Attack, nn.Module, Tensor, Tensor, Tensor, Tensor]]):
    """What is asked of the inner maximum, and what it answers: patched in where the trainer calls it."""

    def __init__(self) -> None:
        self.leads: list[tuple[bool, Tensor, Tensor]] = []
        """Whether something was known, what, and what was left."""

    def __call__(
        self,
        attack: Attack,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        eps: Tensor,
        lead: Lead | None = None,
    ) -> Tensor:
        before = None if lead is None else lead.direction.clone()
        found = inner_maximum(attack, model, images, labels, eps, lead)
        self.append((attack, copy.deepcopy(model), images.clone(), labels.clone(), eps.clone(), found.clone()))
        if lead is not None and before is not None:
            self.leads.append((lead.known, before, lead.direction.clone()))
        return found

    @property
    def radii(self) -> list[Tensor]:
        return [eps for *_, eps, _ in self]


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    spy = Orders()
    monkeypatch.setattr(trainer, "inner_maximum", spy)
    return spy


def test_attacks_begin_where_the_last_on_the_same_image_ended(tmp_path: Path, orders: Orders) -> None:
    recipe = replace(QUICK, attack=PGD(eps=0.5, steps=2), epochs=3, warm_up=1, remember=True)
    train(perceptron(), bars(), out=tmp_path / "run", recipe=recipe)
    assert len(orders.leads) == 3 * STEPS
    left: dict[bytes, Tensor] = {}
    for number, ((known, before, after), (_, _, images, *_)) in enumerate(zip(orders.leads, orders, strict=True)):
        assert known is (number >= STEPS)
        for image, mine, next_time in zip(images, before, after, strict=True):
            if known:
                torch.testing.assert_close(mine, left[image.numpy().tobytes()].half().float())
            left[image.numpy().tobytes()] = next_time
    assert all(float(direction.abs().max()) == pytest.approx(1) for direction in left.values())


def test_a_fixed_radius_grows_in_the_warm_up(tmp_path: Path, orders: Orders) -> None:
    train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK, warm_up=2, epochs=3)
    expected = [0.5 * min(1.0, step / (2 * STEPS)) for step in range(3 * STEPS)]
    assert len(orders) == len(expected) - 1  # with a radius of 0 there is nobody to ask
    for radii, radius in zip(orders.radii, expected[1:], strict=True):
        assert radii.tolist() == pytest.approx([radius] * len(radii))
    told = [entry["radius"] for entry in history_of(tmp_path / "run")]
    assert told == pytest.approx([expected[STEPS - 1], expected[2 * STEPS - 1], 0.5])


def test_without_a_radius_nobody_is_asked(tmp_path: Path, orders: Orders) -> None:
    train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK, attack=replace(ATTACK, eps=0.0))
    assert not orders


def test_random_radii_are_drawn_anew_between_low_and_full(tmp_path: Path, orders: Orders) -> None:
    train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK, radius="random", low=0.2, warm_up=0)
    radii = torch.stack([torch.cat(orders.radii[first : first + STEPS]) for first in (0, STEPS)])
    assert radii.min() >= 0.2
    assert radii.max() <= 0.5
    assert len(set(radii.flatten().tolist())) > 0.99 * radii.numel()
    assert radii.mean().item() == pytest.approx(0.35, abs=0.03)
    for quarter in range(4):
        inside = (radii >= 0.2 + 0.075 * quarter) & (radii < 0.275 + 0.075 * quarter)
        assert inside.double().mean().item() == pytest.approx(0.25, abs=0.08)


def test_random_radii_grow_in_the_warm_up(tmp_path: Path, orders: Orders) -> None:
    train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK, radius="random", low=0.4, warm_up=2)
    for step, radii in enumerate(orders.radii, start=1):
        share = step / (2 * STEPS)
        assert radii.min() >= 0.4 * share
        assert radii.max() <= 0.5 * share


def test_each_step_starts_from_other_random_points(tmp_path: Path, orders: Orders) -> None:
    for radius in ("fixed", "grown"):
        orders.clear()
        attack = replace(ATTACK, random_start=True)
        options: dict[str, Any] = dict(attack=attack, radius=radius, low=0.1, stages=2, warm_up=0)
        train(perceptron(), bars(), out=tmp_path / radius, recipe=QUICK, **options)
        seeds = {attack.seed for attack, *_ in orders}
        assert len(seeds) == 2 * STEPS


def test_the_bound_of_the_loss_goes_to_its_last_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def note(model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor, recipe: Recipe) -> Any:
        seen.append(recipe.bounded)
        return objective(model, images, adversarial, labels, recipe)

    monkeypatch.setattr(trainer, "objective", note)
    train(perceptron(), bars(), out=tmp_path / "run", recipe=replace(QUICK, bounded=0.4, bounded_late=0.8, epochs=8))
    assert seen[: 4 * STEPS + 1] == [0.4] * (4 * STEPS + 1)
    assert seen[5 * STEPS] == pytest.approx(0.6)
    assert seen[6 * STEPS :] == pytest.approx([0.8] * 2 * STEPS)
    assert seen == sorted(seen)


def test_a_grown_radius_is_the_smallest_that_fools(tmp_path: Path, orders: Orders, monkeypatch: Any) -> None:
    learnt: list[Tensor] = []

    def seen(model: nn.Module, images: Tensor, adversarial: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        learnt.append(adversarial.clone())
        return objective(model, images, adversarial, *rest)

    monkeypatch.setattr(trainer, "objective", seen)
    own: dict[str, Any] = dict(attack=PGD(eps=0.5, steps=12), radius="grown", low=0.05, stages=4, warm_up=0, epochs=1)
    train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK, **own)
    radii = [0.05 * 10 ** (stage / 3) for stage in range(4)]
    _, model, images, labels, _, _ = orders[0]
    chosen = []
    for image, label, found in zip(*(torch.split(x, 1) for x in (images, labels, learnt[0])), strict=True):
        for radius in radii:
            adversarial = inner_maximum(PGD(eps=0.5, steps=3), model, image, label, torch.tensor([radius]).double())
            if model.eval()(adversarial).argmax(1) != label:
                break
        chosen.append(radius)
        torch.testing.assert_close(found, adversarial, atol=1e-4, rtol=0)
    assert len(set(chosen)) >= 3  # else this would say little
    assert sorted(set(torch.cat(orders.radii).tolist())) == pytest.approx(radii)


def test_a_radius_of_its_own_grows_where_the_model_holds_and_shrinks_where_not(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Tensor] = []

    def seen(model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor, recipe: Recipe) -> Any:
        losses, logits = objective(model, images, adversarial, labels, recipe)
        held.append(logits.argmax(1) == labels)
        return losses, logits

    monkeypatch.setattr(trainer, "objective", seen)
    recipe = replace(QUICK, radius="own", low=0.1, warm_up=0, epochs=15)
    train(perceptron(), bars(), out=tmp_path / "run", recipe=recipe)
    expected: dict[tuple[float, ...], float] = {}
    turns = set()
    for (_, _, images, _, radii, _), right in zip(orders, held, strict=True):
        for image, radius, holds in zip(images.flatten(1).tolist(), radii.tolist(), right.tolist(), strict=True):
            own = expected.get(tuple(image), 0.1)
            assert radius == pytest.approx(own)
            expected[tuple(image)] = min(0.5, own + 0.04) if holds else max(0.1, own - 0.04)
            turns.add((holds, round(own, 2)))
    assert {(True, 0.5), (False, 0.1), (True, 0.1)} <= turns  # both ends were reached
    assert len(expected) == 140


@dataclass(frozen=True, kw_only=True)
class Company(Workers):
    """Two processes, of which the other has this to add."""

    other: Tensor

    def sum(self, values: Tensor) -> Tensor:
        return values + self.other


def test_processes_share_what_they_have_learned_of_radii() -> None:
    several = [OwnRadii(6, 0.1, 0.5, torch.device("cpu")) for _ in range(2)]
    alone = OwnRadii(6, 0.1, 0.5, torch.device("cpu"))
    held = torch.tensor([True, True, True, False, True, True])

    for _ in range(3):
        alone.learn(torch.arange(6), held)
        for radii, places in zip(several, (torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])), strict=True):
            radii.learn(places, held[places])
        changes = [radii.values - radii._before for radii in several]
        for radii, other in zip(several, reversed(changes), strict=True):
            radii.share(Company(other=other))
            torch.testing.assert_close(radii.values, alone.values)


def test_projected_sinkhorn_can_be_trained_against(tmp_path: Path, orders: Orders) -> None:
    attack = ProjectedSinkhorn(eps=0.5, steps=4)
    own: dict[str, Any] = dict(attack=attack, radius="grown", low=0.1, stages=2, warm_up=0, epochs=1, held_out=10)
    training = train(perceptron(), bars(), out=tmp_path / "run", recipe=QUICK, limit=20, **own)
    assert math.isfinite(training.best.loss)
    assert {attack.steps for attack, *_ in orders} == {2}
    assert all((found >= 0).all() and (found <= 1).all() for *_, found in orders)
