"""The paper's Figure 3 and App. F: loss and accuracy against iterations, for several attacks and step sizes.

All attacks ignore the box, as in the paper's figure; ours, which does not, is beside them. An attack goes on when it
has fooled the model. The model sees images that are clamped to the box.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wasserball as wb
from experiments import _paper
from experiments._lab import Experiment, Ledger, Row, Setting, markdown, whole_number
from experiments._victims import VICTIMS
from wasserball import plot
from wasserball.attacks.attack import Ascent
from wasserball.attacks.losses import resolve_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPS = 0.005
GAMMA = {"cifar": 5e-5, "imagenet": 5e-6}
"""Of projected Sinkhorn."""
SAMPLES = {"cifar": 100, "imagenet": 50}
STEP_SIZES = (1.0, 0.1, 0.01, 0.001)
SHOWN = (1, 3, 10, 30, 100)
STEPS = SHOWN[-1] + 1
"""The last gradient is asked for before the last step."""
SINKHORN, DUAL, FRANK_WOLFE, OURS = "projected Sinkhorn", "dual projection", "dual LMO", "PGD (ours)"
METHODS = (SINKHORN, DUAL, FRANK_WOLFE, OURS)


def attacks(name: str, steps: int) -> list[tuple[str, float | None, Ascent]]:
    """Each with its step size."""
    return [
        *((SINKHORN, size, _paper.sinkhorn(EPS, gamma=GAMMA[name], step=size, steps=steps)) for size in STEP_SIZES),
        *((DUAL, size, _paper.pgd(EPS, step=size, box="off", steps=steps)) for size in STEP_SIZES),
        (FRANK_WOLFE, None, _paper.frank_wolfe(EPS, box="off", steps=steps)),
        (OURS, None, wb.PGD(eps=EPS, steps=steps)),
    ]


def trace(attack: Ascent, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """Loss and accuracy after 0, 1, 2, … steps, as the attack itself sees them when it asks for its next gradient."""
    losses: list[float] = []
    accuracies: list[float] = []
    inner = resolve_loss(attack.loss, targeted=False)

    def watched(logits: Tensor, answers: Tensor) -> Tensor:
        if len(logits) == len(images):  # those who judge the last images look at few at a time
            with torch.no_grad():
                losses.append(float(F.cross_entropy(logits.float(), answers)))
                accuracies.append(float((logits.argmax(1) == answers).double().mean()))
        return inner(logits, answers)

    _paper.to_the_end(replace(attack, loss=watched, batch_size=len(images)), model, images, labels)
    walk = slice(1, attack.steps + 1)  # without the look at clean images before it, and what judges the last ones
    return dict(samples=len(images), loss=losses[walk], accuracy=accuracies[walk])


def measure(setting: Setting, ledger: Ledger) -> None:
    for name in setting.options.only or SAMPLES:
        samples = 9 if setting.quick else setting.options.samples or SAMPLES[name]
        model, images, labels = VICTIMS[name].load(setting, 0, samples)
        for method, size, attack in attacks(name, 5 if setting.quick else STEPS):
            if method not in (setting.options.attack or METHODS):
                continue
            setting.console.print(f"[dim]{name}: {method}{'' if size is None else f', step {size:g}'}")
            key = dict(data=name, model=VICTIMS[name].model, method=method, step=size, eps=EPS)
            ledger.row(key, partial(trace, attack, model, images, labels))


def in_order(ledger: Ledger, name: str) -> list[Row]:
    """The rows of a data set, whichever attack was first."""
    return sorted(ledger.find(data=name), key=lambda row: METHODS.index(row["method"]))


def table(ledger: Ledger) -> str:
    def at(values: list[float], form: str) -> list[str]:
        return [format(values[turn], form) if turn < len(values) else "–" for turn in SHOWN]

    parts = []
    for name in dict.fromkeys(row["data"] for row in ledger.rows):
        rows = in_order(ledger, name)
        lines = [
            [
                row["method"],
                "–" if row["step"] is None else f"{row['step']:g}",
                *(f"{100 * float(share):.0f}" if share != "–" else share for share in at(row["accuracy"], ".4f")),
                *at(row["loss"], ".2f"),
            ]
            for row in rows
        ]
        headings = ["attack", "step", *(f"accuracy, {turn}" for turn in SHOWN), *(f"loss, {turn}" for turn in SHOWN)]
        parts += [f"{name}, the first {rows[0]['samples']} images:", markdown(headings, lines)]
    return "\n\n".join(parts)


def picture(ledger: Ledger) -> "Figure":
    names = list(dict.fromkeys(row["data"] for row in ledger.rows))
    colours = {SINKHORN: plot.FADED, DUAL: plot.ARROW, FRANK_WOLFE: "#2b8a3e", OURS: plot.ACCENT}
    lines = dict(zip((*STEP_SIZES, None), ("-", "--", "-.", ":", "-"), strict=True))
    figure = plot.blank_figure(9.5, 3.4 * len(names))
    axes = figure.subplots(len(names), 2, squeeze=False)
    for panels, name in zip(axes, names, strict=True):
        for panel, column in zip(panels, ("loss", "accuracy"), strict=True):
            for row in in_order(ledger, name):
                words = row["method"] + ("" if row["step"] is None else f", {row['step']:g}")
                style = dict(color=colours[row["method"]], linestyle=lines[row["step"]], linewidth=1.3)
                panel.plot(range(1, len(row[column])), row[column][1:], label=words, **style)
            panel.set(xscale="log", ylabel=f"{name}: {column}")
            panel.grid(color=plot.FRAME, linewidth=0.5)
            plot.caption(panel, "", "step")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8, ncols=4
    )
    return figure


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=list(SAMPLES), help="some of the data sets")
    parser.add_argument("--attack", nargs="+", choices=METHODS, help="some of the attacks, with all their step sizes")
    parser.add_argument("--samples", type=whole_number, help="how many images, the paper's number if not given")


EXPERIMENT = Experiment(
    name="figure-convergence",
    summary="Figure 3: loss and accuracy against iterations, for several attacks and step sizes.",
    measure=measure,
    table=table,
    picture=picture,
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
