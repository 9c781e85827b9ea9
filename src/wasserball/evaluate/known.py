"""What others have published about a model, found by the fingerprint of its weights."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Published:
    """The accuracies in % that an attack of the paper leaves, at each radius."""

    attack: str
    valid: bool
    """Whether its images lie in the pixel box as well as in the ball."""
    accuracy: tuple[float, ...]
    eps: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)


@dataclass(frozen=True, kw_only=True)
class Known:
    """A model that the paper has figures for."""

    note: str
    """Whose figures these are."""
    clean: float
    """Its accuracy in % before any attack."""
    published: tuple[Published, ...]


PAPER = "Wu, Wang & Yu, ICML 2020; 10,000 MNIST test images, 5×5 window, Euclidean cost"

STANDARD = Known(
    note=f"paper ({PAPER})",
    clean=98.89,
    published=(
        Published(attack="PGD", valid=True, accuracy=(63.4, 13.3, 1.4, 0.1, 0.0)),
        Published(attack="FW", valid=True, accuracy=(67.5, 16.9, 2.2, 0.4, 0.1)),
        Published(attack="PGD", valid=False, accuracy=(42.6, 4.2, 0.4, 0.0, 0.0)),
        Published(attack="FW", valid=False, accuracy=(48.3, 6.7, 1.0, 0.3, 0.1)),
        Published(attack="Sinkhorn γ=1/1000", valid=False, accuracy=(96.5, 91.2, 78.0, 59.1, 40.1)),
    ),
)
SINKHORN_TRAINED = Known(
    note=f"paper ({PAPER})",
    clean=97.28,
    published=(
        Published(attack="PGD", valid=True, accuracy=(1.1, 0.8, 0.6, 0.6, 0.6)),
        Published(attack="FW", valid=True, accuracy=(4.8, 21.6, 34.5, 39.2, 39.6)),
    ),
)
FRANK_WOLFE_TRAINED = Known(
    note=f"paper ({PAPER})",
    clean=95.83,
    published=(
        Published(attack="PGD", valid=True, accuracy=(92.6, 87.8, 80.2, 70.7, 59.7)),
        Published(attack="FW", valid=True, accuracy=(92.5, 88.1, 82.1, 75.3, 66.8)),
        Published(attack="PGD", valid=False, accuracy=(91.1, 82.9, 71.3, 58.4, 44.6)),
        Published(attack="FW", valid=False, accuracy=(91.1, 83.9, 73.9, 63.0, 50.9)),
    ),
)
KNOWN = {
    "a00931eac0b3f72e093e31abcea8d3e6": STANDARD,
    "dd08114f345977c2317b376b9bc1429b": SINKHORN_TRAINED,
    "42b71e60c4187382c3827c8a3e96793d": FRANK_WOLFE_TRAINED,
    "8b68a50828238849812bebebc6bcf9a9": replace(STANDARD, note=f"paper, for its own weights of this network ({PAPER})"),
}
"""By :func:`~wasserball.evaluate.setting.fingerprint_model`. The last is the bundled model, with weights of our own."""


def find_known(fingerprint: str | None) -> Known | None:
    """What is known of a model with these weights."""
    return None if fingerprint is None else KNOWN.get(fingerprint)
