"""A battery of attacks with nothing to tune: each on what the last one left, the worst case for each sample."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from wasserball.attacks.attack import Ascent, Attack
from wasserball.attacks.classifier import Classifier
from wasserball.attacks.frank_wolfe import FrankWolfe
from wasserball.attacks.pgd import PGD
from wasserball.attacks.result import AttackResult, Part
from wasserball.attacks.trial import Report, part_of
from wasserball.threat import Cost, LocalCost

WIDER = 2
"""By how much the window of the last parts is larger: the ball holds all transport, a window only makes it cheap."""
PARTS = 11
"""At most: what the progress bar reckons with."""
RIVALS = 2, 3, 4
"""The wrong classes to aim at, by their rank on the clean image; the first is where the cross entropy leads anyway."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Auto(Attack):
    """PGD with several losses, aimed at runners-up, Frank-Wolfe, a new start, a larger window: each on the survivors.

    For each sample the result is the first image that fools the model or else the one that came nearest to it, and
    ``part`` says which of ``parts`` it is from. ``loss`` is the margin, which all parts share.

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> result = wb.Auto(eps=0.3, steps=20)(model, images, labels)
    >>> result.robust_accuracy(), result.parts[0].name, result.parts[0].broken
    (0.0, 'PGD, ce', 4)
    """

    @property
    def _largest_cost(self) -> Cost:
        return self._wide_cost or self.cost

    @property
    def _wide_cost(self) -> LocalCost | None:
        return replace(self.cost, window=self.cost.window + WIDER) if isinstance(self.cost, LocalCost) else None

    def _parts(self, classifier: Classifier) -> Iterator[tuple[str, Ascent]]:
        common: dict[str, Any] = dict(
            eps=0.0,  # the radii are given with the images
            steps=self.steps,
            bounds=self.bounds,
            targeted=self.targeted,
            seed=self.seed,
            backend=self.backend,
            return_plan=self.return_plan,
        )
        near: dict[str, Any] = dict(common, cost=self.cost)
        yield "PGD, ce", PGD(**near)
        classes = classifier.classes or 2  # known by now
        yield "PGD, margin", PGD(**near, loss="margin")
        if classes >= 3:
            yield "PGD, dlr", PGD(**near, loss="dlr")
        rivals = [] if self.targeted else [rival for rival in RIVALS if rival < classes]
        for rival in rivals:
            yield f"PGD, rival {rival}", PGD(**near, rival=rival)
        yield "Frank-Wolfe, ce", FrankWolfe(**near)
        yield "PGD, ce, random start", PGD(**near, random_start=True)
        if self._wide_cost is not None:
            wide: dict[str, Any] = dict(common, cost=self._wide_cost)
            window = f"{self._wide_cost.window}×{self._wide_cost.window}"
            yield f"PGD, ce, {window}", PGD(**wide)
            yield f"PGD, margin, {window}", PGD(**wide, loss="margin")
            for rival in rivals[:1]:
                yield f"PGD, rival {rival}, {window}", PGD(**wide, rival=rival)

    def _attack(
        self, classifier: Classifier, images: Tensor, labels: Tensor, eps: Tensor, report: Report
    ) -> AttackResult:
        started = time.perf_counter()
        window = self._wide_cost.window if self._wide_cost is not None else None
        best: AttackResult | None = None
        notes: list[Part] = []
        for number, (name, attack) in enumerate(self._parts(classifier)):
            watch = part_of(report, number / PARTS, (number + 1) / PARTS)
            left = torch.arange(len(images), device=images.device)
            if best is not None:
                left = left[~best.success]
            if len(left) == 0:
                notes.append(Part(name, 0, 0, 0, 0, 0.0))
                continue
            tried = attack._attack(classifier, images[left], labels[left], eps[left], watch)
            already = int((tried.success & (tried.distance == 0)).sum())
            forward, backward = (int(count.sum()) for count in tried.queries)
            broken = int(tried.success.sum()) - already
            notes.append(Part(name, len(left) - already, broken, forward, backward, tried.seconds))
            if tried.plan is not None and window is not None:
                tried = replace(tried, plan=tried.plan.widen(window))
            if best is None:
                best = replace(tried, part=torch.where(tried.distance > 0, 0, -1))
            else:
                _merge(best, tried, left, number)
        assert best is not None
        return replace(
            best,
            attack=repr(self),
            cost=self._largest_cost,
            loss=best.margin,
            gap=None,
            parts=tuple(notes),
            seconds=time.perf_counter() - started,
        )


def _merge(best: AttackResult, tried: AttackResult, samples: Tensor, number: int) -> None:
    """Put into ``best``, in place, what ``tried`` has to offer for ``samples``: success, or a larger margin."""
    better = tried.success | (tried.margin > best.margin[samples])
    index = samples[better]
    for name in ("adversarial", "success", "prediction", "distance", "mass_error", "box_error", "valid", "margin"):
        getattr(best, name)[index] = getattr(tried, name)[better]
    best.on_the_way[samples] |= tried.on_the_way
    assert best.part is not None
    best.part[index] = number
    for old, new in zip(best.queries, tried.queries, strict=True):
        old[samples] += new
    if best.plan is not None and tried.plan is not None:
        best.plan.values[index] = tried.plan.values[better]
