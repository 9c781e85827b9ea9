"""What an attack returns: images that were judged as they are, each with its certificate."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wasserball.attacks.classifier import Classifier, Model, frozen
from wasserball.attacks.losses import margin
from wasserball.attacks.quantize import LEVELS, quantize
from wasserball.plan import TransportPlan, pack_cost, unpack_cost
from wasserball.threat import Cost, WassersteinBall
from wasserball.verify import verify

COLUMNS = (
    *("images", "labels", "eps", "adversarial", "success"),
    *("prediction", "on_the_way", "distance", "mass_error", "box_error", "valid", "loss", "margin"),
)
OPTIONAL = ("gap", "part")
ROUNDING_TRIES = 3


class Queries(NamedTuple):
    """How often the model was asked about each sample, ``(B,)`` each."""

    forward: Tensor
    """Passes through the model."""
    backward: Tensor
    """Passes back through it, for a gradient."""


class Part(NamedTuple):
    """One of the attacks that an :class:`Auto` is made of, and what it did."""

    name: str
    """The attack, its loss and what is special about it."""
    tried: int
    """On how many samples: those that all parts before it had left."""
    broken: int
    """On how many of these it fooled the model."""
    forward: int
    """Passes through the model, of all samples together."""
    backward: int
    """Passes back through it."""
    seconds: float
    """Of wall time."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class AttackResult:
    """Adversarial images for ``B`` samples. All but the images are ``(B,)``.

    >>> model = wb.zoo.load_model("mnist-standard")
    >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
    >>> result = wb.PGD(eps=0.3, steps=20, return_plan=True)(model, images, labels)
    >>> result.robust_accuracy(), result.plan.values.shape
    (0.0, torch.Size([4, 25, 1, 28, 28]))
    """

    attack: str
    """The attack, as Python would write it."""
    images: Tensor
    """The clean images, ``(B, C, H, W)``."""
    labels: Tensor
    """Their labels, or the targets."""
    eps: Tensor
    """The radius that each sample was attacked with."""
    cost: Cost
    """What moving mass cost."""
    bounds: tuple[float, float]
    """The pixel box."""
    targeted: bool
    """Whether the labels are targets."""
    adversarial: Tensor
    """Like the images, in float32 (float64 if they are); the clean image where nothing better was found. A model in
    half precision is shown this image rounded."""
    success: Tensor
    """Whether the model is fooled by exactly this image (where targeted: answers with the target)."""
    prediction: Tensor
    """The class that the model sees in it."""
    on_the_way: Tensor
    """Whether the model was fooled at all, if only by an image on the way that is not returned: in the paper's modes
    because only the last one counts, else because it was a little outside of ball or box."""
    distance: Tensor
    """Certified ``<C, Π>/Σx``, in float64: an upper bound on the normalised Wasserstein distance."""
    mass_error: Tensor
    """The largest change in the mass of a channel over ``Σx``, from the certificate; NaN where there is none."""
    box_error: Tensor
    """How far the worst pixel lies outside the box, from the certificate; NaN where there is none."""
    valid: Tensor
    """Inside ball and box with its mass kept, by the float64 certificate. False only where an attack ignores the box
    (``box="off"``, :class:`ProjectedSinkhorn`) and the image left it, or has no plan to certify it."""
    loss: Tensor
    """The attack's own loss there, in float64."""
    margin: Tensor
    """By how much the best wrong logit beats the right one; where targeted, the target all others."""
    queries: Queries
    """How often the model was asked about each sample."""
    seconds: float
    """Of wall time, for all samples."""
    plan: TransportPlan | None = None
    """The witness, where ``return_plan=True``."""
    gap: Tensor | None = None
    """Frank-Wolfe's duality gap: by how much the loss could rise at most within the ball, to first order; infinite
    where it is not known, because the model was fooled before."""
    part: Tensor | None = None
    """Which of ``parts`` found the image, −1 where none did."""
    parts: tuple[Part, ...] = ()
    """Of an :class:`Auto`: what each of its attacks did."""
    model: Model | None = field(default=None, repr=False)
    """What was attacked; it is not saved."""

    def __len__(self) -> int:
        return len(self.success)

    def __repr__(self) -> str:
        return f"AttackResult({self.summary()})"

    def robust_accuracy(self, eps: float | None = None) -> float:
        """The share of samples that no image found here within ``eps`` (any, if None) fools the model on."""
        fooled = self.success
        if eps is not None:  # an image that was made for a smaller radius was certified for it, up to rounding
            fooled = fooled & ((self.eps <= eps) | (self.distance <= eps))
        return 1 - fooled.double().mean().item()

    def summary(self) -> str:
        """One line, and one more for each part."""
        if len(self) == 0:
            return f"{self.attack}: no samples"
        forward, backward = (int(count.sum()) for count in self.queries)
        moved = self.distance[self.success & (self.distance > 0)]
        words = [
            f"{int(self.success.sum())}/{len(self)} fooled",
            f"robust accuracy {100 * self.robust_accuracy():.1f}%",
            f"mean distance {moved.mean():.4f}" if len(moved) else "no image moved and fooled it",
            f"{100 * self.valid.double().mean():.1f}% valid" + ("" if self.valid.all() else ": the rest left the box"),
            f"{forward:,} forward and {backward:,} backward queries",
            f"{self.seconds:.1f} s",
        ]
        lines = [f"{self.attack}: " + " · ".join(words)]
        for part in self.parts:
            counts = f"{part.broken}/{part.tried} broken, {part.forward:,} + {part.backward:,} queries"
            lines.append(f"  {part.name}: {counts}, {part.seconds:.1f} s")
        return "\n".join(lines)

    def to_uint8(self, model: Model | None = None) -> Tensor:
        """The images in 8 bits, ``(B, C, H, W)`` from 0 to 255: see :meth:`quantized`.

        >>> model = wb.zoo.load_model("mnist-standard")
        >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
        >>> pixels = wb.PGD(eps=0.3, steps=20)(model, images, labels).to_uint8()
        >>> pixels.dtype, bool(wb.verify(images, pixels / 255, eps=0.3).valid.all())
        (torch.uint8, True)
        """
        levels: Tensor = self.quantized(model).adversarial.double() * (LEVELS / self.bounds[1])
        return levels.round().to(torch.uint8)

    def quantized(self, model: Model | None = None) -> Self:
        """The same result with images that 8 bits can hold, so that a PNG on disk *is* the adversarial image.

        Mass is kept in whole levels and the budget in exact transport of levels; success, prediction, distance and
        validity are those of the rounded images, by ``model`` (the attacked one; needed after :meth:`load`). The clean
        images must be 8-bit themselves, else ``ValueError``.
        """
        asked = self.model if model is None else model
        if asked is None:
            raise ValueError("model must be given to judge the rounded images: a loaded result has none")
        if len(self) == 0:
            return self
        unit = self.bounds[1] / LEVELS
        budget = WassersteinBall(self.images, self.eps, self.cost).budget
        judge = Classifier(asked, self.images, draws=1)
        rise = partial(margin, targeted=self.targeted)
        plan = None if self.plan is None else self.plan.values
        found, todo = self.images.clone(), torch.arange(len(self), device=self.images.device)
        moves = torch.zeros(self.cost.plan_shape(self.images), dtype=torch.int32, device=self.images.device)
        towards = self.adversarial
        with frozen(asked):
            for _ in range(ROUNDING_TRIES):
                slope = judge.slope(towards[todo], self.labels[todo], rise)
                judge.check(slope)
                levels, moves[todo] = quantize(
                    self.images[todo],
                    self.adversarial[todo],
                    budget[todo],
                    self.cost,
                    self.bounds[1],
                    plan=None if plan is None else plan[todo],
                    gradient=slope.direction,
                )
                found[todo] = (levels.double() * unit).to(found.dtype)
                logits = judge.logits(found[todo])
                lost = self.success[todo] & (rise(logits, self.labels[todo]) <= 0)
                # What was lost is rounded once more, with the gradient at the image that did not fool the model.
                todo, towards = todo[lost], found
                if len(todo) == 0:
                    break
            logits = judge.logits(found)
        values = moves.to(found.dtype) * unit
        certificate = verify(self.images, found, eps=self.eps, plan=values, cost=self.cost, bounds=self.bounds)
        return replace(
            self,
            adversarial=found,
            success=is_fooled(logits, self.labels, self.targeted),
            prediction=logits.argmax(1),
            distance=certificate.distance,
            mass_error=certificate.mass_error,
            box_error=certificate.box_error,
            valid=certificate.valid,
            margin=rise(logits, self.labels).double(),
            plan=TransportPlan(values, self.cost) if self.plan is not None else None,
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything but the model to a safetensors file.

        >>> model = wb.zoo.load_model("mnist-standard")
        >>> images, labels = (tensor[:4] for tensor in wb.zoo.load_sample())
        >>> wb.PGD(eps=0.3, steps=20)(model, images, labels).save("result.safetensors")
        >>> wb.AttackResult.load("result.safetensors").success
        tensor([True, True, True, True])
        """
        metadata, tensors = pack_cost(self.cost)
        columns: dict[str, Tensor | None] = {name: getattr(self, name) for name in (*COLUMNS, *OPTIONAL)}
        columns |= {"forward": self.queries.forward, "backward": self.queries.backward}
        columns |= {"plan": None if self.plan is None else self.plan.values}
        # Clones: safetensors refuses tensors that share memory, as the loss and the margin of a result may.
        tensors |= {
            name: column.clone(memory_format=torch.contiguous_format)
            for name, column in columns.items()
            if column is not None
        }
        words = {name: getattr(self, name) for name in ("attack", "bounds", "targeted", "seconds", "parts")}
        save_file(tensors, path, metadata | {"result": json.dumps(words)})

    @classmethod
    def load(cls, path: str | PathLike[str], device: str | torch.device = "cpu") -> Self:
        """Read what :meth:`save` wrote."""
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                words = json.loads(file.metadata()["result"])
                columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                cost = unpack_cost(file)
            return cls(
                **{name: columns[name] for name in COLUMNS},
                **{name: columns.get(name) for name in OPTIONAL},  # type: ignore[arg-type]
                attack=words["attack"],
                bounds=tuple(words["bounds"]),
                targeted=words["targeted"],
                seconds=words["seconds"],
                parts=tuple(Part(*part) for part in words["parts"]),
                cost=cost,
                queries=Queries(columns["forward"], columns["backward"]),
                plan=TransportPlan(columns["plan"], cost) if "plan" in columns else None,
            )
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"path must be a file written by AttackResult.save, got {path}: {error}") from error

    @classmethod
    def join(cls, results: "Sequence[AttackResult]") -> "AttackResult":
        """One result for all the samples of several, which come from one attack."""
        first = results[0]
        if len(results) == 1:
            return first
        columns: dict[str, Any] = {
            name: None if getattr(first, name) is None else torch.cat([getattr(result, name) for result in results])
            for name in (*COLUMNS, *OPTIONAL)
        }
        plans = [result.plan.values for result in results if result.plan is not None]
        return replace(
            first,
            **columns,
            queries=Queries(*(torch.cat(counts) for counts in zip(*(r.queries for r in results), strict=True))),
            seconds=sum(result.seconds for result in results),
            plan=TransportPlan(torch.cat(plans), first.cost) if plans else None,
            parts=tuple(_add_up(parts) for parts in zip(*(result.parts for result in results), strict=True)),
        )


def is_fooled(logits: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    """Whether the attack has what it wants: a wrong answer, or the target."""
    return logits.argmax(1) == labels if targeted else logits.argmax(1) != labels


def _add_up(parts: Sequence[Part]) -> Part:
    tried, broken, forward, backward, seconds = (sum(values) for values in zip(*(p[1:] for p in parts), strict=True))
    return Part(parts[0].name, tried, broken, forward, backward, seconds)
