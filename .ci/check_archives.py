"""Checks a wheel and an sdist before anybody installs them: what they hold, how large they are, what they say they are.

python3 .ci/check_archives.py dist/
"""

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path, PurePosixPath

from release_notes import package_version

ROOT = Path(__file__).parents[1]
LIMIT = 5_000_000
"""Bytes, of a wheel or an sdist as it is downloaded, and of a wheel unpacked."""
KINDS = {".py", ".typed", ".cu", ".cuh", ".jinja", ".css", ".js", ".safetensors", ".md"}
"""Of the package's files. Whatever else lies in its folders was left there by accident, or is new and belongs here."""
IN_SDIST = [
    *("PKG-INFO", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "constraints.txt"),
    *("CONTRIBUTING.md", "Makefile", "mkdocs.yml", ".ci/run"),
]
HIDDEN = {".ci", ".github", ".gitignore"}
"""What an sdist may hold of names that begin with a dot."""
NOT_SOURCE = {"__pycache__", "build", "dist", "out", "runs", "site"}
FIELDS = {
    "Metadata-Version": "2.4",  # the first with a licence expression; not all tools that upload and install know more
    "Name": "wasserball",
    "License-Expression": "MIT",
    "License-File": "LICENSE",
    "Requires-Python": ">=3.11",
    "Description-Content-Type": "text/markdown",
}
NOT_ABSOLUTE = r"(?!https?://|#)"
RELATIVE = re.compile(rf"\]\({NOT_ABSOLUTE}([^)]*)|(?:src|href)=[\"']{NOT_ABSOLUTE}([^\"']*)")


def source_files(root: Path) -> set[str]:
    """The files that make up the package and its tests, from the root."""
    folders = (root / "src" / "wasserball", root / "tests")
    files = (file.relative_to(root) for folder in folders for file in folder.rglob("*") if file.is_file())
    return {file.as_posix() for file in files if "__pycache__" not in file.parts}


def metadata_problems(where: str, raw: bytes, version: str) -> Iterator[str]:
    """What is wrong with a METADATA or PKG-INFO."""
    metadata = message_from_bytes(raw)
    for field, wanted in {**FIELDS, "Version": version}.items():
        if metadata[field] != wanted:
            yield f"{where}: {field} is {metadata[field]}, not {wanted}"
    text = raw.decode("utf-8").partition("\n\n")[2]
    if not text.strip():
        yield f"{where}: there is no description"
    for found in RELATIVE.finditer(text):
        yield f"{where}: {found[1] or found[2]} in the description leads nowhere on a package index"


def size_problems(what: str, size: int) -> Iterator[str]:
    """Whether it is too large."""
    if size > LIMIT:
        yield f"{what} takes {size:,} bytes, more than {LIMIT:,}"


def wheel_problems(wheel: Path, version: str, sources: set[str]) -> Iterator[str]:
    """What is wrong with a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = {item.filename: item.file_size for item in archive.infolist()}
        information = f"wasserball-{version}.dist-info/"
        for name in sorted(files):
            kind = PurePosixPath(name).suffix
            if not name.startswith(information) and not (name.startswith("wasserball/") and kind in KINDS):
                yield f"{wheel.name} holds {name}, which is not of the package"
        package = {name.removeprefix("src/") for name in sources if name.startswith("src/")}
        needed = {*package, f"{information}METADATA", f"{information}licenses/LICENSE"}
        yield from (f"{wheel.name} lacks {name}" for name in sorted(needed - set(files)))
        yield from size_problems(f"{wheel.name}, unpacked,", sum(files.values()))
        if f"{information}METADATA" in files:
            yield from metadata_problems(wheel.name, archive.read(f"{information}METADATA"), version)


def sdist_problems(sdist: Path, version: str, sources: set[str]) -> Iterator[str]:
    """What is wrong with an sdist."""
    folder = f"wasserball-{version}/"
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers() if not member.isdir()]
        for name in names:
            parts = PurePosixPath(name.removeprefix(folder)).parts
            hidden = any(part.startswith(".") and part not in HIDDEN for part in parts)
            if not name.startswith(folder) or hidden or NOT_SOURCE & set(parts[:-1]):
                yield f"{sdist.name} holds {name}, which is no source"
        needed = {folder + name for name in (*sources, *IN_SDIST)}
        yield from (f"{sdist.name} lacks {name}" for name in sorted(needed - set(names)))
        if f"{folder}PKG-INFO" in names:
            member = archive.extractfile(f"{folder}PKG-INFO")
            assert member is not None
            yield from metadata_problems(sdist.name, member.read(), version)


def problems(dist: Path, root: Path = ROOT) -> Iterator[str]:
    """All that is wrong with the wheel and the sdist in ``dist``, which were made from ``root``."""
    source = (root / "src/wasserball/__init__.py").read_text(encoding="utf-8")
    version = package_version(source)
    wheel, sdist = dist / f"wasserball-{version}-py3-none-any.whl", dist / f"wasserball-{version}.tar.gz"
    found = sorted(file.name for file in dist.iterdir())
    if found != sorted([wheel.name, sdist.name]):
        yield f"{dist} holds {', '.join(found) or 'nothing'}, not {wheel.name} and {sdist.name}"
        return
    sources = source_files(root)
    for file in (wheel, sdist):
        yield from size_problems(file.name, file.stat().st_size)
    yield from wheel_problems(wheel, version, sources)
    yield from sdist_problems(sdist, version, sources)


def main() -> None:
    """Print the problems, or the sizes where there are none."""
    if len(sys.argv) != 2:
        sys.exit("usage: python3 .ci/check_archives.py DIST")
    dist = Path(sys.argv[1])
    found = list(problems(dist))
    if found:
        sys.exit("\n".join(f"Error: {problem}" for problem in found))
    for file in sorted(dist.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB, complete")


if __name__ == "__main__":
    main()
