"""``wasserball train``: adversarial training, from a network and images to weights."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn

from wasserball.cli import app as shared
from wasserball.cli.app import app
from wasserball.train import Training
from wasserball.train import train as run_training
from wasserball.train.progress import COLLAPSED
from wasserball.zoo import NETWORKS, load_model, model_name

ATTACKS = ("fw", "pgd")


@app.command()
def train(
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder of the training: new, or with --resume old.")],
    data: shared.DataSource,
    model: Annotated[
        str,
        typer.Option(
            help=f"A network of the zoo ({', '.join(NETWORKS)}), which without --weights starts at random, or "
            "file.py:factory or anything else that `evaluate` takes."
        ),
    ] = "mnist",
    weights: shared.Weights = None,
    split: shared.Split = "train",
    size: shared.Size = None,
    attack: Annotated[str, typer.Option(help=f"To train against: {' or '.join(ATTACKS)}.")] = "fw",
    eps: Annotated[float, typer.Option(min=0, help="The radius, relative to the mass of an image.")] = 0.3,
    steps: Annotated[int, typer.Option(min=1, help="Of the attack.")] = 10,
    window: shared.Window = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often each image is seen.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a step.")] = 128,
    rate: Annotated[float, typer.Option(help="The learning rate of Adam, which falls on a cosine.")] = 1e-3,
    warm_up: Annotated[float, typer.Option(min=0, help="Epochs in which the radius grows from 0 to --eps.")] = 1,
    clean_share: Annotated[float, typer.Option(min=0, help="The share of the loss that is on clean images.")] = 0.0,
    held_out: Annotated[
        int, typer.Option(min=1, help="The last so many images, not trained on, which tell the best epoch.")
    ] = 1000,
    limit: shared.Limit = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the first weights, of the order of the images and of the attack.")
    ] = 0,
    device: shared.Device = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last finished epoch in --out.")] = False,
) -> None:
    """Train a network on adversarial images, and keep the weights that hold best on images it was not trained on.

    Example: `wasserball train --model mnist --data mnist/ --eps .3 --epochs 10 --out trained/mnist`
    """
    place = shared.pick_device(device)
    if attack not in ATTACKS:
        raise typer.BadParameter(f"must be {' or '.join(ATTACKS)}, got {attack!r}", param_hint="--attack")
    with shared.clear_errors(f"The epochs that are finished are in {out}; the same command with --resume goes on."):
        [chosen] = shared.make_attacks(attack, steps=steps, window=window, seed=seed)
        training = run_training(
            start_model(model, weights, seed),
            shared.open_data(data, split, size),
            out=out,
            attack=replace(chosen, eps=eps),
            epochs=epochs,
            batch_size=batch_size,
            rate=rate,
            warm_up=warm_up,
            clean_share=clean_share,
            held_out=held_out,
            limit=limit,
            seed=seed,
            device=place,
            resume=resume,
            progress=True,
            name=model_name(model, weights),
            command=shared.command_line(),
        )
        show(training)


def start_model(source: str, weights: Path | None, seed: int) -> nn.Module:
    """The network to begin with; whatever of it is random comes from the seed."""
    torch.manual_seed(seed)
    if source in NETWORKS and weights is None:
        return NETWORKS[source]()
    return load_model(source, weights=weights)


def show(training: Training) -> None:
    """The epochs on the terminal, the best of them in bold."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="On the held-out images", caption="in bold the epoch whose weights were kept")
    for heading in ("epoch", "radius", "loss", "clean accuracy", "robust accuracy", "seconds"):
        table.add_column(heading, justify="right")
    for record in training.history:
        table.add_row(
            str(record.epoch),
            f"{record.radius:.3g}",
            f"{record.loss:.3f}",
            f"{record.clean_accuracy:.1%}",
            f"{record.robust_accuracy:.1%}",
            f"{record.seconds:.0f}",
            style="bold" if record == training.best else None,
        )
    console.print(table)
    if training.best.collapsed:
        console.print(
            f"Even in the best epoch {COLLAPSED}. A longer --warm-up or a smaller --rate may help.", style="yellow"
        )
    console.print(f"Weights: {training.weights}", soft_wrap=True)
