"""How ``wasserball.zoo``'s bundled model and sample were made, from the published files of MNIST.

Standard training of the paper's network, nothing adversarial about it: ten epochs of Adam under a cosine, one seed, the
last weights. It takes a minute on one CPU core; on one and the same machine it gives the same bits each time.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors.torch import save
from torch import Tensor, nn

from wasserball.zoo import load_mnist, mnist_network

EPOCHS = 10
BATCH = 128
RATE = 2e-3
SAMPLE = 200


def train(images: Tensor, labels: Tensor, seed: int, progress: Progress) -> nn.Sequential:
    torch.manual_seed(seed)
    network = mnist_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * math.ceil(len(images) / BATCH))
    for _ in progress.track(range(EPOCHS)):
        order = torch.randperm(len(images))
        for first in range(0, len(images), BATCH):
            batch = order[first : first + BATCH]
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(network(images[batch]), labels[batch]))
            optimizer.step()
            schedule.step()
    return network.eval()


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.inference_mode():
        return float((network(images).argmax(1) == labels).double().mean())


def sample(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The first digits, as the bytes that they were published as."""
    return {"images": (images[:SAMPLE] * 255).round().byte(), "labels": labels[:SAMPLE].byte()}


def run(data: Path, out: Path, digits: Path | None, seed: int, console: Console) -> None:
    torch.set_num_threads(1)  # sums are split among threads, and the bits with them
    start = time.perf_counter()
    training, test = load_mnist(data, "train"), load_mnist(data, "test")
    columns = TextColumn("epoch {task.completed} of {task.total}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        network = train(*training, seed, progress)
    files = {out: network.state_dict(), **({digits: sample(*test)} if digits else {})}
    for path, tensors in files.items():
        path.write_bytes(save(tensors))
    seconds = time.perf_counter() - start
    console.print(f"{accuracy(network, *test):.2%} of {len(test[0]):,} test digits right, {seconds:.0f} s")
    console.print(f"written to {', '.join(map(str, files))}", soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the bundled MNIST model.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the four idx files of MNIST")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the weights go")
    parser.add_argument("--sample", type=Path, metavar="FILE", help=f"where the first {SAMPLE} test digits go")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        run(options.data, options.out, options.sample, options.seed, console)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
