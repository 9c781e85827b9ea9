"""The model as an attack meets it: frozen, asked for checked logits and for the direction in which a loss rises."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wasserball.attacks.losses import Loss, Steepness, steepness
from wasserball.operators.rounding import per_sample

Model = nn.Module | Callable[[Tensor], Tensor]


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """Evaluation mode and no parameter gradients inside; outside, all is as it was, module by module."""
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    needs = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval()
        for parameter, needed in needs:
            if needed:
                parameter.requires_grad_(False)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, needed in needs:
            if needed:
                parameter.requires_grad_(True)


class Slope(NamedTuple):
    """A loss at some images and how it rises there; all of it ``(B,)`` but the logits and the direction."""

    logits: Tensor
    loss: Tensor
    direction: Tensor
    """The gradient over its largest absolute entry (paper §5, "Gradient Normalization"); 0 where there is none."""
    scale: Tensor
    """That largest entry, in float64: gradient = scale · direction."""
    steepness: Tensor
    """The part of the scale that is the loss's own."""

    @property
    def trouble(self) -> Tensor:
        """``(B,)``: whether anything is not finite. :meth:`Classifier.check` raises the error; who has a GPU to wait
        for anyway looks for it at the same time."""
        everything = self.logits.sum(1) + self.loss + self.scale
        return (everything - everything) != 0  # a number less itself: NaN where it is not finite

    def only(self, pixels: Tensor) -> "Slope":
        """The slope with respect to some of the pixels."""
        direction = torch.where(pixels, self.direction, 0.0)
        largest = largest_entry(direction)
        return self._replace(direction=direction.div_(_divisor(largest, direction)), scale=self.scale * largest)

    def keep(self, held: Tensor) -> "Slope":
        """The slope of some of the samples."""
        return Slope(*(column[held] for column in self))


