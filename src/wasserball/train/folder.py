"""The folder of a training: what it takes to go on after the last finished epoch, and the best weights."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from wasserball.evaluate.folder import StoreError, claim, write_whole
from wasserball.train.average import Average
from wasserball.train.history import Epoch, best_of
from wasserball.train.memory import Memory
from wasserball.train.radius import OwnRadii
from wasserball.train.setting import FORMAT, Setting
from wasserball.zoo.weights import put_weights

MODEL, OPTIMIZER, AVERAGE, RADII, MEMORY = "model.", "optimizer.", "average.", "radii", "memory"
"""Before the names of the tensors in ``last.safetensors``."""


@dataclass(frozen=True)
class State:
    """All that changes from step to step."""

    model: nn.Module
    optimizer: Optimizer
    average: Average | None
    radii: OwnRadii | None
    memory: Memory | None

    def judged(self) -> AbstractContextManager[None]:
        """The model with the weights that are judged and kept."""
        return nullcontext() if self.average is None else self.average.in_place()


class Folder:
    """``config.json``, ``last.safetensors``, ``best.safetensors`` and ``metrics.jsonl``.

    An epoch is finished when ``last.safetensors`` says so, which has all in one file: weights, state of the optimiser
    and history. The others are made from it; if the process dies before they are, they are made when it goes on.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config, self.last, self.best, self.metrics = (
            self.path / name for name in ("config.json", "last.safetensors", "best.safetensors", "metrics.jsonl")
        )

    def begin(self, setting: Setting, command: str, *, resume: bool) -> None:
        """Make it that of a new training, or with ``resume`` see that it is that of the same one."""
        claim(self.path, "training", setting, command, self._setting, resume=resume)

    def save(self, state: State, history: Sequence[Epoch]) -> None:
        """Note that an epoch is finished, the last one of the history; with none, keep the weights of the beginning."""
        tensors = {f"{MODEL}{name}": _copy(tensor) for name, tensor in state.model.state_dict().items()}
        tensors |= {f"{OPTIMIZER}{name}": _copy(tensor) for name, tensor in _flat(state.optimizer)}
        if state.average is not None:
            tensors |= {f"{AVERAGE}{name}": _copy(tensor) for name, tensor in state.average.tensors.items()}
        if state.radii is not None:
            tensors[RADII] = _copy(state.radii.values)
        if state.memory is not None:
            tensors[MEMORY] = _copy(state.memory.values)
        write_whole(self.last, save(tensors, {"history": json.dumps([asdict(record) for record in history])}))
        self._derive(tensors, history)

    def restore(self, state: State, *, derive: bool) -> tuple[Epoch, ...]:
        """Put everything back to where it was after the last finished epoch; returns the history. With ``derive``
        files that were lost are made again."""
        try:
            with safe_open(self.last, framework="pt") as file:
                history = tuple(Epoch(**record) for record in json.loads(file.metadata()["history"]))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{self.last} is damaged or no file of a training ({error})") from error
        put_weights(state.model, _under(MODEL, tensors), name=type(state.model).__name__, file=self.last)
        if state.average is not None:
            for name, tensor in _under(AVERAGE, tensors).items():
                state.average.tensors[name].copy_(tensor)
        if state.radii is not None and RADII in tensors:
            state.radii.restore(tensors[RADII])
        if state.memory is not None and MEMORY in tensors:
            state.memory.restore(tensors[MEMORY])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under(OPTIMIZER, tensors).items():
            number, _, part = name.partition(".")
            moments.setdefault(int(number), {})[part] = tensor
        state.optimizer.load_state_dict(state.optimizer.state_dict() | {"state": moments})
        if derive:
            self._derive(tensors, history)
        return history

    def _derive(self, tensors: Mapping[str, Tensor], history: Sequence[Epoch]) -> None:
        """Write what follows from ``last.safetensors``. Earlier epochs have had their turn to be the best."""
        if not history:
            return
        if best_of(history) is history[-1]:
            weights = _under(AVERAGE, tensors) or _under(MODEL, tensors)
            write_whole(self.best, save(weights, {"epoch": str(history[-1].epoch)}))
        write_whole(self.metrics, "".join(json.dumps(asdict(record)) + "\n" for record in history).encode())

    def _setting(self) -> Setting:
        try:
            content = json.loads(self.config.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise StoreError(f"{self.config} must be of format {FORMAT}, got {content['format']!r}")
            return Setting.parse(content)
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self.config} must be the configuration of a training, got {error!r}") from error


def _flat(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The state of an optimiser by parameter and name; all of it tensors, the rest is set anew in each step."""
    for number, parts in optimizer.state_dict()["state"].items():
        yield from ((f"{number}.{name}", tensor) for name, tensor in parts.items() if isinstance(tensor, Tensor))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _copy(tensor: Tensor) -> Tensor:
    """On the CPU and with memory of its own: safetensors refuses tensors that share theirs, as tied weights do."""
    return tensor.detach().to("cpu", copy=True).contiguous()
