"""Accuracy under attack for one model and data set: the figures of the README's tables, a line for each run.

    wasserball reproduce attacks --network mnist --weights FILE --data FOLDER --eps .1 .2 --attack pgd auto

Data is all that ``wasserball.zoo.load_data`` understands: a folder with MNIST's idx files, CIFAR-10 or pictures, or a
file of arrays, among others. Each result is appended to the output as one line of JSON as soon as it is there.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import wasserball as wb
from experiments import _paper
from wasserball import zoo

Loaded = TypeVar("Loaded")


ATTACKS: dict[str, Callable[[argparse.Namespace], wb.Attack]] = {
    "pgd": lambda a: wb.PGD(eps=0, **a.common),
    "fw": lambda a: wb.FrankWolfe(eps=0, **a.common),
    "auto": lambda a: wb.Auto(eps=0, **a.common),
    "radius": lambda a: wb.MinimalRadius(**a.common),
    # The paper's own: its steps and loss, the box repaired at the end or ignored.
    "paper-pgd": lambda a: _paper.pgd(0, step=a.step, box="final", **a.common),
    "paper-pgd-off": lambda a: _paper.pgd(0, step=a.step, box="off", **a.common),
    "paper-fw": lambda a: _paper.frank_wolfe(0, box="final", **a.common),
    "paper-fw-off": lambda a: _paper.frank_wolfe(0, box="off", **a.common),
    "sinkhorn": lambda a: _paper.sinkhorn(0, gamma=a.gamma, **a.common),
}


def measure(attack: wb.Attack, model: nn.Module, images: Tensor, labels: Tensor, exact: int) -> dict[str, Any]:
    """One run of an attack, in numbers."""
    if images.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    result = attack(model, images, labels)
    distance = result.distance[result.success & (result.distance > 0)]
    line: dict[str, Any] = dict(
        attack=repr(attack),
        samples=len(result),
        accuracy=round(100 * result.robust_accuracy(), 2),
        valid=round(100 * result.valid.double().mean().item(), 2),
        mean_distance=round(distance.mean().item(), 6) if len(distance) else None,
        forward=int(result.queries.forward.sum()),
        backward=int(result.queries.backward.sum()),
        seconds=round(time.perf_counter() - started, 1),
        device=torch.cuda.get_device_name() if images.is_cuda else "CPU",
    )
    if images.is_cuda:
        line["peak_bytes_a_sample"] = torch.cuda.max_memory_allocated() // len(result)
    if result.parts:
        line["parts"] = [part._asdict() for part in result.parts]
    if isinstance(attack, wb.MinimalRadius):
        line["curve"] = {e: round(100 * result.robust_accuracy(e), 2) for e in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)}
    if exact:
        moved = (result.distance > 0).nonzero().squeeze(1)[:exact]
        certificate = wb.verify(images[moved], result.adversarial[moved], eps=result.eps[moved], bounds=attack.bounds)
        line["valid_by_exact_transport"] = f"{int((certificate.valid & certificate.exact).sum())}/{len(moved)}"
        rounded = result.quantized()
        line["uint8_valid"] = round(100 * rounded.valid.double().mean().item(), 2)
        line["uint8_success_kept"] = f"{int((rounded.success & result.success).sum())}/{int(result.success.sum())}"
    return line


def checked(parser: argparse.ArgumentParser, option: str, load: Callable[[], Loaded]) -> Loaded:
    """What an option stands for, or a message of one line."""
    try:
        return load()
    except (OSError, ValueError) as error:
        parser.error(f"{option}: {error}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=zoo.NETWORKS, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="a file of safetensors or of torch.save")
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", choices=("test", "train"), default="test")
    parser.add_argument("--attack", nargs="+", choices=ATTACKS, default=["pgd"])
    parser.add_argument("--eps", nargs="+", type=float, default=[0.1])
    parser.add_argument("--first", type=int, default=0, help="the first image to take")
    parser.add_argument("--limit", type=int, default=1000, help="how many images to take")
    parser.add_argument("--steps", type=int, help="of each attack, its own default if not given")
    parser.add_argument("--step", type=float, default=0.1, help="the step size of paper-pgd")
    parser.add_argument("--gamma", type=float, default=1e-3, help="of sinkhorn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--exact", type=int, default=0, help="check so many by exact transport, and all in 8 bits")
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("out/attacks.jsonl"))
    options = parser.parse_args(argv)
    if options.first < 0 or options.limit < 1:
        parser.error(f"--first must be at least 0 and --limit at least 1, got {options.first} and {options.limit}")
    options.common = dict(seed=options.seed, batch_size=options.batch_size, progress=options.progress)
    if options.steps is not None:
        options.common["steps"] = options.steps

    model = checked(parser, "--weights", lambda: zoo.load_model(options.network, weights=options.weights))
    data = checked(parser, "--data", lambda: zoo.load_data(options.data, split=options.split))
    if options.first >= len(data):
        parser.error(f"--first must be below {len(data)}, the number of images in --data, got {options.first}")
    last = min(options.first + options.limit, len(data))
    batch = checked(parser, "--data", lambda: data.batch(options.first, last))
    images, labels = (column.to(options.device) for column in batch)
    model.to(options.device)
    with torch.no_grad():
        answers = torch.cat([model(images[i : i + 100]).argmax(1) for i in range(0, len(images), 100)])
    clean = round(100 * (answers == labels).double().mean().item(), 2)
    about = dict(weights=options.weights.stem, images=[options.split, options.first, len(images)], clean=clean)
    print(json.dumps(about), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name, eps in product(options.attack, options.eps):
        attack = ATTACKS[name](options)
        if not isinstance(attack, wb.MinimalRadius):
            attack = replace(attack, eps=eps)
        elif eps != options.eps[0]:
            continue  # one run is the whole curve
        line = about | dict(name=name, eps=attack.eps) | measure(attack, model, images, labels, options.exact)
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print({key: value for key, value in line.items() if key not in (*about, "parts")}, flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; what was finished is in the output")
