"""Folders that outlive the process that writes them: begun, interrupted, gone on with by the same job and no other."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path


class StoreError(ValueError):
    """A folder, or a file in it, that is not what it should be. The message names it."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """All that the outcome of a job depends on, as the ``config.json`` of its folder keeps it."""

    def json(self, command: str) -> str:
        """As ``config.json``, with the command that repeats the job."""
        return json.dumps(asdict(self) | {"command": command}, indent=2, ensure_ascii=False) + "\n"

    def differences(self, other: "Identity") -> list[str]:
        """In what two of a kind differ, in words."""
        names = [item.name for item in fields(self)]
        return differ(*({name: getattr(job, name) for name in names} for job in (self, other)))


def differ(mine: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """Which values differ, in words."""
    return [
        f"{name} is {_short(mine[name])}, there {_short(theirs.get(name))}"
        for name in mine
        if mine[name] != theirs.get(name)
    ]


def claim(folder: Path, kind: str, job: Identity, command: str, there: Callable[[], Identity], *, resume: bool) -> None:
    """Make the folder that of a new job or, with ``resume``, see that the one ``there`` is the same."""
    if (folder / "config.json").exists():
        if not resume:
            raise StoreError(f"{folder} holds a {kind} already: resume it (--resume), or choose another folder")
        if differences := job.differences(there()):
            raise StoreError(f"{folder} holds a {kind} of another configuration: {'; '.join(differences)}")
    else:
        if folder.exists() and not (folder.is_dir() and all(map(_is_leftover, folder.iterdir()))):
            raise StoreError(f"{folder} must be a new or an empty folder, or that of a {kind} to resume")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "config.json", job.json(command).encode())
    for leftover in filter(_is_leftover, folder.rglob(".*")):
        leftover.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; what was there before stays until then. An error names the file."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise OSError(error.errno, f"could not be written ({error.strerror})", str(path)) from error
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


@contextmanager
def locked(folder: str | os.PathLike[str], *, wanted: bool) -> Iterator[None]:
    """The folder for this process alone, where the system has such locks; the lock is gone with the process."""
    try:
        import fcntl
    except ImportError:
        wanted = False
    if not wanted:
        yield
        return
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise StoreError(f"{folder} must be a folder, got a file") from None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreError(f"{folder} is being written to by another process") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(descriptor)


def _is_leftover(path: Path) -> bool:
    """Whether this is what a process that was killed had not finished writing."""
    return path.name.startswith(".") and path.suffix == ".part"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
