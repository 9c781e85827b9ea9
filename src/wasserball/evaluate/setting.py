"""What an evaluation is asked to do: the identity of a run, and the pieces of work that it comes to."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from wasserball import __version__
from wasserball.attacks import PGD, Attack, Auto, FrankWolfe, MinimalRadius, ProjectedSinkhorn
from wasserball.attacks.attack import BATCH_ENTRIES
from wasserball.attacks.classifier import Model
from wasserball.checks import check_per_sample
from wasserball.evaluate.folder import Identity
from wasserball.threat import LocalCost
from wasserball.zoo import Data

ATTACKS: dict[str, type[Attack]] = {
    "pgd": PGD,
    "fw": FrankWolfe,
    "auto": Auto,
    "radius": MinimalRadius,
    "sinkhorn": ProjectedSinkhorn,
}
CPU_BATCH = 256
"""Images at a time on a CPU: more would not be faster, and a crash costs the time of one batch."""
GPU_UNIT = 64
"""Images in a unit on a GPU, at least, however few of them an attack takes at a time: a file for each 8 pictures of
ImageNet would be too many files."""
FINGERPRINT_SAMPLES = 16
FORMAT = 1
"""Of the run folder."""


class Unit(NamedTuple):
    """A piece of work, which is done whole or not at all: one attack with one radius on some consecutive samples."""

    attack: str
    eps: float
    first: int
    last: int

    @property
    def stem(self) -> str:
        """What its files are called."""
        return f"{self.attack}-{self.eps!r}-{self.first:06d}"


@dataclass(frozen=True, kw_only=True)
class Setting(Identity):
    """All that the figures of a run depend on, as ``config.json`` keeps it. Two runs with the same one agree."""

    model: str
    model_fingerprint: str | None
    """A hash of the weights; None for a callable, which has none to look at."""
    data: str
    data_fingerprint: str
    """A hash of some of the samples."""
    samples: int
    shape: tuple[int, ...]
    """Of an image: channels, height, width."""
    classes: tuple[str, ...] | None
    attacks: dict[str, str]
    """Each attack as Python would write it, under its name."""
    costs: dict[str, str]
    """What a move costs each of them, written likewise: the certificates are for just that."""
    eps: tuple[float, ...]
    batch_size: int
    device: str
    """``"cpu"`` or ``"cuda"``: they round differently."""
    wasserball: str = __version__
    format: int = FORMAT

    def units(self) -> Iterator[Unit]:
        """All the work, batch after batch: what was done of it is a verdict on the first so many samples."""
        for first in range(0, self.samples, self.batch_size):
            last = min(first + self.batch_size, self.samples)
            yield from (Unit(attack, eps, first, last) for attack in self.attacks for eps in self.eps)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """What :meth:`Identity.json` wrote; ``KeyError`` or ``TypeError`` for anything else."""
        known = {item.name: content[item.name] for item in fields(cls)}
        for name in ("shape", "eps", "classes"):
            known[name] = None if known[name] is None else tuple(known[name])
        return cls(**known)


def name_attacks(attacks: Sequence[str | Attack]) -> dict[str, Attack]:
    """Attacks under short names."""
    named: dict[str, Attack] = {}
    if isinstance(attacks, str) or not attacks:
        raise ValueError(f"attacks must be a list with at least one attack, got {attacks!r}")
    for attack in attacks:
        if isinstance(attack, str):
            if attack not in ATTACKS:
                raise ValueError(f"attacks must be among {', '.join(ATTACKS)} or attacks of wasserball, got {attack!r}")
            made = ATTACKS[attack](eps=0.0)
        elif isinstance(attack, Attack):
            made = attack
        else:
            raise ValueError(f"attacks must hold names or attacks, got {type(attack).__name__}")
        if made.targeted:
            raise ValueError(f"attacks must not be targeted, since the labels are those of the data, got {made!r}")
        if tuple(made.bounds) != (0, 1):
            raise ValueError(f"attacks must have the bounds (0, 1), which are those of the data, got {made!r}")
        if not isinstance(made.cost, LocalCost):
            raise ValueError(f"attacks must move mass between pixels, got a {type(made.cost).__name__} in {made!r}")
        stem = next((name for name, kind in ATTACKS.items() if type(made) is kind), type(made).__name__.lower())
        # The radius is the evaluation's, the plan is what certifies the images, and a bar in a bar is one too many.
        made = replace(made, eps=0.0, return_plan=True, progress=False)
        if made in named.values():
            raise ValueError(f"attacks must differ, got {made!r} twice")
        number = 1 + sum(name == stem or re.fullmatch(rf"{re.escape(stem)}-\d+", name) is not None for name in named)
        named[stem if number == 1 else f"{stem}-{number}"] = made
    return named


def check_radii(eps: float | Sequence[float]) -> tuple[float, ...]:
    """At least one radius, in increasing order, none twice."""
    radii = list(eps) if isinstance(eps, Sequence) else [eps]
    for radius in radii:
        check_per_sample("eps", radius, torch.zeros(1))
    if not radii or len(set(radii)) < len(radii):
        raise ValueError(f"eps must hold at least one radius and none twice, got {radii}")
    return tuple(sorted(float(radius) for radius in radii))


def default_batch_size(attacks: Mapping[str, Attack], shape: Sequence[int], device: str) -> int:
    """About as many images as the attacks take at a time by themselves."""
    images = torch.empty(1, *shape, device="meta")
    entries = max(math.prod(attack._largest_cost.plan_shape(images)) for attack in attacks.values())
    most = max(1, BATCH_ENTRIES // entries)
    return min(most, CPU_BATCH) if device == "cpu" else max(most, GPU_UNIT)


def fingerprint_model(model: Model) -> str | None:
    """A hash of all weights and buffers under their names."""
    if not isinstance(model, nn.Module):
        return None
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.flatten().view(torch.uint8).numpy().tobytes() if values.numel() else b"")
    return digest.hexdigest()[:32]


def fingerprint_data(data: Data, samples: int) -> tuple[str, tuple[int, ...]]:
    """A hash of a few samples from first to last, since reading them all may take minutes, and the shape of one."""
    digest = hashlib.sha256()
    count = min(samples, FINGERPRINT_SAMPLES)
    for index in torch.linspace(0, samples - 1, count).long().tolist():
        images, labels = data.batch(index, index + 1)
        digest.update(images.numpy().tobytes())
        digest.update(str(labels.tolist()).encode())
    return digest.hexdigest()[:32], tuple(images.shape[1:])
