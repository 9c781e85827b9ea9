"""The paper's Figures 1, 5, 6 and App. F: what the perturbations of each attack look like, and when they show shapes.

Wong et al. saw the shapes of the clean image in their perturbations. The paper says that entropy put them there: where
it rules, every pixel spreads its mass evenly over its window; inside a flat region what leaves a pixel comes back from
its neighbours, and only at edges there is a change to be seen. The numbers here say the same: how few of the pixels
hold most of the change, and how well the size of a change is predicted by the contrast of the clean image at its place.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import wasserball as wb
from experiments import _paper
from experiments._lab import Experiment, Ledger, Row, Setting, markdown
from experiments._victims import VICTIMS
from wasserball import plot
from wasserball.attacks.attack import Ascent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = {"mnist": (0, 2, 4), "cifar": (1, 6, 7), "imagenet": (15, 30, 50)}
"""Test images, by their numbers."""
EPS = {"mnist": 0.2, "cifar": 0.002, "imagenet": 0.005}
RADII = {"mnist": (0.3, 2.0), "cifar": (8 / 255, 0.5), "imagenet": (8 / 255, 3.0)}
"""Of the l∞ and the l2 ball."""
STEPS = {"mnist": 300, "cifar": 300, "imagenet": 30}
PATIENT = {"mnist": 1000, "cifar": 300, "imagenet": 20}
"""Steps of projected Sinkhorn, short ones of 0.01 as in the paper's figure."""
MOST = 0.9
LARGE = 10.0
"""A γ for which entropy is all that counts."""


def norm_attack(model: nn.Module, images: Tensor, labels: Tensor, radius: float, order: float, steps: int) -> Tensor:
    """PGD in the l∞ or the l2 ball, and the box."""
    change = torch.zeros_like(images)
    for _ in range(steps):
        change.requires_grad_()
        loss = F.cross_entropy(model(images + change), labels, reduction="sum")
        (slope,) = torch.autograd.grad(loss, change)
        with torch.no_grad():
            if order == 2:
                change = change + radius / 10 * slope / _norm(slope)
                change = change * (radius / _norm(change)).clamp(max=1)
            else:
                change = (change + radius / 10 * slope.sign()).clamp(-radius, radius)
            change = (images + change).clamp(0, 1) - images
    return images + change


def perturb(name: str, method: str, model: nn.Module, images: Tensor, labels: Tensor, quick: bool) -> Tensor:
    """What an attack makes of the images."""
    victim, eps = VICTIMS[name], EPS[name]
    steps, patient = (10, 10) if quick else (STEPS[name], PATIENT[name])
    if method in ("l∞", "l2"):
        order, radius = (2, RADII[name][1]) if method == "l2" else (torch.inf, RADII[name][0])
        return norm_attack(model, images, labels, radius, order, min(steps, 50))
    attack: Ascent = {
        "PGD (ours)": wb.PGD(eps=eps, steps=min(steps, 100)),
        "dual projection": _paper.pgd(eps, step=victim.step, box="off", steps=steps),
        "dual LMO, γ=1e-3": _paper.frank_wolfe(eps, box="off", steps=steps),
        f"dual LMO, γ={LARGE:g}": wb.FrankWolfe(eps=eps, gamma=LARGE, momentum=0, box="off", steps=steps),
        "projected Sinkhorn": _paper.sinkhorn(eps, gamma=victim.gammas[0], step=0.01, steps=patient),
    }[method]
    return _paper.to_the_end(attack, model, images, labels).adversarial


METHODS = (
    *("l∞", "l2", "PGD (ours)", "dual projection"),
    *("dual LMO, γ=1e-3", f"dual LMO, γ={LARGE:g}", "projected Sinkhorn"),
)


