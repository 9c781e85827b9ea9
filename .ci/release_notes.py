"""Prints what the changelog says of the version that a tag names, and refuses a tag that is not this version's.

python3 .ci/release_notes.py v1.2.3 > notes.md
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def package_version(source: str) -> str:
    """The one place where the version is written: ``__version__`` of the package."""
    [version] = re.findall(r'^__version__ = "([^"]+)"', source, re.M)
    return str(version)


def release_notes(tag: str, version: str, changelog: str) -> str:
    """The changelog's section of ``version``, as the text of a release on GitHub."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"version {version} is none to release: it must be three numbers, such as 1.2.3")
    if tag != f"v{version}":
        raise ValueError(f"tag {tag} does not name the version of the package, which is {version}")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    sections = re.findall(rf"{heading}(.*?)(?=^## |^\[[^\]]+\]: |\Z)", changelog, re.M | re.S)
    if len(sections) != 1:
        raise ValueError(f"CHANGELOG.md must have one section '## [{version}] - YYYY-MM-DD', it has {len(sections)}")
    if not re.search(r"^- ", sections[0], re.M):
        raise ValueError(f"CHANGELOG.md lists nothing below '## [{version}]'")
    # GitHub shows each line break of a release's text, so the lines of an entry become one.
    return re.sub(r"\n +(?! |- )", " ", sections[0].strip()) + "\n"


def main() -> None:
    """Print the notes for the tag that is given, or say why there is nothing to release."""
    if len(sys.argv) != 2:
        sys.exit("usage: python3 .ci/release_notes.py TAG")
    version = package_version((ROOT / "src/wasserball/__init__.py").read_text(encoding="utf-8"))
    try:
        sys.stdout.write(release_notes(sys.argv[1], version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    except ValueError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
