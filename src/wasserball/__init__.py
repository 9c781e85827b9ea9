"""How robust is an image classifier when an adversary may move pixel mass? Attacks and certificates in the
Wasserstein ball."""

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
from wasserball.plan import TransportPlan
from wasserball.solvers import Minimum, minimize
from wasserball.threat import Cost, DenseCost, LocalCost, WassersteinBall
from wasserball.verify import Certificate, verify

__version__ = "0.1.0.dev0"

__all__ = [
    "PGD",
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
    "TransportPlan",
    "WassersteinBall",
    "minimize",
    "operators",
    "plot",
    "verify",
    "zoo",
]
