"""Attacks on classifiers: a loss and the bookkeeping around the operators, every image judged and certified."""

from wasserball.attacks.attack import Attack
from wasserball.attacks.auto import Auto
from wasserball.attacks.bound import BoundAttack
from wasserball.attacks.frank_wolfe import FrankWolfe
from wasserball.attacks.minimal_radius import MinimalRadius
from wasserball.attacks.pgd import PGD
from wasserball.attacks.result import AttackResult, Part, Queries
from wasserball.attacks.sinkhorn import ProjectedSinkhorn

__all__ = [
    "PGD",
    "Attack",
    "AttackResult",
    "Auto",
    "BoundAttack",
    "FrankWolfe",
    "MinimalRadius",
    "Part",
    "ProjectedSinkhorn",
    "Queries",
]
