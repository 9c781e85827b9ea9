"""What the experiments have in common: their options, a ledger of results that loses nothing, and what is made of it.

An experiment measures rows. Each is in ``NAME.json`` as soon as it is there, with the run that it is from: commit,
command, hardware, versions and seed. What is there is not measured again, so that an experiment can be stopped at any
time, and go on somewhere else. Tables (``NAME.md``) and pictures (``NAME.png``) are made from that file alone.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

import wasserball as wb
from wasserball.checks import check_count
from wasserball.evaluate.folder import locked
from wasserball.hardware import hardware_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]

Row = dict[str, Any]


@dataclass
class Ledger:
    """The results of an experiment, in a file that is whole at any time."""

    path: Path
    run: Mapping[str, Any]
    """Where, how and by what the rows that are measured now are measured."""
    runs: list[Mapping[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, run: Mapping[str, Any]) -> "Ledger":
        """With the rows that are there already."""
        if not path.exists():
            return cls(path, run)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(path, run, list(content["runs"]), list(content["rows"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} must be the results of an experiment, or not be there: {error}") from error

    def row(self, key: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> Row:
        """What is known under ``key``, measured now if need be."""
        known = self.find(**key)
        if known:
            return known[0]
        found = measure()
        if self.run not in self.runs:
            self.runs.append(self.run)
        self.rows.append({**key, **found, "run": self.runs.index(self.run)})
        self._save()
        return self.rows[-1]

    def find(self, **key: Any) -> list[Row]:
        """The rows that have these values."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in key.items())]

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A line for each run and row, so that a change is seen as what it is.
        runs, rows = (
            ",\n".join(json.dumps(item, ensure_ascii=False) for item in items) for items in (self.runs, self.rows)
        )
        part = self.path.with_suffix(".part")
        part.write_text(f'{{"runs": [\n{runs}\n],\n"rows": [\n{rows}\n]}}\n', encoding="utf-8")
        part.replace(self.path)


@dataclass(frozen=True)
class Setting:
    """What was asked for."""

    options: argparse.Namespace
    device: torch.device
    console: Console

    @property
    def quick(self) -> bool:
        """Whether few images must do."""
        return bool(self.options.quick)

    def data(self, *parts: str) -> Path:
        """A file or folder of the data."""
        found = Path(self.options.data, *parts)
        if not found.exists():
            raise FileNotFoundError(f"there is no {found}: --data must be a folder that has {Path(*parts)}")
        return found


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    summary: str
    measure: Callable[[Setting, Ledger], None]
    table: Callable[[Ledger], str]
    """Markdown."""
    picture: "Callable[[Ledger], Figure] | None" = None
    add_options: Callable[[argparse.ArgumentParser], None] | None = None

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """As a command."""
        parser = argparse.ArgumentParser(prog=f"wasserball reproduce {self.name}", description=self.summary)
        parser.add_argument("--quick", action="store_true", help="little of it, to see that it works: minutes at most")
        parser.add_argument("--data", type=Path, default=Path("data"), help="the folder with data and models")
        parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--out", type=Path, help="where to put and look for results (default: out/reproduction)")
        if self.add_options is not None:
            self.add_options(parser)
        options = parser.parse_args(arguments)
        console = Console()
        # Else convolutions on a GPU see 10 bits of a number, and what fools them need not fool the model elsewhere.
        torch.backends.cudnn.allow_tf32 = False
        words = shlex.join(["wasserball", "reproduce", self.name, *(sys.argv[1:] if arguments is None else arguments)])
        try:
            setting = Setting(options, torch.device(options.device), console)
            out = options.out or Path("out", "reproduction", *(["quick"] if options.quick else []))
            with alone(out / self.name):
                ledger = Ledger.open(out / f"{self.name}.json", provenance(words, setting.device, options.seed))
                self.measure(setting, ledger)
        except KeyboardInterrupt:
            console.print("Stopped; what was finished is kept, and the same command goes on there.")
            return 130
        except (OSError, ValueError) as error:
            console.print(f"Error: {error}", soft_wrap=True, markup=False)
            return 1
        console.print(f"Written to {', '.join(map(str, self.write(ledger)))}", soft_wrap=True)
        return 0

    def write(self, ledger: Ledger) -> list[Path]:
        """What the rows come to, beside them."""
        paths = [ledger.path, ledger.path.with_suffix(".md")]
        paths[1].write_text(self.table(ledger) + "\n", encoding="utf-8")
        if self.picture is not None:
            paths.append(ledger.path.with_suffix(".png"))
            self.picture(ledger).savefig(paths[2], dpi=110)
        return paths


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else does this experiment here, or each would write its rows over the other's. The lock is the folder of
    its examples, which goes where there are none."""
    with locked(folder, wanted=True):
        try:
            yield
        finally:
            with suppress(OSError):
                folder.rmdir()


def provenance(command: str, device: torch.device, seed: int) -> dict[str, Any]:
    """How and on what something was measured."""
    return {
        "command": command,
        "commit": commit(),
        "hardware": hardware_name(device),
        "torch": version("torch"),
        "wasserball": wb.__version__,
        "seed": seed,
        "date": datetime.now(UTC).date().isoformat(),
    }


def commit() -> str:
    """Of the repository, and whether it had been changed since."""
    try:
        git = ["git", "-C", str(ROOT)]
        name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """A table; all columns but the first to the right where they are numbers."""
    lines = [headings, ["---", *("---:" if numbers else "---" for _ in headings[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def whole_number(text: str) -> int:
    """For options that count something."""
    try:
        return check_count("it", int(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}") from error