def describe(images: Tensor, found: Tensor, answers: Tensor, labels: Tensor) -> dict[str, Any]:
    """A perturbation in numbers."""
    change = (found - images).double().sum(1, keepdim=True).abs()
    grey = images.double().sum(1, keepdim=True)
    smooth = F.avg_pool2d(F.pad(grey, (2, 2, 2, 2), mode="replicate"), 5, stride=1)
    contrast = (grey - smooth).abs()
    return dict(
        samples=len(images),
        fooled=int((answers != labels).sum()),
        pixels=sum(_held(part) for part in change) / len(images),
        shapes=sum(_correlation(a, b) for a, b in zip(change, contrast, strict=True)) / len(images),
    )


def measure(setting: Setting, ledger: Ledger) -> None:
    for name in setting.options.only or VICTIMS:
        numbers = list(SHOWN[name])
        model, images, labels = VICTIMS[name].load(setting, 0, max(numbers) + 1)
        chosen = images[numbers], labels[numbers]
        for method in METHODS:
            setting.console.print(f"[dim]{name}: {method}")
            key = dict(data=name, model=VICTIMS[name].model, eps=EPS[name], method=method)
            ledger.row(key, partial(attacked, name, method, model, *chosen, setting.quick, drawings(ledger, name)))


def attacked(
    name: str, method: str, model: nn.Module, images: Tensor, labels: Tensor, quick: bool, kept: Path
) -> dict[str, Any]:
    """A perturbation in numbers, and its images for the picture."""
    found = perturb(name, method, model, images, labels, quick)
    with torch.no_grad():
        answers = model(found).argmax(1)
    before = load_file(kept) if kept.exists() else {"clean": images.cpu().contiguous()}
    kept.parent.mkdir(parents=True, exist_ok=True)
    save_file(before | {method: found.cpu().contiguous()}, kept)
    return describe(images, found, answers, labels)


def drawings(ledger: Ledger, name: str) -> Path:
    """Where the images of a data set are."""
    return ledger.path.with_name(f"figure-examples-{name}.safetensors")


def table(ledger: Ledger) -> str:
    names = [name for name in VICTIMS if ledger.find(data=name)]

    def cells(row: Row) -> list[str]:
        return [f"{100 * row['pixels']:.0f}%", f"{row['shapes']:.2f}"]

    headings = [f"{name}: {word}" for name in names for word in ("90% of the change in", "shapes")]
    rows = [[m, *(cell for name in names for cell in cells(ledger.find(data=name, method=m)[0]))] for m in METHODS]
    return markdown(["attack", *headings], rows)


def picture(ledger: Ledger) -> "Figure":
    names = [name for name in VICTIMS if drawings(ledger, name).exists()]
    figure = plot.blank_figure(1.35 * (len(METHODS) + 1), 2.5 * len(names) * 1.1)
    axes = figure.subplots(2 * len(names), len(METHODS) + 1, squeeze=False)
    for place, name in enumerate(names):
        tensors = load_file(drawings(ledger, name))
        above, below = axes[2 * place], axes[2 * place + 1]
        clean = tensors["clean"][0]
        plot.image_panel(above[0], clean, high=1.0)
        plot.caption(above[0], "clean" if place == 0 else "", f"{name}, eps {EPS[name]:g}")
        below[0].set_axis_off()
        for column, method in enumerate(METHODS, start=1):
            found = tensors[method][0]
            change = (found - clean).sum(0)
            plot.image_panel(above[column], found, high=1.0)
            plot.change_panel(below[column], change, limit=float(change.abs().flatten().quantile(0.998)))
            if place == 0:
                above[column].set_title(method.replace(", ", "\n"), fontsize=8, color=plot.INK)
    return figure


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=VICTIMS, help="some of the data sets")


def _norm(values: Tensor) -> Tensor:
    return values.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-12)


def _held(change: Tensor) -> float:
    """The smallest share of the pixels that holds most of the change."""
    sizes = change.flatten().sort(descending=True).values
    return float((sizes.cumsum(0) < MOST * sizes.sum()).double().mean())


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].nan_to_num())


EXPERIMENT = Experiment(
    name="figure-examples",
    summary="Figures 1, 5 and 6: perturbations of each attack, sparse ones and those that show shapes.",
    measure=measure,
    table=table,
    picture=picture,
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
