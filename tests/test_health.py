"""Health checks: for each a model, or a run, that is broken in just that way, and a sound one beside it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.victims import Noisy, convolutions, grey_images, network, predictions
from wasserball.attacks import PGD, Attack, Auto, FrankWolfe, MinimalRadius, ProjectedSinkhorn
from wasserball.attacks.classifier import Model
from wasserball.evaluate.health import Finding, examine
from wasserball.evaluate.outcomes import Outcome, Outcomes
from wasserball.evaluate.rows import make_rows
from wasserball.evaluate.setting import Unit, name_attacks
from wasserball.threat import LocalCost
from wasserball.zoo import load_data

COUNT = 32
IMAGES = grey_images(COUNT)
MIRRORED = (IMAGES + IMAGES.flip(3)) / 2
PROBES = 16
PGD20, FW20, AUTO = PGD(eps=0, steps=20), FrankWolfe(eps=0, steps=20), Auto(eps=0, steps=10)
CHECKS = [
    *("clean accuracy", "certificates", "deterministic", "logits", "gradients", "converged", "more steps"),
    *("more restarts", "targeted", "monotone in window", "unbounded radius", "kept on the way", "monotone in eps"),
    "one attack alone",
]
Findings = dict[str, Finding]


def attacked(
    model: Model, attacks: Sequence[Attack], eps: Sequence[float], images: Tensor, labels: Tensor
) -> tuple[Outcomes, dict[str, Attack]]:
    """The rows of an evaluation, without a folder for them."""
    named = name_attacks(attacks)
    outcomes = {}
    for name, attack in named.items():
        for radius in eps:
            result = replace(attack, eps=radius)(model, images, labels)
            outcomes[name, radius] = Outcome(make_rows(Unit(name, radius, 0, len(images)), result))
    return outcomes, named


def examined(
    model: Model,
    attacks: Sequence[Attack] = (PGD20, FW20),
    eps: Sequence[float] = (0.02, 0.05),
    images: Tensor = IMAGES,
    labels: Tensor | None = None,
    change: Callable[[Outcomes], None] = lambda outcomes: None,
    probes: int = PROBES,
) -> Findings:
    """What the checks say of such an evaluation, whose rows were changed."""
    labels = predictions(model, images) if labels is None else labels
    outcomes, named = attacked(model, attacks, eps, images, labels)
    change(outcomes)
    found = examine(outcomes, model, load_data((images, labels)), named, torch.device("cpu"), probes)
    for finding in found:
        assert finding.detail.endswith(".")
        assert "\n" not in finding.detail
        assert len(finding.detail) < 250
        assert (finding.status == "pass") or ": " in finding.detail  # what to do about it
    return {finding.check: finding for finding in found}


@cache
def sound() -> Findings:
    """A sound model, attacked well enough."""
    return examined(network(), [PGD20, FW20, AUTO])


def alight(findings: Findings) -> set[str]:
    """The checks that do not pass."""
    return {check for check, finding in findings.items() if finding.status != "pass"}


def test_a_sound_run_passes_everything() -> None:
    assert list(sound()) == CHECKS
    assert alight(sound()) == set()
    assert alight(examined(convolutions(), [replace(AUTO, steps=20)], [0.05])) == set()


def test_the_same_run_has_the_same_findings_and_the_model_is_left_alone() -> None:
    model = network().train()
    state = torch.get_rng_state()
    again = examined(model, [PGD20, FW20, AUTO])
    assert again == sound()
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_without_probes_only_the_rows_are_looked_at() -> None:
    asked = 0

    def model(images: Tensor) -> Tensor:
        nonlocal asked
        asked += 1
        logits: Tensor = network()(images)
        return logits

    labels = predictions(network(), IMAGES)
    outcomes, named = attacked(model, [PGD20, FW20], [0.02, 0.05], IMAGES, labels)
    asked = 0
    found = examine(outcomes, model, load_data((IMAGES, labels)), named, torch.device("cpu"), 0)
    assert asked == 0
    assert [finding.check for finding in found] == [
        *("clean accuracy", "certificates", "kept on the way", "monotone in eps", "one attack alone")
    ]


# The rows


def test_labels_that_do_not_fit() -> None:
    labels = (predictions(network(), IMAGES) + torch.arange(COUNT) % 4) % 4
    findings = examined(network(), labels=labels, probes=0)
    assert findings["clean accuracy"].status == "fail"
    assert f"{COUNT // 4} of {COUNT} samples are classified correctly" in findings["clean accuracy"].detail


def test_nothing_is_classified_correctly() -> None:
    findings = examined(network(), labels=(predictions(network(), IMAGES) + 1) % 4)
    assert alight(findings) == {"clean accuracy", "gradients"}
    assert findings["gradients"].status == "warn"


@pytest.mark.parametrize(("count", "fooling", "status"), [(3, True, "fail"), (2, False, "warn")])
def test_a_certificate_that_fails(count: int, fooling: bool, status: str) -> None:
    def change(outcomes: Outcomes) -> None:
        outcome = outcomes["fw", 0.05]
        outcome["valid"][(outcome.holds != fooling).nonzero()[0][:count]] = False

    findings = examined(network(), change=change, probes=0)
    assert alight(findings) == {"certificates"}
    assert findings["certificates"].status == status
    assert f"{count} of {COUNT} images of fw at eps 0.05" in findings["certificates"].detail


def test_the_sinkhorn_baseline_leaves_the_box() -> None:
    attack = ProjectedSinkhorn(eps=0, steps=10, gamma=0.01)
    findings = examined(network(), [attack, FW20], [0.1], probes=4)
    assert findings["certificates"].status == "fail"
    assert "of sinkhorn at eps 0.1" in findings["certificates"].detail


def test_success_on_the_way_that_is_lost() -> None:
    model = Noisy(network(), 0.1)
    lossy = examined(model, [replace(PGD20, box="final"), replace(FW20, box="final")], [0.05], probes=0)
    assert lossy["kept on the way"].status == "fail"
    assert 'box="loop"' in lossy["kept on the way"].detail

    def find(outcomes: Outcomes) -> None:
        outcomes["fw", 0.05]["success"][:] = True

    # Where another attack has found these samples the verdict stands.
    saved = examined(model, [replace(PGD20, box="final"), FW20], [0.05], change=find, probes=0)
    assert saved["kept on the way"].status == "warn"
    assert examined(model, [PGD20, FW20], [0.05], probes=0)["kept on the way"].status == "pass"


@pytest.mark.parametrize(("up", "down", "status"), [(3, 0, "fail"), (3, 3, "warn"), (1, 0, "pass")])
def test_accuracy_that_rises_with_the_radius(up: int, down: int, status: str) -> None:
    def change(outcomes: Outcomes) -> None:
        small, large = outcomes["fw", 0.02]["success"], outcomes["fw", 0.05]["success"]
        small[:], large[:] = False, False
        small[:up], large[up : up + down] = True, True

    findings = examined(network(), change=change, probes=0)
    assert findings["monotone in eps"].status == status
    assert status == "pass" or "fw at eps 0.0" in findings["monotone in eps"].detail


def test_one_radius_says_nothing_of_others() -> None:
    assert "monotone in eps" not in examined(network(), eps=[0.05], probes=0)


def test_one_attack_far_stronger_than_the_others() -> None:
    weak = replace(PGD20, steps=1, step=1e-4)
    findings = examined(network(), [weak, FW20], probes=0)
    assert alight(findings) == {"one attack alone"}
    assert findings["one attack alone"].status == "warn"
    assert "are by fw alone" in findings["one attack alone"].detail


def test_one_attack_without_any_other() -> None:
    assert examined(network(), [PGD20], [0.05], probes=0)["one attack alone"].status == "warn"
    assert examined(network(), [AUTO], [0.05], probes=0)["one attack alone"].status == "pass"


# The model


def test_a_model_with_dropout_left_on() -> None:
    clean, model = network(), network()
    labels = predictions(clean, IMAGES)

    def noisy(images: Tensor) -> Tensor:
        logits: Tensor = model(F.dropout(images, 0.05))
        return logits

    findings = examined(noisy, [PGD20, AUTO], [0.05], labels=labels)
    assert alight(findings) == {"deterministic"}
    assert findings["deterministic"].status == "fail"
    averaged = examined(noisy, [PGD(eps=0, steps=5, eot=4)], [0.05], labels=labels)
    assert averaged["deterministic"].status == "warn"


def test_a_model_whose_answers_depend_on_the_batch() -> None:
    model = network()

    def centred(images: Tensor) -> Tensor:
        logits: Tensor = model(images - 0.1 * images.mean(0, keepdim=True))
        return logits

    findings = examined(centred, [PGD20, AUTO], [0.05])
    assert alight(findings) == {"deterministic"}
    assert "depend on the batch" in findings["deterministic"].detail


@pytest.mark.filterwarnings("ignore:model returns probabilities")
def test_a_softmax_at_the_end() -> None:
    findings = examined(nn.Sequential(network(), nn.Softmax(1)), [PGD20, AUTO], [0.05])
    assert alight(findings) == {"logits"}
    assert findings["logits"].status == "fail"
    assert examined(nn.Sequential(network(), nn.Sigmoid()), [FW20], [0.05])["logits"].status == "warn"
    assert alight(examined(nn.Sequential(network(), nn.LogSoftmax(1)), [PGD20, AUTO], [0.05])) == set()


def test_inputs_that_are_rounded() -> None:
    model = network()
    findings = examined(lambda images: model(torch.round(8 * images) / 8), [PGD20, AUTO], [0.05])
    assert alight(findings) - {"more restarts"} == {"gradients", "unbounded radius"}  # a random step is one at least
    assert findings["gradients"].status == "fail"
    assert "16 of them are exactly 0" in findings["gradients"].detail


def test_outputs_that_are_saturated() -> None:
    model = network()
    findings = examined(lambda images: 10 * torch.softmax(100 * model(images), 1), [PGD20, AUTO], [0.05])
    assert alight(findings) == {"gradients", "unbounded radius"}
    assert "gradients have vanished" in findings["gradients"].detail


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_logits_of_any_size_are_sound(scale: float) -> None:
    model = network()
    assert alight(examined(lambda images: scale * model(images), [PGD20, AUTO], [0.05])) == set()


def test_gradients_that_lead_nowhere() -> None:
    model, generator = network(), torch.Generator().manual_seed(0)
    fast = torch.randn(36, 4, generator=generator)

    def shattered(images: Tensor) -> Tensor:
        logits: Tensor = model(images) + 0.05 * torch.sin(1e5 * images.flatten(1)) @ fast
        return logits

    findings = examined(shattered, [PGD20, AUTO], [0.05])
    assert findings["gradients"].status == "fail"
    assert "does not raise the loss" in findings["gradients"].detail


# The search


def test_an_attack_that_is_stopped_too_early() -> None:
    small = [PGD(eps=0, steps=5, step=step) for step in (2e-3, 3e-3)]
    findings = examined(network(), small, [0.05])
    assert findings["converged"].status == "fail"
    assert {"more restarts", "targeted", "gradients"}.isdisjoint(alight(findings))
    single = examined(network(), [PGD(eps=0, steps=1), FrankWolfe(eps=0, steps=1)], [0.05])
    assert alight(single) == {"converged", "more steps"}
    assert "with 50 steps instead of 1: run with --steps 50" in single["more steps"].detail


def side(images: Tensor, pattern: Tensor) -> Tensor:
    """How lopsided an image is; 0 for a mirrored one."""
    return ((images - images.flip(3)) * pattern).sum((1, 2, 3))


TOP, CHESS = torch.zeros(6, 6), torch.zeros(6, 6)
TOP[:3, :3], CHESS[3:, :3] = 1, torch.tensor([[1.0, -1, 1], [-1, 1, -1], [1, -1, 1]])


def test_a_trap_that_only_a_random_start_avoids() -> None:
    def model(images: Tensor) -> Tensor:
        lure, way_out = -1 + 0.5 * torch.tanh(2 * side(images, TOP)), -2 + 12 * side(images, CHESS).abs()
        ahead = torch.maximum(lure, way_out)
        return torch.stack([-ahead, ahead], 1)

    labels = torch.zeros(COUNT, dtype=torch.int64)
    findings = examined(model, [PGD20], [0.1], MIRRORED, labels)
    assert alight(findings) == {"more restarts", "one attack alone"}
    assert findings["more restarts"].status == "fail"
    assert examined(model, [PGD20, AUTO], [0.1], MIRRORED, labels)["more restarts"].status == "pass"


def test_a_class_that_only_an_aimed_attack_reaches() -> None:
    def model(images: Tensor) -> Tensor:
        lean = side(images, TOP)
        never = torch.zeros_like(lean)
        return torch.stack([never, -0.5 + 0.4 * lean / (1 + lean.abs()), -5 - 8 * lean, never - 9], 1)

    labels = torch.zeros(COUNT, dtype=torch.int64)
    findings = examined(model, [PGD20, FW20], [0.1], MIRRORED, labels)
    assert findings["targeted"].status == "fail"
    assert "--attack auto" in findings["targeted"].detail
    assert {"converged", "more steps", "gradients"}.isdisjoint(alight(findings))
    assert examined(model, [PGD20, AUTO], [0.1], MIRRORED, labels)["targeted"].status == "pass"


@pytest.mark.parametrize("lie", [30.0, 0.0])
def test_a_window_that_hurts(lie: float) -> None:
    """The gradient praises a column that only a 5×5 window reaches, and where nothing is to be gained."""
    weight = torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(1))
    weight[..., 4:] = 0

    def model(images: Tensor) -> Tensor:
        decoy = images[..., 4].sum((1, 2))
        ahead = (images * weight).sum((1, 2, 3)) + lie * (decoy - decoy.detach())
        return torch.stack([-ahead, ahead], 1)

    images = IMAGES.clone()
    images[..., 3:] = 0
    attacks = [replace(attack, cost=LocalCost(3)) for attack in (PGD20, FW20)]
    findings = examined(model, attacks, [0.1, 0.2], images)
    assert alight(findings) == ({"monotone in window"} if lie else set())
    assert "5×5 instead of 3×3" in findings["monotone in window"].detail


@pytest.mark.parametrize(("influence", "status"), [(0.5, "fail"), (3.0, "pass")])
def test_an_unbounded_radius_that_is_not_enough(influence: float, status: str) -> None:
    """A model that looks at the total mass, mostly, which no transport changes."""
    weight = torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(11))

    def model(images: Tensor) -> Tensor:
        bright = torch.sign(images.sum((1, 2, 3)).detach() - 9)
        ahead = bright + influence * torch.tanh((images * weight).sum((1, 2, 3)) / 2)
        return torch.stack([-ahead, ahead], 1)

    images = IMAGES * torch.where(torch.arange(COUNT) % 2 == 0, 0.3, 1.0).view(-1, 1, 1, 1)
    labels = (images.sum((1, 2, 3)) > 9).long()
    findings = examined(model, [PGD20, FW20], [0.05], images, labels)
    assert findings["unbounded radius"].status == status
    assert alight(findings) <= {"unbounded radius"}


# All of them


@pytest.mark.parametrize("error", [RuntimeError("out of\nluck"), None])
def test_a_model_that_breaks_down_does_not_lose_the_evaluation(error: Exception | None) -> None:
    model, labels = network(), predictions(network(), IMAGES)
    broken = False

    def moody(images: Tensor) -> Tensor:
        if broken and error is not None:
            raise error
        logits: Tensor = model(images)
        return logits * torch.nan if broken else logits

    outcomes, named = attacked(moody, [PGD20, FW20], [0.02, 0.05], IMAGES, labels)
    broken = True
    found = examine(outcomes, moody, load_data((IMAGES, labels)), named, torch.device("cpu"), PROBES)
    failed = [finding for finding in found if finding.status == "fail"]
    assert [finding.check for finding in failed] == CHECKS[2:11]
    message = "(RuntimeError: out of)" if error else "(ValueError: model must return finite logits"
    assert all(message in finding.detail for finding in failed)


@pytest.mark.parametrize("attack", [MinimalRadius(steps=20), ProjectedSinkhorn(eps=0, steps=5, gamma=0.01)])
def test_a_run_without_an_ascent_is_probed_by_pgd(attack: Attack) -> None:
    findings = examined(network(), [attack], [0.05], probes=4)
    assert list(findings) == [check for check in CHECKS if check != "monotone in eps"]
    assert findings["converged"].status == "pass"


def test_few_samples_without_mass_and_a_radius_of_zero() -> None:
    black = torch.cat([torch.zeros(1, 1, 6, 6), IMAGES[:1]])
    findings = examined(network(), [PGD20, AUTO], [0.0, 0.05], black)
    assert alight(findings) <= {"clean accuracy"}
    assert set(examined(network(), [PGD20], [0.0], black)).isdisjoint(CHECKS[5:11])


def test_samples_are_spread_over_the_data() -> None:
    """The rows of a part of the data are enough, and their numbers are those of the data."""
    labels = predictions(network(), IMAGES)
    outcomes, named = attacked(network(), [PGD20, FW20], [0.05], IMAGES[:20], labels[:20])
    read: list[int] = []
    data = load_data((IMAGES, labels))
    batch = data.batch
    data.batch = lambda first, last: read.append(first) or batch(first, last)  # type: ignore[func-returns-value, method-assign]
    examine(outcomes, network(), data, named, torch.device("cpu"), 4)
    assert max(read) == 19
    assert np.unique(read).size <= 12
