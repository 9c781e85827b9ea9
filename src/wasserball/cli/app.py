"""What all commands share: the application itself, how errors are said, and the options that several of them take."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from wasserball import __version__
from wasserball.attacks import Attack
from wasserball.evaluate.setting import ATTACKS
from wasserball.threat import LocalCost
from wasserball.zoo import Data, load_data, load_model

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    str,
    typer.Option(
        help="A bundled model, a network of the zoo (with --weights), a weights file, file.py:factory, "
        "package.module:factory, timm:NAME, torchvision:NAME, or pickle:FILE.",
        show_default=True,
    ),
]
Weights = Annotated[Path | None, typer.Option(help="Weights to load: safetensors, or a checkpoint of tensors (.pt).")]
Normalize = Annotated[
    str | None,
    typer.Option(
        help="Put a normalisation before the model: imagenet, cifar10, mnist, or mean,…/std,… for each channel."
    ),
]
DataSource = Annotated[
    str,
    typer.Option(
        help="mnist-sample, a folder (files of MNIST or CIFAR-10, .npy, pictures in class folders), .npz, .safetensors,"
        " torchvision:NAME, huggingface:NAME, or file.py:factory."
    ),
]
Split = Annotated[str, typer.Option(help="Of data that has several: test or train.")]
Size = Annotated[int | None, typer.Option(min=1, help="Resize pictures and crop them to so many pixels a side.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default cuda where there is one.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Of each attack, instead of its own default.")]
Window = Annotated[int | None, typer.Option(help="How far mass may move: in a window of so many pixels, 5 by default.")]
Seed = Annotated[int, typer.Option(min=0, help="Of random starts.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images at a time; by default as many as fit well.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take only the first so many images.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wasserball {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """How robust is an image classifier when an adversary may move pixel mass?

    Begin with `wasserball demo`, then `wasserball evaluate --eps 0.1 --out runs/first`.
    """


@contextmanager
def clear_errors(hint: str = "") -> Iterator[None]:
    """Errors as one sentence and an exit code, not as a traceback; ``hint`` is for who interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        typer.secho(f"Stopped. {hint}".strip(), err=True)
        raise typer.Exit(130) from None
    except torch.cuda.OutOfMemoryError as error:
        _fail(f"the GPU has not enough memory, try a smaller --batch-size ({error})")
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _fail(f"{name}{error.strerror or error}")
    except (ValueError, ImportError) as error:
        _fail(str(error))


def _fail(message: str) -> None:
    typer.secho(f"Error: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(1)


def pick_device(device: str | None) -> torch.device:
    """The device that is asked for, or the best there is."""
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(chosen)
        if found.type not in ("cpu", "cuda"):
            raise RuntimeError
    except RuntimeError:
        raise typer.BadParameter(f"must be cpu or cuda, got {chosen!r}", param_hint="--device") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        seen = f"torch sees {torch.cuda.device_count() or 'no'} GPU"
        raise typer.BadParameter(f"must be available, got {chosen!r}: {seen}", param_hint="--device")
    return found


def pick_own_device(device: str | None) -> torch.device:
    """:func:`pick_device` for one of several processes, which have a GPU each if there are enough."""
    place = pick_device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return place


def leads() -> bool:
    """Whether this is the process that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def parse_numbers(text: str, option: str) -> list[float]:
    """Numbers, with commas between them."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"must be numbers with commas between them, got {text!r}", param_hint=option) from None


def make_attacks(text: str, **options: Any) -> list[Attack]:
    """Attacks by their names, with commas between them; options that are None are left to them."""
    given = {name: value for name, value in options.items() if value is not None}
    if "window" in given:
        try:
            given["cost"] = LocalCost(given.pop("window"))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--window") from None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ATTACKS:
            raise typer.BadParameter(f"must be among {', '.join(ATTACKS)}, got {name!r}", param_hint="--attack")
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"must name no attack twice, got {text!r}", param_hint="--attack")
    return [ATTACKS[name](eps=0.0, **given) for name in names]


def open_model(source: str, weights: Path | None, normalize: str | None, device: torch.device) -> nn.Module:
    """The model that the options speak of, on its device."""
    layer: str | tuple[list[float], list[float]] | None = normalize
    if normalize is not None and "/" in normalize:
        mean, _, std = normalize.partition("/")
        layer = parse_numbers(mean, "--normalize"), parse_numbers(std, "--normalize")
    return load_model(source, weights=weights, normalize=layer).to(device)


def open_data(source: str, split: str, size: int | None) -> Data:
    """The data that the options speak of."""
    return load_data(source, split=split, size=size)


def command_line() -> str:
    """What was typed, as it can be typed again."""
    return shlex.join(["wasserball", *sys.argv[1:]])
