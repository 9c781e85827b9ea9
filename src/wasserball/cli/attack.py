"""``wasserball attack``: adversarial pictures for a folder of pictures."""

import csv
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from wasserball.attacks import AttackResult
from wasserball.cli import app as shared
from wasserball.cli.app import app
from wasserball.evaluate.folder import write_whole
from wasserball.evaluate.loop import check_fit
from wasserball.evaluate.setting import default_batch_size
from wasserball.zoo import Data

COLUMNS = ("file", "source", "label", "prediction", "success", "distance", "valid")


@app.command()
def attack(
    data: Annotated[str, typer.Argument(help="A folder of pictures, or any other data as in `evaluate`.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Where to put the PNGs and results.csv.")],
    eps: Annotated[float, typer.Option(min=0, help="The radius, relative to the mass of an image.")],
    model: shared.Model = "mnist-standard",
    weights: shared.Weights = None,
    normalize: shared.Normalize = None,
    split: shared.Split = "test",
    size: shared.Size = None,
    attack: Annotated[str, typer.Option(help="One of pgd, fw, auto, radius.")] = "pgd",
    limit: shared.Limit = None,
    steps: shared.Steps = None,
    window: shared.Window = None,
    seed: shared.Seed = 0,
    batch_size: shared.BatchSize = None,
    device: shared.Device = None,
) -> None:
    """Write an adversarial PNG for each picture: 8-bit images that are inside ball and box as they lie on the disk.

    Pictures without a label are attacked on what the model sees in them. results.csv says what became of each.

    Example: `wasserball attack pictures/ --model torchvision:resnet50 --size 224 --eps .001 --out adversarial/`
    """
    place = shared.pick_device(device)
    [chosen] = shared.make_attacks(attack, steps=steps, window=window, seed=seed)
    if attack == "sinkhorn":
        raise typer.BadParameter("must keep to the box, which sinkhorn does not", param_hint="--attack")
    with shared.clear_errors(f"The pictures that are finished are in {out}."):
        victim = shared.open_model(model, weights, normalize, place)
        pictures = shared.open_data(data, split, size)
        check_fit(victim, pictures, place)
        count = min(limit or len(pictures), len(pictures))
        shape = pictures.batch(0, 1)[0].shape[1:]
        few = batch_size or default_batch_size({attack: chosen}, shape, place.type)
        table = StringIO()
        writer = csv.writer(table)
        writer.writerow(COLUMNS)
        fooled = 0
        for first in range(0, count, few):
            images, labels = pictures.batch(first, min(first + few, count))
            images = images.to(place)
            labels = torch.where(labels.to(place) < 0, _answers(victim, images), labels.to(place))
            result = replace(chosen, eps=eps, progress=True, return_plan=True)(victim, images, labels).quantized()
            _check(result, pictures, first)
            writer.writerows(_save(result, pictures, first, out))
            write_whole(out / "results.csv", table.getvalue().encode())
            fooled += int(result.success.sum())
    typer.echo(
        f"{fooled} of {count} pictures in {out} fool the model; all are inside ball and box with their mass kept"
    )


@torch.no_grad()
def _answers(model: nn.Module, images: Tensor) -> Tensor:
    answers: Tensor = model(images).argmax(1)
    return answers


def _check(result: AttackResult, data: Data, first: int) -> None:
    """No picture leaves that is not certified as it is."""
    if not result.valid.all():
        sample = int((~result.valid).nonzero()[0])
        raise ValueError(f"{data.where(first + sample)} could not be certified in 8 bits, it was not written")


def _save(result: AttackResult, data: Data, first: int, out: Path) -> list[list[object]]:
    """One PNG a picture, under the name of its source; returns the lines of the table."""
    from PIL import Image

    levels = (result.adversarial.double() * (255 / result.bounds[1])).round().to(torch.uint8).cpu()
    lines: list[list[object]] = []
    for sample, pixels in enumerate(levels):
        source = data.where(first + sample)
        path = out / (Path(source).with_suffix(".png") if "." in source else Path(f"{first + sample:06d}.png"))
        path.parent.mkdir(parents=True, exist_ok=True)
        array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
        picture = BytesIO()
        Image.fromarray(array).save(picture, "PNG")
        write_whole(path, picture.getvalue())
        row = (result.labels, result.prediction, result.success, result.distance, result.valid)
        lines.append([path.relative_to(out).as_posix(), source, *(column[sample].item() for column in row)])
    return lines
