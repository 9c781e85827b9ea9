"""The figures of a run in words, as the page says them."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from wasserball.evaluate.setting import Setting
from wasserball.evaluate.summary import confidence_interval

EVERY = "every attack"


class Share(NamedTuple):
    """An accuracy with its interval, all in [0, 1]."""

    value: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        """The accuracy itself."""
        return percent(self.value)

    @property
    def interval(self) -> str:
        """Its interval, without a sign of its own."""
        return f"[{100 * self.low:.1f}, {100 * self.high:.1f}]"

    def __str__(self) -> str:
        return f"{self.percent} {self.interval}"


class Row(NamedTuple):
    """A line of the table."""

    attack: str
    """Its name for the reader."""
    eps: str
    accuracy: Share
    valid: str
    all_valid: bool
    distance: str
    seconds: str
    worst: bool
    """Whether it is what survives every attack, which has none of the figures of an attack."""


class Trust(NamedTuple):
    """What the health checks come to."""

    status: str
    word: str


def percent(share: float) -> str:
    """A share of 1 as the paper prints it, never rounded to all or nothing."""
    text = f"{100 * share:.1f}"
    if (text == "100.0") != (share == 1) or (text == "0.0") != (share == 0):
        text = f"{100 * share:.3g}" if share < 0.5 else f"{100 * share:.4f}".rstrip("0")
    return f"{text}%"


def attack_name(setting: Setting, key: str) -> str:
    """``PGD`` for ``pgd``, ``PGD 2`` for ``pgd-2``."""
    number = re.search(r"-(\d+)$", key)
    kind = setting.attacks[key].partition("(")[0]
    return f"{kind} {number[1]}" if number else kind


def share_of(figures: Mapping[str, Any]) -> Share:
    """The accuracy in a result or a worst case of a summary."""
    return Share(figures["robust_accuracy"], *figures["confidence_interval"])


def clean_share(summary: Mapping[str, Any]) -> Share:
    """The accuracy before any attack."""
    samples, accuracy = summary["samples"], summary["clean_accuracy"]
    low, high = confidence_interval(round(accuracy * samples), samples)
    return Share(accuracy, low, high)


def survival(setting: Setting, summary: Mapping[str, Any]) -> tuple[str, list[tuple[float, Share]]]:
    """What it takes to survive (every attack, or the only one), and how many do at each radius."""
    if "worst_case" in summary:
        return EVERY, [(case["eps"], share_of(case)) for case in summary["worst_case"]]
    results = summary["results"]
    return attack_name(setting, results[0]["attack"]), [(result["eps"], share_of(result)) for result in results]


def headline(setting: Setting, summary: Mapping[str, Any]) -> str:
    """The verdict in one sentence: the smallest radius and the largest."""
    against, shares = survival(setting, summary)
    eps, share = shares[0]
    samples = summary["samples"]
    sentence = f"{share} of {samples:,} image{'s' * (samples != 1)} survive {against} at eps {eps:g}"
    if len(shares) > 1:
        eps, share = shares[-1]
        sentence += f", {share} at eps {eps:g}"
    return f"{sentence}; clean {percent(summary['clean_accuracy'])}."


def trust(summary: Mapping[str, Any]) -> Trust:
    """Whether to believe it."""
    found = [finding["status"] for finding in summary["health"]]
    if "fail" in found:
        return Trust("fail", "Do not trust these figures yet: a health check failed.")
    if "warn" in found:
        return Trust("warn", "Read the warnings before you rely on these figures.")
    if not found:
        return Trust("warn", "No health check was run, so nothing speaks for or against these figures.")
    return Trust("pass", "All health checks passed: nothing found that would make these figures wrong.")


def table(setting: Setting, summary: Mapping[str, Any]) -> list[Row]:
    """A row for each attack and radius, then what survives all attacks."""
    rows = [
        Row(
            attack=attack_name(setting, result["attack"]),
            eps=f"{result['eps']:g}",
            accuracy=share_of(result),
            valid=percent(result["valid_fraction"]),
            all_valid=result["valid_fraction"] == 1,
            distance="–" if result["mean_distance"] is None else f"{result['mean_distance']:.3g}",
            seconds=duration(result["seconds"]),
            worst=False,
        )
        for result in summary["results"]
    ]
    rows += [
        Row(EVERY, f"{case['eps']:g}", share_of(case), "", True, "", "", True) for case in summary.get("worst_case", [])
    ]
    return rows


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
