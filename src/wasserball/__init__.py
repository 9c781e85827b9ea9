"""How robust is an image classifier when an adversary may move pixel mass? Attacks and certificates in the
Wasserstein ball."""

__version__ = "0.1.0.dev0"  # first, since some modules want to say it

from wasserball import operators, plot, zoo
from wasserball.attacks import (
    PGD,
    Attack,
    AttackResult,
    Auto,
    FrankWolfe,
    MinimalRadius,
    ProjectedSinkhorn,
)
from wasserball.evaluate import Run, evaluate
from wasserball.plan import TransportPlan
from wasserball.solvers import Minimum, minimize
from wasserball.threat import Cost, DenseCost, LocalCost, WassersteinBall
from wasserball.train import RECIPES, Recipe, Training, finetune, train
from wasserball.verify import Certificate, verify

__all__ = [
    "PGD",
    "RECIPES",
    "Attack",
    "AttackResult",
    "Auto",
    "Certificate",
    "Cost",
    "DenseCost",
    "FrankWolfe",
    "LocalCost",
    "MinimalRadius",
    "Minimum",
    "ProjectedSinkhorn",
    "Recipe",
    "Run",
    "Training",
    "TransportPlan",
    "WassersteinBall",
    "evaluate",
    "finetune",
    "minimize",
    "operators",
    "plot",
    "train",
    "verify",
    "zoo",
]
