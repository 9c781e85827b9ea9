"""How to train: all that can be chosen, and the choices that are known to lead somewhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from torch import Tensor

from wasserball.attacks import PGD, Attack, FrankWolfe, ProjectedSinkhorn
from wasserball.attacks.attack import Ascent
from wasserball.checks import check_count, check_positive
from wasserball.threat import LocalCost
from wasserball.train.augment import Augment

Radius = Literal["fixed", "random", "grown", "own"]
OptimizerName = Literal["adam", "sgd", "muon"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a training does with whatever model and images it is given.

    >>> from dataclasses import replace
    >>> recipe = replace(wb.RECIPES["mnist"], attack=wb.PGD(eps=0.4, steps=5), epochs=20)
    >>> recipe.eps, recipe.epochs, recipe.network
    (0.4, 20, 'mnist')
    """

    network: str = "mnist"
    """The network of the zoo that this is for, where no model is named."""
    attack: Attack = FrankWolfe(eps=0.3, steps=10)  # noqa: RUF009
    """What the model is trained against, with the full radius; 0 is standard training."""
    radius: Radius = "fixed"
    """The radius of a training image: the full one; drawn anew, from ``low`` up; grown from ``low`` up, in stages of
    each attack, until the model no longer holds (Wong et al. 2019); or its own, which from ``low`` on grows whenever
    the model held the last time, and shrinks when it did not (Balaji et al. 2019)."""
    low: float = 0.0
    """The smallest radius, where radii differ."""
    focus: float = 0.0
    """Above 0, where radii are each sample's own: the one that counts. Late in the training samples whose own is near
    it weigh up to four times as much as others, and it is there that held-out samples are attacked."""
    stages: int = 10
    """Of a radius that is grown; each takes its share of the attack's steps, from the clean image."""
    warm_up: float = 1.0
    """Epochs in which all radii grow from 0 to what they are to be."""
    clean_share: float = 0.0
    """The share of the loss that is on clean images."""
    trades: float = 0.0
    """Above 0: cross entropy on clean images, and so many times how far the answers on adversarial images are from
    those (Kullback-Leibler divergence, TRADES: Zhang et al. 2019)."""
    bounded: float = 0.0
    """Above 0: the q of a loss (1 − p^q) / q instead of −log p, where p is what the model gives the label (Zhang &
    Sabuncu 2018). A sample that is lost for good then costs no more than 1 / q, and a small network can turn to those
    that it can hold."""
    bounded_late: float = 0.0
    """Above 0: what ``bounded`` grows to between half and three quarters of the training, when it shows which samples
    are lost."""
    smoothing: float = 0.0
    """Of the labels."""
    augment: Augment = "none"
    """What is done to training images before they are attacked: nothing; a random crop and flip, for photographs,
    and a square cut out of them; or a turn and an elastic deformation, for digits, all of it or a third."""
    epochs: int = 10
    """How often each image is seen."""
    batch_size: int = 128
    """Images a step, of all processes together."""
    optimizer: OptimizerName = "adam"
    """Or SGD, with Nesterov's momentum of 0.9; or Muon (Jordan et al. 2024)."""
    rate: float = 1e-3
    """The learning rate, which falls to 0 on a cosine …"""
    rate_warm_up: float = 0.0
    """… after it has risen from 0 for so many epochs."""
    weight_decay: float = 0.0
    """Of all weights, as a part of the gradient; Muon shrinks the layers that it turns instead, and no others."""
    clip: float = 0.0
    """The largest norm of a gradient; longer ones are cut. 0: as they are."""
    leak: float = 0.0
    """The slope of the model's ReLUs below 0 at the beginning, so that no unit dies; before the last third of the
    training it falls to 0. What is judged and kept is the model without."""
    average: float = 0.0
    """Above 0: keep a moving average of the weights with this decay; it is what is judged and kept."""
    precision: Precision = "float32"
    """Of the model's own passes, in attack and training; what is kept and judged is float32."""
    channels_last: bool = False
    """The memory layout that convolutions on a GPU like, with bfloat16."""
    replay: bool = False
    """On a GPU, record the attack once and replay it (a CUDA graph): small networks take less time than to launch
    them. For PGD and Frank-Wolfe without random starts, and models that do the same each time."""
    remember: bool = False
    """Begin each attack of PGD in the direction in which the last one on the same sample ended, which is kept for all
    samples: three steps then lead as far as five or more do anew. For images that are not augmented."""
    held_out: int = 1000
    """Samples that are not trained on, one of each stretch of the data. After each epoch they tell how robust the model
    is, with PGD and the full radius (``focus`` where there is one; of a radius that is grown ``low``, since no model
    holds at the largest), and with that which epoch's weights to keep."""
    judge_steps: int = 20
    """Of that PGD: enough to tell epochs apart, not to say how robust the model is."""
    patience: int = 0
    """Stop after so many epochs without a new best one; 0: never."""
    seed: int = 0
    """Of the order of the images and of all that is drawn for them; the attack has its own."""

    def __post_init__(self) -> None:
        check_attack(self.attack)
        for name, choices in (("radius", Radius), ("optimizer", OptimizerName), ("precision", Precision)):
            _check_choice(name, getattr(self, name), get_args(choices))
        _check_choice("augment", self.augment, get_args(Augment))
        for name in ("stages", "epochs", "batch_size", "held_out", "judge_steps"):
            check_count(name, getattr(self, name))
        check_positive("rate", self.rate)
        within: dict[str, tuple[Callable[[float], bool], str]] = dict(
            low=(lambda value: 0 <= value <= self.eps, f"from 0 to the radius of the attack, {self.eps:g}"),
            focus=(lambda value: 0 <= value <= self.eps, f"from 0 to the radius of the attack, {self.eps:g}"),
            warm_up=(lambda value: 0 <= value <= self.epochs, f"from 0 to the {self.epochs} epochs"),
            rate_warm_up=(lambda value: 0 <= value <= self.epochs, f"from 0 to the {self.epochs} epochs"),
            clean_share=(lambda value: 0 <= value < 1, "in [0, 1)"),
            bounded=(lambda value: 0 <= value <= 1, "in [0, 1]"),
            bounded_late=(lambda value: 0 <= value <= 1, "in [0, 1]"),
            smoothing=(lambda value: 0 <= value < 1, "in [0, 1)"),
            leak=(lambda value: 0 <= value < 1, "in [0, 1)"),
            average=(lambda value: 0 <= value < 1, "in [0, 1)"),
            trades=(lambda value: 0 <= value < float("inf"), ">= 0"),
            weight_decay=(lambda value: 0 <= value < float("inf"), ">= 0"),
            clip=(lambda value: 0 <= value < float("inf"), ">= 0"),
        )
        for name, (inside, words) in within.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not inside(value):
                raise ValueError(f"{name} must be a number {words}, got {value!r}")
        for name in ("channels_last", "replay", "remember"):
            _check_choice(name, getattr(self, name), (True, False))
        for name in ("patience", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an integer >= 0, got {value!r}")
        if self.trades and self.clean_share:
            raise ValueError(f"clean_share must be 0 where trades is not: it has its own, got {self.clean_share!r}")
        if self.bounded and (self.trades or self.smoothing):
            raise ValueError(f"bounded must be 0 where trades or smoothing are not, got {self.bounded!r}")
        if self.bounded_late and not self.bounded:
            raise ValueError(f"bounded_late must be 0 where bounded is, got {self.bounded_late!r}")
        if self.focus and self.radius != "own":
            raise ValueError(f"focus must be 0 where radii are not each sample's own, got {self.focus!r}")
        if self.radius == "grown" and not 0 < self.low < self.eps:
            raise ValueError(f"low must be above 0 and below {self.eps:g} for a radius that is grown, got {self.low!r}")
        if self.radius == "grown" and self.stages < 2:
            raise ValueError(f"stages must be at least 2 for a radius that is grown, got {self.stages!r}")
        if self.remember and not (
            isinstance(self.attack, PGD) and self.attack.box == "loop" and not self.attack.random_start
        ):
            raise ValueError(
                f'remember must be False but for PGD with box="loop" and without random_start, got {self.attack!r}'
            )
        if self.remember and (self.augment != "none" or self.radius == "grown"):
            seen = f"augment={self.augment!r}, radius={self.radius!r}"
            raise ValueError(f"remember must be False where images are augmented or radii are grown, got {seen}")
        plain = isinstance(self.attack, PGD | FrankWolfe) and not self.attack.random_start
        if self.replay and not (plain and self.radius != "grown"):
            raise ValueError(
                "replay must be False but for PGD and FrankWolfe without random_start, and a radius that is not grown, "
                f"got {self.attack!r} and {self.radius!r}"
            )

    @property
    def eps(self) -> float:
        """The full radius."""
        return float(self.attack.eps)

    @property
    def judge(self) -> PGD:
        """Who attacks the held-out samples."""
        mine, eps = self.attack, self.low if self.radius == "grown" else self.focus or self.eps
        return PGD(eps=eps, steps=self.judge_steps, cost=mine.cost, bounds=mine.bounds, backend=mine.backend)

    def content(self) -> dict[str, Any]:
        """As ``config.json`` keeps it: numbers, words, and the attack as Python would write it."""
        return {
            item.name: repr(value) if isinstance(value := getattr(self, item.name), Attack) else value
            for item in fields(self)
            if item.name != "network"
        }


def check_attack(attack: object) -> Attack:
    """An attack to train against: any that has one radius and avoids the labels of the data."""
    if not isinstance(attack, Attack):
        raise ValueError(f"attack must be an attack of wasserball, got {type(attack).__name__}")
    if attack.targeted:
        raise ValueError(f"attack must not be targeted, since the labels are those of the data, got {attack!r}")
    if isinstance(attack, Ascent) and attack.rival:
        raise ValueError(f"attack must not aim at a rival: any wrong answer is to be found, got {attack!r}")
    if isinstance(attack.eps, Tensor):
        raise ValueError("attack must have one radius for all images, got a tensor of them")
    return attack


def choose_recipe(recipe: "str | Recipe", changes: Mapping[str, Any]) -> Recipe:
    """A recipe, or the one of a name, with some of it changed."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
        recipe = RECIPES[recipe]
    elif not isinstance(recipe, Recipe):
        raise ValueError(f"recipe must be a Recipe or the name of one, got {type(recipe).__name__}")
    known = [item.name for item in fields(Recipe)]
    for name in changes:
        if name not in known:
            raise ValueError(f"there is nothing like {name!r} to choose in a recipe, only {', '.join(known)}")
    chosen = replace(recipe, **changes)
    return replace(chosen, attack=replace(chosen.attack, progress=False, return_plan=False))


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


RECIPES: dict[str, Recipe] = {
    "default": Recipe(),
    "mnist": Recipe(
        # Auto also looks beyond 5×5 pixels, and a model that has not is caught there.
        attack=PGD(eps=0.45, steps=5, cost=LocalCost(7)),
        radius="own",
        focus=0.3,
        warm_up=8,
        bounded=0.5,
        bounded_late=0.8,
        epochs=80,
        batch_size=256,
        optimizer="muon",
        rate=5e-3,
        rate_warm_up=2,
        weight_decay=1.0,
        leak=0.2,
        average=0.999,
        replay=True,
        judge_steps=10,
    ),
    "mnist-standard": Recipe(attack=PGD(eps=0.0, steps=1), epochs=10, rate=2e-3, warm_up=0, average=0.995),
    "cifar10": Recipe(
        network="cifar-resnet18-blur",
        attack=PGD(eps=0.005, steps=5),
        augment="crop-flip",
        warm_up=2,
        epochs=40,
        batch_size=512,
        optimizer="sgd",
        rate=0.2,
        rate_warm_up=2,
        weight_decay=5e-4,
        average=0.995,
        precision="bfloat16",
        channels_last=True,
    ),
    "cifar10-standard": Recipe(
        network="cifar-resnet18",
        attack=PGD(eps=0.0, steps=1),
        augment="crop-flip-cut",
        warm_up=0,
        epochs=50,
        batch_size=256,
        optimizer="sgd",
        rate=0.2,
        rate_warm_up=2,
        weight_decay=5e-4,
        average=0.995,
        precision="bfloat16",
        channels_last=True,
        judge_steps=1,
    ),
    "finetune": Recipe(attack=PGD(eps=0.3, steps=5), epochs=5, warm_up=1, rate=5e-4, average=0.99),
    "paper-mnist": Recipe(
        attack=FrankWolfe(eps=0.3, steps=40, gamma=1e-3, momentum=0.0, box="final"),
        epochs=23,
        batch_size=512,
        replay=True,
    ),
    "paper-cifar10": Recipe(
        network="cifar-resnet18",
        attack=FrankWolfe(eps=0.005, steps=30, gamma=1e-3, momentum=0.0, box="final"),
        augment="crop-flip",
        epochs=5,
        batch_size=512,
        optimizer="sgd",
        rate=0.2,
        rate_warm_up=1,
        weight_decay=5e-4,
        precision="bfloat16",
        channels_last=True,
    ),
    "sinkhorn-mnist": Recipe(
        attack=ProjectedSinkhorn(eps=2.1, steps=50, gamma=1e-3, step=0.1),
        radius="grown",
        low=0.1,
        epochs=4,
        batch_size=256,
        warm_up=0,
    ),
    "sinkhorn-cifar10": Recipe(
        network="cifar-resnet18",
        attack=ProjectedSinkhorn(eps=0.38, steps=50, gamma=1 / 3000, step=0.1),
        radius="grown",
        low=0.01,
        augment="crop-flip",
        epochs=3,
        batch_size=512,
        warm_up=0,
        optimizer="sgd",
        rate=0.2,
        rate_warm_up=1,
        weight_decay=5e-4,
        precision="bfloat16",
        channels_last=True,
    ),
}
"""By the names under which ``wasserball train --recipe`` knows them."""
