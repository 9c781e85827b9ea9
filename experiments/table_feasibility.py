"""The paper's App. F: are the images that attacks make inside ball and box, and do they use the ball?

The first 100 test digits, the paper's standard model, eps 0.5. As in the paper an attack goes on when a digit is fooled
and what counts is its last image, so that W says how much of the ball an attack can use. W is exact: transport within
the window, by code of its own from the two images alone.
"""

import sys
from functools import partial
from typing import Any

from torch import Tensor, nn

import wasserball as wb
from experiments import _paper
from experiments._lab import Experiment, Ledger, Setting, markdown
from wasserball import zoo
from wasserball.attacks.attack import Ascent

EPS, SAMPLES = 0.5, 100
PAPER: dict[str, tuple[float, float, float] | None] = {
    "projected Sinkhorn, γ=1/1000": (0.109965, 1.474048, 3.646899),
    "the paper's PGD, box ignored": (0.493146, 4.118621, 15.812986),
    "the paper's PGD, repaired": (0.444885, 1.000030, 0.000034),
    "the paper's Frank-Wolfe, box ignored": (0.428238, 3.955514, 10.406417),
    "the paper's Frank-Wolfe, repaired": (0.399014, 1.000015, 0.000025),
    "PGD": None,
    "FrankWolfe": None,
}
"""Mean distance, largest pixel and largest share of the mass above 1 in %."""


def attacks(steps: int) -> dict[str, Ascent]:
    theirs: dict[str, Any] = dict(steps=steps)
    ours: dict[str, Any] = dict(eps=EPS, steps=min(steps, 100))
    return {
        "projected Sinkhorn, γ=1/1000": _paper.sinkhorn(EPS, gamma=1 / 1000, **theirs),
        "the paper's PGD, box ignored": _paper.pgd(EPS, step=0.1, box="off", **theirs),
        "the paper's PGD, repaired": _paper.pgd(EPS, step=0.1, box="final", **theirs),
        "the paper's Frank-Wolfe, box ignored": _paper.frank_wolfe(EPS, box="off", **theirs),
        "the paper's Frank-Wolfe, repaired": _paper.frank_wolfe(EPS, box="final", **theirs),
        "PGD": wb.PGD(**ours),
        "FrankWolfe": wb.FrankWolfe(**ours),
    }


def examine(attack: Ascent, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """What an attack makes of the images, by the images alone."""
    found = _paper.to_the_end(attack, model, images, labels).adversarial.double().cpu()
    distance = wb.verify(images.double().cpu(), found, eps=EPS, bounds=None).distance
    above = (found - 1).clamp(min=0).sum((1, 2, 3)) / found.sum((1, 2, 3))
    return dict(
        samples=len(images),
        distance=float(distance.mean()),
        largest_pixel=float(found.max()),
        mass_above_one=float(above.max()),
    )


def measure(setting: Setting, ledger: Ledger) -> None:
    samples, steps = (20, 20) if setting.quick else (SAMPLES, 300)
    network = setting.data("checkpoints", "mnist_standard.safetensors")
    model = zoo.load_model("mnist", weights=network).to(setting.device)
    images, labels = (column.to(setting.device) for column in zoo.load_data(setting.data("mnist")).batch(0, samples))
    for method, attack in attacks(steps).items():
        setting.console.print(f"[dim]{method}")
        ledger.row(dict(method=method, model=network.stem, eps=EPS), partial(examine, attack, model, images, labels))


def table(ledger: Ledger) -> str:
    def line(row: dict[str, Any]) -> list[str]:
        paper = PAPER[row["method"]]
        seen = f"{row['distance']:.4f}", f"{row['largest_pixel']:.6f}", f"{100 * row['mass_above_one']:.6f}%"
        theirs = ("–",) * 3 if paper is None else (f"{paper[0]:.4f}", f"{paper[1]:.6f}", f"{paper[2]:.6f}%")
        return [row["method"], *(cell for pair in zip(seen, theirs, strict=True) for cell in pair)]

    headings = "mean W", "paper", "largest pixel", "paper", "mass above 1", "paper"
    return markdown(["attack", *headings], map(line, ledger.rows))


EXPERIMENT = Experiment(
    name="table-feasibility",
    summary="App. F: whether the images of each attack lie in ball and box, and how much of the ball they use.",
    measure=measure,
    table=table,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
