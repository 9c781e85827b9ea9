"""The only other packaged Wasserstein attack, ART's projected Sinkhorn, beside ours: one model, the same digits."""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wasserball.attacks import PGD, Attack, Auto, FrankWolfe
from wasserball.benchmarks.meter import Meter
from wasserball.verify import verify
from wasserball.zoo import load_model, load_sample

MODEL = "mnist-standard"
RADII = 0.1, 0.3
IMAGES, STEPS = 20, 50
OURS: tuple[type[Attack], ...] = (PGD, FrankWolfe, Auto)
LENIENT = 0.01
"""A tolerance for who does not keep mass and budget to rounding."""
FOR_EVER = 10**9
"""Steps after which ART shall enlarge the radius that it was given, which by default it does every ten."""


@dataclass(frozen=True)
class ArtRow:
    """One attack with one radius on all of the images."""

    package: str
    attack: str
    eps: float
    images: int
    steps: int
    accuracy: float
    """Of the model on what the attack returned."""
    valid: float
    """The share of what it returned that is in ball and box with its mass kept, by our verifier, without a plan."""
    valid_accuracy: float
    """Where only valid images count as fooling the model: the accuracy under attack."""
    lenient: float
    """The share that is in the box and, to a hundredth, in the ball with its mass kept."""
    lenient_accuracy: float
    """Where all these count as fooling the model."""
    largest_distance: float | None
    """Exact, over the mass of the image, of those that keep their mass to a hundredth; None where none does."""
    seconds_an_image: float
    ratio: float
    """To the time of our PGD with this radius."""
    failure: str = ""
    """What the package said when it gave up; then the images are the clean ones."""


def measure_art(meter: Meter, say: Callable[[str], None], *, quick: bool) -> Iterator[ArtRow]:
    """Ours and ART's, with as many steps."""
    count, steps = (2, 2) if quick else (IMAGES, STEPS)
    model = load_model(MODEL).to(meter.device).eval()
    images, labels = (tensor[:count].to(meter.device) for tensor in load_sample())
    for eps in RADII[:1] if quick else RADII:
        unit = 0.0
        for kind in OURS:
            say(f"art: wasserball {kind.__name__}, eps {eps}")
            attack = kind(eps=eps, steps=steps).bind(model)
            [(milliseconds, found)] = meter.race(partial(attack, images, labels))
            seconds = milliseconds / 1e3 / count
            unit = unit or seconds
            judged = _judge(model, images, labels, found, eps, seconds, unit)
            yield ArtRow("wasserball", kind.__name__, eps, count, steps, **judged)
        for name, options in _settings(count).items():
            say(f"art: ART {_version()} {name}, eps {eps}")
            failure, found = "", images
            start = time.perf_counter()
            try:
                found = _art(model, images, labels, eps, steps, options)
            except ValueError as error:
                failure = str(error)
            seconds = (time.perf_counter() - start) / count
            judged = _judge(model, images, labels, found, eps, seconds, unit)
            yield ArtRow(f"ART {_version()}", name, eps, count, steps, **judged, failure=failure)


def _settings(count: int) -> dict[str, dict[str, Any]]:
    """ART's as a newcomer would call it, and as it is at its best here: in the ball that it was given, in one batch."""
    held: dict[str, Any] = dict(batch_size=count, eps_iter=FOR_EVER)
    return {
        "`Wasserstein`, its defaults": dict(),
        "`Wasserstein`, one batch, radius held": held,
        '`Wasserstein(norm="inf")`, one batch, radius held': held | dict(norm="inf"),
    }


def _art(model: nn.Module, images: Tensor, labels: Tensor, eps: float, steps: int, options: dict[str, Any]) -> Tensor:
    from art.attacks.evasion import Wasserstein
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(
        model,
        nn.CrossEntropyLoss(),
        tuple(images.shape[1:]),
        10,
        clip_values=(0, 1),
        device_type="cpu" if images.device.type == "cpu" else "gpu",
    )
    attack = Wasserstein(classifier, eps=eps, max_iter=steps, verbose=False, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of overflow, which shows in what comes back
        return torch.from_numpy(attack.generate(images.cpu().numpy(), labels.cpu().numpy())).to(images.device)


def _judge(
    model: nn.Module, images: Tensor, labels: Tensor, found: Tensor, eps: float, seconds: float, unit: float
) -> dict[str, Any]:
    """What a row says of the images that came back after so many seconds for each, ``unit`` of which PGD takes."""
    with torch.no_grad():
        fooled = model(found).argmax(1) != labels
    found = found.nan_to_num(-1.0)
    certificate = verify(images, found, eps=eps)
    lenient = verify(images, found, eps=eps, tolerance=LENIENT)
    finite = lenient.distance[lenient.distance.isfinite()]
    return dict(
        accuracy=1 - fooled.double().mean().item(),
        valid=certificate.valid.double().mean().item(),
        valid_accuracy=1 - (fooled & certificate.valid).double().mean().item(),
        lenient=lenient.valid.double().mean().item(),
        lenient_accuracy=1 - (fooled & lenient.valid).double().mean().item(),
        largest_distance=finite.max().item() if len(finite) else None,
        seconds_an_image=seconds,
        ratio=seconds / unit,
    )


def check_art() -> None:
    """Raise ``ValueError`` where ART is not installed."""
    try:
        _version()
    except ImportError as error:
        raise ValueError("art cannot be measured without ART: pip install wasserball[art]") from error


def _version() -> str:
    import art

    return str(art.__version__)