class Classifier:
    """Logits in float32 or better, with clear errors instead of nonsense; ``draws`` of a stochastic model averaged."""

    def __init__(self, model: Model, images: Tensor, draws: int, *, suspicious: bool = True) -> None:
        self.model, self.draws = model, draws
        self.classes: int | None = None
        # Half precision models want half precision images; what they are given is the float32 image, rounded.
        parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
        self.dtype = next((p.dtype for p in parameters if p.is_floating_point()), images.dtype)
        self._suspicious = suspicious
        if images.is_cuda:
            _wake(images.device)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """The logits of each image."""
        logits = torch.stack([self._call(images) for _ in range(self.draws)]).mean(0)
        _check_logits(logits, ~torch.isfinite(logits))
        return logits

    def slope(self, images: Tensor, labels: Tensor, loss: Loss, *, high: float | None = None) -> Slope:
        """The loss of each image, clamped to ``[0, high]`` where that is given, and its normalised gradient.

        The gradient passes the logits normalised as well: a saturated cross entropy, or half precision, would
        lose it on its way through the model, and its scale is put back afterwards. A GPU is not waited for.
        """
        slope = self._draw(images, labels, loss, high)
        if self.draws == 1:
            return slope
        logits, values, steepness = (x / self.draws for x in (slope.logits, slope.loss, slope.steepness))
        gradient = slope.direction * per_sample(slope.scale / self.draws, images)
        for _ in range(1, self.draws):
            slope = self._draw(images, labels, loss, high)
            logits += slope.logits / self.draws
            values += slope.loss / self.draws
            steepness += slope.steepness / self.draws
            gradient += slope.direction * per_sample(slope.scale / self.draws, images)
        scale, direction = normalised(gradient)
        return Slope(logits, values, direction.to(images.dtype), scale.double(), steepness)

    def check(self, slope: Slope) -> None:
        """Raise ``ValueError`` for a slope that is not finite."""
        _check_logits(slope.logits, ~torch.isfinite(slope.logits))
        bad = ~(torch.isfinite(slope.loss) & torch.isfinite(slope.steepness))
        if bad.any():
            sample = int(bad.nonzero()[0])
            raise ValueError(
                f"loss must be finite with a finite gradient: {_name(sample, bad)} has {slope.loss[sample].item()!r}"
            )
        bad = ~torch.isfinite(slope.scale)
        if bad.any():
            raise ValueError(f"model must have a finite gradient: {_name(int(bad.nonzero()[0]), bad)} has not")

    def check_labels(self, labels: Tensor) -> None:
        """Raise ``ValueError`` for a label that is none of the classes that the model was seen to have."""
        assert self.classes is not None
        bad = (labels < 0) | (labels >= self.classes)
        if bad.any():
            sample = int(bad.nonzero()[0])
            raise ValueError(
                f"labels must be from 0 to {self.classes - 1}, the model has {self.classes} classes: "
                f"sample {sample} has {int(labels[sample])}"
            )

    def _draw(self, images: Tensor, labels: Tensor, loss: Loss, high: float | None) -> Slope:
        """The slope of one draw."""
        seen, height, rise = self._backward(images, labels, loss, high)
        largest, direction = normalised(rise)
        return Slope(seen, height.loss, direction, height.size * largest, height.size)

    def _backward(
        self, images: Tensor, labels: Tensor, loss: Loss, high: float | None
    ) -> tuple[Tensor, Steepness, Tensor]:
        """Logits, the loss and what was sent back from there, and what arrived at the images; on its own, so that the
        clamped images are gone before the gradient is looked at."""
        with torch.inference_mode(False), torch.enable_grad():
            # Copies, since what was made in inference mode may not be kept for a gradient.
            leaf = (images.clone() if high is None else images.clamp(0, high)).detach().requires_grad_()
            seen = self._call(leaf)
            height = steepness(loss, seen.detach(), labels.clone() if labels.is_inference() else labels)
            along = height.along.to(seen.dtype)
            rise = torch.autograd.grad(seen, leaf, along, allow_unused=True)[0] if seen.requires_grad else None
        if rise is None:
            raise ValueError("model must be differentiable: its logits do not depend on the images")
        return seen.detach(), height, rise

    def _call(self, images: Tensor) -> Tensor:
        logits = self.model(images.to(self.dtype))
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images) or logits.shape[1] < 2:
            seen = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"model must return logits of shape ({len(images)}, classes), 2 or more, got {seen}")
        if self.classes not in (None, logits.shape[1]):
            raise ValueError(f"model must always return the same classes, got {self.classes} and {logits.shape[1]}")
        self.classes = logits.shape[1]
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        if self._suspicious:
            self._suspicious = False
            _warn_of_probabilities(logits.detach())
        return logits


def _check_logits(logits: Tensor, bad: Tensor) -> None:
    if bad.any():
        sample, entry = bad.nonzero()[0].tolist()
        raise ValueError(f"model must return finite logits: {_name(sample, bad)} has {logits[sample, entry].item()!r}")


def _warn_of_probabilities(outputs: Tensor) -> None:
    if len(outputs) and bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < 1e-3).all()):
        warnings.warn(
            "model returns probabilities, it seems (softmax outputs): attacks want logits, and on probabilities they "
            "can miss adversarial images that exist",
            stacklevel=2,
        )


@cache
def _wake(device: torch.device) -> None:
    """Torch's thread for backward passes on a GPU complains of a missing CUDA context if the first thing it is told
    to do is a matrix product, as it is in an attack: let it be something else."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.zeros(1, device=device, requires_grad=True)
        torch.autograd.grad(leaf.exp(), leaf, torch.ones_like(leaf))


def largest_entry(tensor: Tensor) -> Tensor:
    """The largest absolute value in each sample, ``(B,)``, in one pass; not finite if an entry is not."""
    norm: Tensor = torch.linalg.vector_norm(tensor.flatten(1), torch.inf, dim=1)
    return norm


def normalised(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The largest entry of each sample, and the gradient over it; 0 where there is none."""
    largest = largest_entry(gradient)
    # Never in place: what autograd returns may be a view of something else.
    return largest, (gradient / _divisor(largest, gradient)).contiguous()


def _divisor(largest: Tensor, like: Tensor) -> Tensor:
    return per_sample(largest.clamp(min=torch.finfo(largest.dtype).tiny), like)


def _name(sample: int, asked: Tensor) -> str:
    """Batches and survivors have numbers of their own: say of how many."""
    return f"sample {sample} of the {len(asked)} asked about"
