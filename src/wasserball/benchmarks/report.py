"""What was measured, as tables and as JSON."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from wasserball import __version__
from wasserball.benchmarks.art import ArtRow
from wasserball.benchmarks.operators import BOX_ROUNDS, OperatorRow
from wasserball.benchmarks.scaling import ScalingRow
from wasserball.benchmarks.steps import StepRow
from wasserball.benchmarks.training import TrainingRow
from wasserball.hardware import hardware_name
from wasserball.kernels import choose
from wasserball.threat import LocalCost


@dataclass(frozen=True)
class Machine:
    """Where it was measured, and with what."""

    device: str
    hardware: str
    threads: int
    """That torch and the CPU kernels use."""
    torch_version: str
    wasserball_version: str
    kernels: str
    """``"reference"`` where there are no fast ones for the device."""
    gigabytes_a_second: float
    """Of a large copy, read and written together: the floor under every time."""
    load: float
    """How many processes wanted a core just before, on average over a minute."""

    @classmethod
    def of(cls, device: torch.device, bandwidth: float) -> "Machine":
        """The present one."""
        fast = choose(None, LocalCost(), torch.zeros(1, device=device))
        return cls(
            device=device.type,
            hardware=hardware_name(device),
            threads=torch.get_num_threads(),
            torch_version=torch.__version__,
            wasserball_version=__version__,
            kernels="reference" if fast is None else getattr(fast, "__name__", "").rpartition(".")[2],
            gigabytes_a_second=bandwidth / 1e9,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        )

    @property
    def busy(self) -> bool:
        """Whether others may have wanted the cores that were measured."""
        return self.device == "cpu" and self.load > 0.25 * (os.cpu_count() or 1)


@dataclass
class Record:
    """All that was measured, row by row."""

    machine: Machine
    quick: bool = False
    complete: bool = False
    """False where somebody stopped it."""
    operators: list[OperatorRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    scaling: list[ScalingRow] = field(default_factory=list)
    training: list[TrainingRow] = field(default_factory=list)
    art: list[ArtRow] = field(default_factory=list)

    def json(self) -> str:
        """As JSON, with no number that is not finite."""
        return json.dumps(asdict(self), indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    def markdown(self) -> str:
        """As Markdown tables that are read as well in a terminal."""
        machine = self.machine
        lines = [
            f"{machine.hardware}, {machine.device}, {machine.threads} CPU threads, {machine.kernels} kernels, "
            f"torch {machine.torch_version}, wasserball {machine.wasserball_version}, "
            f"{machine.gigabytes_a_second:.3g} GB/s copied (read and written together)"
        ]
        if machine.busy:
            lines.append(
                f"The machine was busy just before (load {machine.load:.1f}). If it still was: that slows the plain "
                "algorithms down more than wasserball, and ratios come out too high."
            )
        if self.quick:
            lines.append("Sizes far too small to mean anything: the quick run.")
        if not self.complete:
            lines.append("Stopped before the end.")
        parts = [self._operators(), self._steps(), self._scaling(), self._training(), self._art()]
        return "\n\n".join([*lines, *(part for part in parts if part)]) + "\n"

    def _operators(self) -> str:
        if not self.operators:
            return ""
        headings = ["data", "operator", "ms", "paper ms", "ratio", "unspent", "paper", "over the floor", "MB a sample"]
        rows = [
            [
                f"{row.data} ×{row.batch}",
                row.operator,
                short(row.milliseconds),
                short(row.paper_milliseconds),
                f"{short(row.ratio)}×",
                f"{row.unspent:.0e}",
                f"{row.paper_unspent:.0e}",
                f"{short(row.over_floor)}×",
                short(row.megabytes_a_sample),
            ]
            for row in self.operators
        ]
        legend = (
            "Beside the paper's algorithms, written plainly, on the same problem: a step and the projection by "
            "bisection (without the box, for box_step too), the entropic oracle by bisection (γ=1e-3), and for "
            f"project_box its App. G with {BOX_ROUNDS} rounds. In a loop: arguments not checked, ten calls in "
            f"a row, the plan put into the "
            "same place each time. Unspent: the largest share of a budget that is left (or exceeded). The floor: to "
            "read and write the plan once; for the oracle, which keeps none, the images."
        )
        return f"## Operators\n\n{table(headings, rows, left=2)}\n\n{legend}"

    def _steps(self) -> str:
        if not self.steps:
            return ""
        headings = ["model", "attack", "step ms", "model ms", "step / model", "plain ms", "plain / step"]
        headings += ["plan buffers", "image buffers", "fooled"]
        rows = [
            [
                f"{row.model} ×{row.batch}",
                row.attack,
                short(row.milliseconds),
                short(row.model_milliseconds),
                f"{row.over_model:.2f}×",
                short(row.plain_milliseconds),
                f"{short(row.ratio)}×",
                f"{row.plan_buffers:.2f}",
                f"{row.image_buffers:.1f}",
                str(row.fooled),
            ]
            for row in self.steps
        ]
        legend = (
            "A step of a whole attack, with all its bookkeeping; the model: its own forward and backward pass; plain: "
            "that pass and the paper's algorithm without the box. Buffers: peak memory beyond the model's own, in "
            "plans and in images of the batch. Fooled: samples that left early, after which steps are cheaper."
        )
        return f"## Attack steps\n\n{table(headings, rows, left=2)}\n\n{legend}"

    def _scaling(self) -> str:
        if not self.scaling:
            return ""
        headings = ["along", "operator", "at", "ms", "slope", "window 9 / 5"]
        rows = [
            [
                row.axis,
                row.operator,
                row.where,
                " ".join(f"{size}:{short(time)}" for size, time in zip(row.sizes, row.milliseconds, strict=True)),
                f"{row.slope:.2f}",
                f"{row.ratio(9, 5):.2f}×" if row.axis == "window" else "",
            ]
            for row in self.scaling
        ]
        legend = "Slope: of log time over log size by least squares; 1 is linear. The size of a window is its side."
        return f"## Scaling\n\n{table(headings, rows, left=4)}\n\n{legend}"

    def _training(self) -> str:
        if not self.training:
            return ""
        headings = ["network", "attack", "step ms", "standard ms", "ratio", "MB a sample"]
        rows = [
            [
                f"{row.network} ×{row.batch}",
                f"{row.attack}{', replayed' if row.replayed else ''}",
                short(row.milliseconds),
                short(row.standard_milliseconds),
                f"{row.ratio:.2f}×",
                f"{row.megabytes_a_sample:.3f}",
            ]
            for row in self.training
        ]
        legend = (
            "A step of adversarial training, attack included, beside one of standard training of the same network on "
            "the same images. Replayed: the attack is a recorded CUDA graph. Memory: the peak beyond a standard step's."
        )
        return f"## Training\n\n{table(headings, rows, left=2)}\n\n{legend}"

    def _art(self) -> str:
        if not self.art:
            return ""
        headings = ["package", "attack", "eps", "accuracy", "valid", "accuracy, valid only", "valid to 1%"]
        headings += ["accuracy, those only", "largest distance", "s an image", "beside PGD"]
        rows = [[row.package, row.attack, f"{row.eps:g}", *_outcome(row)] for row in self.art]
        legend = (
            f"{self.art[0].images} bundled digits, the bundled model, at most {self.art[0].steps} steps each. Valid: "
            "in ball and box with its mass kept, by our verifier, from the images alone. Accuracy, valid only: where "
            "nothing else counts as fooling the model. To 1%: of mass and budget. Times: medians of ours, which are "
            "short, one run of ART's each."
        )
        return f"## Beside ART's Wasserstein attack\n\n{table(headings, rows, left=2)}\n\n{legend}"

    def write(self, folder: Path) -> list[Path]:
        """``bench.md``, ``bench.json`` and, of what there is to draw, ``bench.png``; that last, since it needs
        matplotlib."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"bench.{ending}" for ending in ("md", "json", "png")]
        paths[0].write_text(self.markdown(), encoding="utf-8")
        paths[1].write_text(self.json(), encoding="utf-8")
        if not (self.operators or self.steps or self.scaling):
            return paths[:2]
        from wasserball.benchmarks.figure import draw

        draw(self).savefig(paths[2])
        return paths


def _outcome(row: ArtRow) -> list[str]:
    """What an attack came to; of one that gave up only why: its figures would be those of the clean images."""
    if row.failure:
        return [row.failure, *"–––––––"]
    return [
        *(f"{share:.1%}" for share in (row.accuracy, row.valid, row.valid_accuracy, row.lenient, row.lenient_accuracy)),
        "none" if row.largest_distance is None else f"{row.largest_distance:.3f}",
        short(row.seconds_an_image),
        f"{short(row.ratio)}×",
    ]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """A Markdown table, the first ``left`` columns aligned to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    sides = ["<" if index < left else ">" for index in range(len(widths))]

    def line(cells: Sequence[str]) -> str:
        padded = (f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if side == "<" else "-" * (width - 1) + ":" for side, width in zip(sides, widths, strict=True)]
    return "\n".join(line(cells) for cells in (headings, rule, *rows))


def short(number: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
