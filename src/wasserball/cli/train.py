"""``wasserball train`` and ``finetune``: adversarial training, from a network and images to weights."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from wasserball.attacks import PGD
from wasserball.cli import app as shared
from wasserball.cli.app import app
from wasserball.evaluate.setting import ATTACKS
from wasserball.train import RECIPES, Recipe, Training
from wasserball.train import train as run_training
from wasserball.train.history import COLLAPSED
from wasserball.train.progress import make_table
from wasserball.zoo import NETWORKS, load_model, model_name

NAMES = ("fw", "pgd", "sinkhorn")
TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

Out = Annotated[Path, typer.Option(file_okay=False, help="The folder of the training: new, or with --resume old.")]
AttackName = Annotated[str | None, typer.Option("--attack", help=f"To train against: {', '.join(NAMES)}.")]
Eps = Annotated[float | None, typer.Option(min=0, help="The full radius, relative to the mass of an image.")]
Radius = Annotated[
    str | None,
    typer.Option(help="fixed; random, from --low to --eps; grown from there while the model holds; or own."),
]
Low = Annotated[float | None, typer.Option(min=0, help="The smallest radius that is drawn, or with which one grows.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="How often each image is seen.")]
Rate = Annotated[float | None, typer.Option(help="The learning rate, which falls on a cosine.")]
WarmUp = Annotated[float | None, typer.Option(min=0, help="Epochs in which the radius grows from 0.")]
CleanShare = Annotated[float | None, typer.Option(min=0, help="The share of the loss that is on clean images.")]
Trades = Annotated[float | None, typer.Option(min=0, help="TRADES: the weight of its second term.")]
HeldOut = Annotated[int | None, typer.Option(min=1, help="Images not trained on, which tell the best epoch.")]
Patience = Annotated[int | None, typer.Option(min=0, help="Stop after so many epochs without a better one.")]
Precision = Annotated[str | None, typer.Option(help="Of the model's passes: float32 or bfloat16.")]
TrainSeed = Annotated[
    int | None, typer.Option(min=0, help="Of the first weights, of the order of the images and of the attack.")
]
Readers = Annotated[int, typer.Option(min=0, help="Processes that read images which are not in memory.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the last finished epoch in --out.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Anything else of a recipe, as --set average=0.999."),
]


@app.command()
def train(
    out: Out,
    data: shared.DataSource,
    recipe: Annotated[str, typer.Option(help=f"What to start from: {', '.join(RECIPES)}.")] = "default",
    model: Annotated[
        str | None,
        typer.Option(
            help=f"A network of the zoo ({', '.join(NETWORKS)}), which without --weights starts at random, or "
            "file.py:factory or anything else that `evaluate` takes; by default that of the recipe."
        ),
    ] = None,
    weights: shared.Weights = None,
    split: shared.Split = "train",
    size: shared.Size = None,
    attack: AttackName = None,
    eps: Eps = None,
    steps: shared.Steps = None,
    window: shared.Window = None,
    radius: Radius = None,
    low: Low = None,
    epochs: Epochs = None,
    batch_size: shared.BatchSize = None,
    rate: Rate = None,
    warm_up: WarmUp = None,
    clean_share: CleanShare = None,
    trades: Trades = None,
    precision: Precision = None,
    held_out: HeldOut = None,
    patience: Patience = None,
    settings: Set = None,
    limit: shared.Limit = None,
    seed: TrainSeed = None,
    device: shared.Device = None,
    readers: Readers = 0,
    resume: Resume = False,
) -> None:
    """Train a network on adversarial images, and keep the weights that hold best on images it was not trained on.

    Example: `wasserball train --recipe mnist --data mnist/ --out trained/mnist`, or for anything else
    `wasserball train --model mnist --data mnist/ --attack fw --eps .3 --epochs 10 --out trained/mine`.
    Several GPUs: `torchrun --nproc-per-node 4 -m wasserball train …`.
    """
    given: dict[str, Any] = dict(epochs=epochs, batch_size=batch_size, rate=rate, warm_up=warm_up, seed=seed)
    given |= dict(radius=radius, low=low, clean_share=clean_share, trades=trades, precision=precision)
    given |= dict(held_out=held_out, patience=patience)
    with _errors(out):
        chosen = _choose(_recipe(recipe), attack, eps, steps, window, settings, given)
        source = model or chosen.network
        fresh, name = start_model(source, weights, chosen.seed), model_name(source, weights)
        _run(fresh, name, chosen, out, data, split, size, limit, device, readers, resume)


@app.command()
def finetune(
    out: Out,
    data: shared.DataSource,
    model: shared.Model = "mnist-standard",
    weights: shared.Weights = None,
    normalize: shared.Normalize = None,
    split: shared.Split = "train",
    size: shared.Size = None,
    attack: AttackName = None,
    eps: Eps = None,
    steps: shared.Steps = None,
    window: shared.Window = None,
    epochs: Epochs = None,
    batch_size: shared.BatchSize = None,
    rate: Rate = None,
    settings: Set = None,
    limit: shared.Limit = None,
    seed: TrainSeed = None,
    device: shared.Device = None,
    readers: Readers = 0,
    resume: Resume = False,
) -> None:
    """Make a model that was trained on clean images robust, in a few epochs from its weights.

    Example: `wasserball finetune --model mnist-standard --data mnist/ --eps .3 --out trained/tuned`
    """
    given: dict[str, Any] = dict(epochs=epochs, batch_size=batch_size, rate=rate, seed=seed)
    with _errors(out):
        chosen = _choose(RECIPES["finetune"], attack, eps, steps, window, settings, given)
        tuned = shared.open_model(model, weights, normalize, torch.device("cpu"))
        name = model_name(model, weights)
        _run(tuned, name, chosen, out, data, split, size, limit, device, readers, resume)


def start_model(source: str, weights: Path | None, seed: int) -> nn.Module:
    """The network to begin with; whatever of it is random comes from the seed."""
    torch.manual_seed(seed)
    if source in NETWORKS and weights is None:
        return NETWORKS[source]()
    return load_model(source, weights=weights)


def show(training: Training) -> None:
    """The epochs on the terminal, the best of them in bold."""
    from rich.console import Console

    console = Console()
    console.print(make_table(training.history))
    if training.stopped is not None:
        console.print(f"Stopped after epoch {len(training.history)}: {training.stopped}.", style="yellow")
    elif training.best.collapsed:
        console.print(
            f"Even in the best epoch {COLLAPSED}. A longer --warm-up or a smaller --rate may help.", style="yellow"
        )
    console.print(f"Weights: {training.weights}", soft_wrap=True)


def _run(
    model: nn.Module,
    name: str,
    recipe: Recipe,
    out: Path,
    data: str,
    split: str,
    size: int | None,
    limit: int | None,
    device: str | None,
    readers: int,
    resume: bool,
) -> None:
    training = run_training(
        model,
        shared.open_data(data, split, size),
        out=out,
        recipe=recipe,
        limit=limit,
        device=shared.pick_own_device(device),
        readers=readers,
        resume=resume,
        progress=True,
        name=name,
        command=shared.command_line(),
    )
    if shared.leads():
        show(training)


def _errors(out: Path) -> AbstractContextManager[None]:
    return shared.clear_errors(f"The epochs that are finished are in {out}; the same command with --resume goes on.")


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise typer.BadParameter(f"must be one of {', '.join(RECIPES)}, got {name!r}", param_hint="--recipe")
    return RECIPES[name]


def _choose(
    recipe: Recipe,
    attack: str | None,
    eps: float | None,
    steps: int | None,
    window: int | None,
    settings: list[str] | None,
    given: dict[str, Any],
) -> Recipe:
    """The recipe with all that the options change in it; an option of its own counts more than ``--set``."""
    changes = _change_attack(recipe, attack, eps, steps, window, given["seed"]) | _parse(settings or [])
    return replace(recipe, **changes | {name: value for name, value in given.items() if value is not None})


def _change_attack(
    recipe: Recipe, name: str | None, eps: float | None, steps: int | None, window: int | None, seed: int | None
) -> dict[str, Any]:
    """What is new in a recipe with another attack, or with some of its own changed."""
    mine = recipe.attack
    if name is not None and name not in NAMES:
        raise typer.BadParameter(f"must be one of {', '.join(NAMES)}, got {name!r}", param_hint="--attack")
    own = next(known for known, kind in ATTACKS.items() if type(mine) is kind)
    if name is not None and name != own:
        [mine] = shared.make_attacks(name, steps=steps or mine.steps, window=window, seed=seed)
        mine = replace(mine, eps=recipe.eps)
    else:
        [like] = shared.make_attacks(own, window=window)
        cost = mine.cost if window is None else like.cost
        mine = replace(mine, steps=steps or mine.steps, cost=cost, seed=mine.seed if seed is None else seed)
    full = recipe.eps if eps is None else eps
    return dict(
        attack=replace(mine, eps=full),
        low=min(recipe.low, full),
        focus=min(recipe.focus, full),
        remember=recipe.remember and isinstance(mine, PGD),
    )


def _parse(settings: list[str]) -> dict[str, Any]:
    """``name=value`` for anything that a recipe has, in the type that it has there."""
    usual = {name: value for name, value in Recipe().content().items() if name != "attack"}
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in usual:
            known = ", ".join(usual)
            raise typer.BadParameter(f"must be NAME=VALUE with NAME among {known}, got {setting!r}", param_hint="--set")
        kind = type(usual[name])
        try:
            parsed[name] = TRUTHS[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            message = f"{name} must be of type {kind.__name__}, got {text!r}"
            raise typer.BadParameter(message, param_hint="--set") from None
    return parsed
