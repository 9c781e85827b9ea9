"""What a health check says, and how much of a difference counts as one."""

from typing import Literal, NamedTuple

Status = Literal["pass", "warn", "fail"]

FEW = 2
"""Samples: one alone can change its answer by rounding, and says nothing."""
SOME, MANY = 0.05, 0.5
"""Shares of the samples looked at from which on a check warns, and fails: more than chance does to some 32 of them."""
POINT, POINTS = 0.01, 0.05
"""What a warning, and a failure, have to mean for the accuracy over all samples: papers give it to about a point."""


class Finding(NamedTuple):
    """The verdict of one check: what was seen and, where it is no pass, what to do about it."""

    check: str
    status: Status
    detail: str


def judge(changed: int, looked_at: int, stand_for: float) -> Status:
    """What to think of it that ``changed`` of some samples did, which ``stand_for`` this share of all."""
    share = changed / max(1, looked_at)
    if changed < FEW or share < SOME or share * stand_for < POINT:
        return "pass"
    return "fail" if share >= MANY and share * stand_for >= POINTS else "warn"
