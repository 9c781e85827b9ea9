"""Bad input to attacks: every error opens with the argument and says what was seen, and the sample if there is one."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wasserball as wb
from tests.test_attacks import ATTACKS, COST, EPS, ascent, batch, from_one_start, one_of_each_kind
from tests.test_inputs import BOUNDS_NEEDED, COST_NEEDED, COUNT, GAMMA_OR_ZERO, POSITIVE, Bad
from tests.victims import CLASSES, grey_images, network, predictions

NUMBERS = [
    Bad("negative", -0.1, "-0.1"),
    Bad("NaN", math.nan, "nan"),
    Bad("inf", math.inf, "inf"),
    Bad("string", "0.1", "'0.1'"),
    Bad("None", None, "None"),
    Bad("bool", True, "True"),
    Bad("list", [0.1], "[0.1]"),
    Bad("negative sample", torch.tensor([0.1, -0.5]), "sample 1 has -0.5"),
    Bad("NaN number", torch.tensor(math.nan), "nan"),
    Bad("column", torch.ones(2, 1), "(2, 1)"),
    Bad("complex", torch.ones(2, dtype=torch.complex64), "torch.complex64"),
]
WORDS = [Bad("unknown", "foo", "'foo'"), Bad("None", None, "None"), Bad("list", ["loop"], "['loop']")]
SHARES = [
    Bad("one", 1, "1"),
    Bad("above", 1.5, "1.5"),
    Bad("negative", -0.1, "-0.1"),
    Bad("NaN", math.nan, "nan"),
    Bad("string", "0.5", "'0.5'"),
    Bad("bool", False, "False"),
]
INTEGERS = [Bad("fraction", 0.5, "0.5"), Bad("bool", True, "True"), Bad("None", None, "None")]
COMMON: dict[str, list[Bad]] = dict(
    eps=NUMBERS,
    steps=COUNT,
    cost=COST_NEEDED,
    bounds=BOUNDS_NEEDED,
    seed=INTEGERS,
    eot=COUNT,
    batch_size=[bad for bad in COUNT if bad.name != "None"],
    backend=[bad for bad in WORDS if bad.name != "None"] + [Bad("number", 1, "1"), Bad("capitals", "CUDA", "'CUDA'")],
)
FROM_ONE_START = COMMON | dict(
    loss=[*WORDS, Bad("capitals", "CE", "'CE'")], restarts=COUNT, rival=[*INTEGERS, Bad("negative", -1, "-1")]
)
OPTIONAL_STEP = [bad for bad in POSITIVE if bad.name != "None"]
BAD_ARGUMENTS: dict[type[wb.Attack], dict[str, list[Bad]]] = {
    wb.PGD: FROM_ONE_START | dict(step=OPTIONAL_STEP, momentum=SHARES, box=WORDS),
    wb.FrankWolfe: FROM_ONE_START
    | dict(gamma=GAMMA_OR_ZERO, schedule=WORDS, momentum=SHARES, box=WORDS, gap_tolerance=SHARES),
    wb.ProjectedSinkhorn: FROM_ONE_START | dict(gamma=POSITIVE, step=POSITIVE, max_iterations=COUNT),
    wb.Auto: COMMON,
    wb.MinimalRadius: COMMON,
}


def bad_arguments() -> Iterator[Any]:
    for attack, arguments in BAD_ARGUMENTS.items():
        for argument, table in arguments.items():
            for bad in table:
                yield pytest.param(attack, argument, bad, id=f"{attack.__name__}-{argument}-{bad.name}")


@pytest.mark.parametrize(("attack", "argument", "bad"), list(bad_arguments()))
def test_a_bad_argument_is_named(attack: type[wb.Attack], argument: str, bad: Bad) -> None:
    with pytest.raises(ValueError, match=rf"(?s)^{argument}\b.*{re.escape(bad.seen)}"):
        attack(**{"eps": 0.1, argument: bad.value})


def test_an_aim_cannot_be_both_a_target_and_a_rival() -> None:
    with pytest.raises(ValueError, match=r"^rival must be 0 where targeted"):
        wb.PGD(eps=0.1, rival=2, targeted=True)


def entry(values: Tensor, value: float) -> Tensor:
    """``values`` with ``value`` in their third sample."""
    changed = values.clone()
    changed[2] = value
    return changed


class Broken(nn.Module):
    """What a network says, spoilt."""

    def __init__(self, spoil: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.network, self.spoil = network(), spoil

    def forward(self, images: Tensor) -> Any:
        return self.spoil(self.network(images))


BAD_CALLS: dict[str, list[Bad]] = {
    "model": [
        Bad("not callable", 3, "int"),
        Bad("None", None, "NoneType"),
        Bad("NaN", Broken(lambda logits: logits / 0 * 0), "asked about has nan"),
        Bad("inf", Broken(lambda logits: logits.abs() / 0), "asked about has inf"),
        Bad("one class", Broken(lambda logits: logits[:, :1]), ", 1)"),
        Bad("a value for each sample", Broken(lambda logits: logits[:, 0]), ",)"),
        Bad("a map", Broken(lambda logits: logits[..., None]), ", 4, 1)"),
        Bad("another batch", Broken(lambda logits: logits.repeat(3, 1)), ", 4)"),
        Bad("a tuple", Broken(lambda logits: (logits, logits)), "tuple"),
        Bad("an array", Broken(lambda logits: logits.detach().numpy()), "ndarray"),
        Bad("nothing", Broken(lambda logits: None), "NoneType"),
        Bad("no gradient", Broken(lambda logits: logits.detach()), "do not depend on the images"),
        Bad(
            "gradient of something else",
            lambda images: network()(images).detach() + torch.zeros(1, requires_grad=True),
            "do not depend on the images",
        ),
        Bad("NaN gradient", Broken(lambda logits: logits + (0 * logits).abs().sqrt()), "finite gradient: sample 0"),
    ],
    "images": [
        Bad("list", [[0.0]], "list"),
        Bad("array", batch()[0].numpy(), "ndarray"),
        Bad("None", None, "NoneType"),
        Bad("8 bit", (batch()[0] * 255).to(torch.uint8), "torch.uint8"),
        Bad("integers", batch()[0].long(), "torch.int64"),
        Bad("complex", batch()[0].to(torch.complex64), "torch.complex64"),
        Bad("one image", batch()[0][0], "(1, 6, 6)"),
        Bad("videos", batch()[0][None], "(1, 7, 1, 6, 6)"),
        Bad("a number", torch.tensor(0.5), "()"),
        Bad("no pixels", batch()[0][..., :0], "(7, 1, 6, 0)"),
        Bad("NaN", entry(batch()[0], math.nan), "sample 2 has nan"),
        Bad("negative", entry(batch()[0], -0.25), "sample 2 has -0.25"),
        Bad("above", entry(batch()[0], 1.5), "sample 2 has 1.5"),
        Bad("no data", batch()[0].to("meta"), "meta"),
    ],
    "labels": [
        Bad("list", [0] * 7, "list"),
        Bad("None", None, "NoneType"),
        Bad("floats", batch()[1].float(), "torch.float32"),
        Bad("bools", batch()[1].bool(), "torch.bool"),
        Bad("one hot", nn.functional.one_hot(batch()[1]), "(7, 4)"),
        Bad("one", torch.tensor(3), "()"),
        Bad("another batch", batch()[1][:3], "(3,)"),
        Bad("negative", entry(batch()[1], -1), "sample 2 has -1"),
        Bad("above", entry(batch()[1], CLASSES), "sample 2 has 4"),
    ],
}


@one_of_each_kind
@pytest.mark.parametrize(
    ("argument", "bad"),
    [pytest.param(name, bad, id=f"{name}-{bad.name}") for name, table in BAD_CALLS.items() for bad in table],
)
def test_a_bad_input_is_named(name: str, argument: str, bad: Bad) -> None:
    images, labels = batch()
    good: dict[str, Any] = {"model": network(), "images": images, "labels": labels}
    with pytest.raises(ValueError, match=rf"(?s)^{argument}\b.*{re.escape(bad.seen)}"):
        ATTACKS[name](**good | {argument: bad.value})


@one_of_each_kind
def test_a_bad_label_in_a_later_batch_is_found_after_the_first(name: str) -> None:
    images, labels = batch()
    labels[5] = 9
    with pytest.raises(ValueError, match=r"^labels must be from 0 to 3, the model has 4 classes: sample 5 has 9"):
        dataclasses.replace(ATTACKS[name], batch_size=2)(network(), images, labels)


@one_of_each_kind
def test_as_many_radii_as_images(name: str) -> None:
    with pytest.raises(ValueError, match=r"^eps must .*\(7,\), got \(3,\)"):
        dataclasses.replace(ATTACKS[name], eps=torch.ones(3))(network(), *batch())


@from_one_start
def test_the_loss_of_two_classes_is_no_dlr(name: str) -> None:
    with pytest.raises(ValueError, match=r'^loss="dlr" needs at least 3 classes, the model has 2'):
        ascent(name, loss="dlr")(network(classes=2), batch()[0], batch()[1] % 2)


@from_one_start
@pytest.mark.parametrize(
    "bad",
    [
        Bad("a number", lambda logits, labels: 1.0, "float"),
        Bad("one value", lambda logits, labels: logits.sum(), "()"),
        Bad("logits", lambda logits, labels: logits, "(7, 4)"),
        Bad("NaN", lambda logits, labels: logits[:, 0] * math.nan, "nan"),
        Bad("no gradient", lambda logits, labels: logits[:, 0].detach(), "do not depend on the logits"),
    ],
    ids=lambda bad: bad.name,
)
def test_a_bad_loss_is_named(name: str, bad: Bad) -> None:
    images, labels = grey_images(7), predictions(network(), grey_images(7))
    with pytest.raises(ValueError, match=rf"(?s)^loss\b.*{re.escape(bad.seen)}"):
        ascent(name, loss=bad.value)(network(), images, labels)


def test_a_model_must_keep_its_classes() -> None:
    sizes = iter([4, 4, 3, 3, 3, 3])
    with pytest.raises(ValueError, match=r"^model must always return the same classes, got 4 and 3"):
        wb.PGD(eps=EPS, cost=COST)(lambda images: network()(images)[:, : next(sizes)], *batch())
