"""The run folder: shards of rows and images, each written whole or not at all, and how they are read again."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from wasserball.evaluate.folder import StoreError, claim, write_whole
from wasserball.evaluate.plans import SparsePlans
from wasserball.evaluate.setting import FORMAT, Setting, Unit
from wasserball.plan import pack_cost, unpack_cost
from wasserball.threat import LocalCost

if TYPE_CHECKING:
    import pyarrow as pa

LEVELS = 255


@dataclass(frozen=True, eq=False)
class Batch:
    """The images of one unit, as they were stored."""

    unit: Unit
    clean: Tensor
    adversarial: Tensor
    plans: SparsePlans | None
    """None where the attack has no plan to show."""
    cost: LocalCost


class Run:
    """A run folder: ``config.json``, ``shards/*.parquet``, ``images/*.safetensors``, ``summary.json``, ``report.html``.

    A unit of work counts as done when its shard is there. The images are written before, so that no shard is without.

    >>> data = wb.zoo.load_data("mnist-sample")
    >>> _ = wb.evaluate("mnist-standard", data, attacks=["pgd"], eps=[0.3], out="run", limit=4, probes=0)
    >>> rows = wb.Run.open("run").rows(columns=["index", "label", "success"])
    >>> rows.num_rows, rows["label"].to_pylist()
    (4, [7, 2, 1, 0])
    """

    def __init__(self, folder: str | os.PathLike[str], setting: Setting, command: str) -> None:
        self.folder, self.setting, self.command = Path(folder), setting, command

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Run":
        """A run that was begun before."""
        path = Path(folder) / "config.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.get("format") != FORMAT:
                raise StoreError(f"{path} must be of format {FORMAT}, got {content.get('format')!r}")
            return cls(folder, Setting.parse(content), str(content["command"]))
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(f"{folder} must be the folder of an evaluation, but has no config.json") from None
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{path} must be the configuration of an evaluation, got {error!r}") from error

    @classmethod
    def begin(cls, folder: str | os.PathLike[str], setting: Setting, command: str, *, resume: bool) -> "Run":
        """A new run, or with ``resume`` what there is of the same one."""
        path = Path(folder)
        claim(path, "run", setting, command, lambda: cls.open(path).setting, resume=resume)
        for name in ("shards", "images"):
            (path / name).mkdir(exist_ok=True)
        return cls.open(path)

    def shard(self, unit: Unit) -> Path:
        """Where the rows of a unit are."""
        return self.folder / "shards" / f"{unit.stem}.parquet"

    def images(self, unit: Unit) -> Path:
        """Where the adversarial images of a unit are."""
        return self.folder / "images" / f"{unit.stem}.safetensors"

    def clean(self, unit: Unit) -> Path:
        """Where the clean images of a unit are, which it shares with all other units on these samples."""
        return self.folder / "images" / f"clean-{unit.first:06d}.safetensors"

    def missing(self) -> list[Unit]:
        """What is still to be done. A shard that is there but cannot be read is an error, not work to be done anew."""
        done = {path.name for path in (self.folder / "shards").iterdir()}
        left = []
        for unit in self.setting.units():
            if self.shard(unit).name not in done:
                left.append(unit)
                continue
            self._check_length(unit)
        return left

    def write(self, batch: Batch, rows: "pa.Table") -> None:
        """Put a unit that is done into the folder."""
        import pyarrow.parquet as pq

        unit = batch.unit
        if not self.clean(unit).exists():
            write_whole(self.clean(unit), save({"clean": _in_bytes(batch.clean)}))
        metadata, tensors = pack_cost(batch.cost)
        metadata |= {"unit": json.dumps(unit._asdict())}
        tensors |= {"adversarial": batch.adversarial.cpu().contiguous()}
        if batch.plans is not None:
            tensors |= batch.plans.tensors()
        write_whole(self.images(unit), save(tensors, metadata))
        sink = BytesIO()
        pq.write_table(rows, sink, compression="zstd")
        write_whole(self.shard(unit), sink.getvalue())

    def read(self, unit: Unit) -> Batch:
        """The images of a unit that is done."""
        with _opened(self.clean(unit)) as file:
            clean = file.get_tensor("clean")
            clean = clean if clean.is_floating_point() else clean.float() / LEVELS
        with _opened(self.images(unit)) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            cost = unpack_cost(file)
            plans = SparsePlans.of(tensors, cost.plan_shape(clean)) if "plan_values" in tensors else None
            adversarial = tensors["adversarial"]
            if (
                adversarial.shape != clean.shape
                or len(clean) != unit.last - unit.first
                or not isinstance(cost, LocalCost)
            ):
                raise ValueError(f"it holds {tuple(adversarial.shape)} beside clean images {tuple(clean.shape)}")
        return Batch(unit, clean, adversarial, plans, cost)

    def rows(self, units: Sequence[Unit] | None = None, columns: Sequence[str] | None = None) -> "pa.Table":
        """The rows of all units that are done (or of some of them), in the order of the work."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = []
        for unit in self.done() if units is None else units:
            path = self.shard(unit)
            try:
                tables.append(pq.read_table(path, columns=None if columns is None else list(columns)))
            except (OSError, pa.ArrowException) as error:
                raise _damaged(path, error) from error
        if not tables:
            raise StoreError(f"{self.folder} holds no finished batch yet")
        return pa.concat_tables(tables).combine_chunks()

    def done(self) -> list[Unit]:
        """The units that are done."""
        there = {path.name for path in (self.folder / "shards").iterdir()}
        return [unit for unit in self.setting.units() if self.shard(unit).name in there]

    @property
    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` says."""
        path = self.folder / "summary.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise StoreError(f"{self.folder} has no summary.json: the run is not finished, resume it") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"{path} must be JSON: {error}") from error
        return content

    def _check_length(self, unit: Unit) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.shard(unit)
        try:
            length = pq.read_metadata(path).num_rows
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from error
        if length != unit.last - unit.first:
            raise StoreError(f"{path} must hold {unit.last - unit.first} rows, got {length}")
        for images in (self.clean(unit), self.images(unit)):
            if not images.exists():
                raise StoreError(f"{images} is missing, though {path.name} is there; delete that to do the batch again")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; whatever is wrong with it is said with its name."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise StoreError(f"{path} is missing") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path} is damaged or no file of a run ({error}); delete it and resume to do that batch again")


def _in_bytes(images: Tensor) -> Tensor:
    """As bytes where they hold just these values, else as they are."""
    images = images.cpu().contiguous()
    levels = (images * LEVELS).round().to(torch.uint8)
    return levels if torch.equal(levels.float() / LEVELS, images) else images
