"""What a release rests on: a light import, its notes, the checks of its archives, and workflows that do as they should.

The archives themselves are built, checked and tried by ``make dist``.
"""

import io
import os
import random
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import check_archives
import release_notes
import wasserball

ROOT = Path(__file__).parents[1]
HEAVY = [
    *(
        "IPython",
        "PIL",
        "art",
        "autoattack",
        "datasets",
        "duckdb",
        "foolbox",
        "jinja2",
        "matplotlib",
        "mkdocs",
        "numba",
    ),
    *("ot", "pandas", "pyarrow", "rich", "robustbench", "scipy", "sklearn", "sympy", "timm", "torchattacks"),
    *("torchvision", "typer"),
]


def test_the_import_brings_in_nothing_heavy() -> None:
    """Time is not asserted anywhere; what takes time is."""
    code = f"""
import sys
import torch
before = set(sys.modules)
import wasserball
print([name for name in {HEAVY} if name in sys.modules and name not in before])
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "[]", run.stderr


# The notes

CHANGELOG = """# Changelog

## [Unreleased]

### Added

- Not yet.

## [1.2.0] - 2026-05-01

### Added

- One entry
  on two lines,
  - with one below it
    that goes on.

### Fixed

- Another.

## [1.1.0] - 2026-04-01

- Old.

## [1.0.0] - 2026-03-01

[1.2.0]: https://example.org/1.2.0
"""


def test_the_notes_are_the_section_of_the_version_an_entry_a_line() -> None:
    expected = (
        "### Added\n\n- One entry on two lines,\n  - with one below it that goes on.\n\n### Fixed\n\n- Another.\n"
    )
    assert release_notes.release_notes("v1.2.0", "1.2.0", CHANGELOG) == expected
    assert release_notes.release_notes("v1.1.0", "1.1.0", CHANGELOG) == "- Old.\n"


@pytest.mark.parametrize(
    ("tag", "version", "complaint"),
    [
        ("v1.2.1", "1.2.0", "tag v1.2.1 does not name the version"),
        ("1.2.0", "1.2.0", "tag 1.2.0 does not name the version"),
        ("v1.3.0.dev0", "1.3.0.dev0", "version 1.3.0.dev0 is none to release"),
        ("v1.3.0", "1.3.0", "one section '## [1.3.0] - YYYY-MM-DD', it has 0"),
        ("v112.0.0", "112.0.0", "it has 0"),
        ("v1.0.0", "1.0.0", "lists nothing below '## [1.0.0]'"),
    ],
)
def test_what_is_no_release_is_refused(tag: str, version: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        release_notes.release_notes(tag, version, CHANGELOG)


def test_a_section_that_is_there_twice_or_has_no_date_is_refused() -> None:
    with pytest.raises(ValueError, match="it has 2"):
        release_notes.release_notes("v1.1.0", "1.1.0", CHANGELOG + CHANGELOG)
    with pytest.raises(ValueError, match="it has 0"):
        release_notes.release_notes("v1.1.0", "1.1.0", CHANGELOG.replace("[1.1.0] - 2026-04-01", "[1.1.0]"))


def test_our_own_changelog_and_version_can_be_read() -> None:
    assert (
        release_notes.package_version(Path(wasserball.__file__).read_text(encoding="utf-8")) == wasserball.__version__
    )
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.count("\n## [Unreleased]\n") == 1
    released = changelog.replace("## [Unreleased]", "## [7.0.0] - 2030-01-01")
    lines = release_notes.release_notes("v7.0.0", "7.0.0", released).splitlines()
    assert lines[0].startswith("### ")
    assert all(re.match(r"### | *- |$", line) for line in lines)


def test_the_notes_are_refused_as_the_workflow_asks_for_them() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "release_notes.py"), "v0.0.0"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("Error: ")
    assert not run.stdout


# The archives

Files = dict[str, bytes]
INFORMATION = "wasserball-1.2.0.dist-info/"
FOLDER = "wasserball-1.2.0/"
PACKAGE = {
    "wasserball/__init__.py": b'"""A package."""\n\n__version__ = "1.2.0"  # first\n',
    "wasserball/py.typed": b"",
    "wasserball/kernels/box.cu": b"kernel",
    "wasserball/zoo/digits.safetensors": b"digits",
}


def metadata() -> bytes:
    fields = {**check_archives.FIELDS, "Version": "1.2.0"}
    header = "".join(f"{field}: {value}\n" for field, value in fields.items())
    return f"{header}\n# wasserball\n\n[The paper](https://example.org/paper) and [below](#below).\n".encode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source tree, with a cache that Python left in it."""
    sources = {f"src/{name}": content for name, content in PACKAGE.items()}
    for name, content in {**sources, "tests/test_it.py": b"", "src/wasserball/__pycache__/x.pyc": b""}.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path / "root"


def archives() -> tuple[Files, Files]:
    """A wheel and an sdist with which nothing is wrong."""
    wheel = {**PACKAGE, f"{INFORMATION}METADATA": metadata(), f"{INFORMATION}licenses/LICENSE": b"MIT"}
    sdist = {FOLDER + name: b"" for name in (*check_archives.IN_SDIST, "tests/test_it.py", ".gitignore", ".ci/dist")}
    sdist |= {f"{FOLDER}src/{name}": content for name, content in PACKAGE.items()}
    return wheel, sdist | {f"{FOLDER}PKG-INFO": metadata()}


def write(dist: Path, wheel: Files, sdist: Files) -> Path:
    dist.mkdir()
    with zipfile.ZipFile(dist / "wasserball-1.2.0-py3-none-any.whl", "w") as archive:
        for name, content in wheel.items():
            archive.writestr(name, content)
    with tarfile.open(dist / "wasserball-1.2.0.tar.gz", "w:gz") as tar:
        for name, content in sdist.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return dist


def test_archives_that_are_whole_pass(root: Path, tmp_path: Path) -> None:
    assert list(check_archives.problems(write(tmp_path / "dist", *archives()), root)) == []


def put(name: str, content: bytes = b"") -> Callable[[Files], None]:
    return lambda files: files.update({name: content})


def drop(name: str) -> Callable[[Files], None]:
    return lambda files: files.__delitem__(name)


def edit(name: str, old: bytes, new: bytes) -> Callable[[Files], None]:
    def apply(files: Files) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return apply


ABOUT = f"{INFORMATION}METADATA"
IN_WHEEL = {
    "tests": (put("tests/test_it.py"), "holds tests/test_it.py, which is not of the package"),
    "a cache": (put("wasserball/__pycache__/x.cpython-311.pyc"), "which is not of the package"),
    "a picture": (put("wasserball/zoo/picture.png"), "which is not of the package"),
    "no kernel": (drop("wasserball/kernels/box.cu"), "lacks wasserball/kernels/box.cu"),
    "no types": (drop("wasserball/py.typed"), "lacks wasserball/py.typed"),
    "no digits": (drop("wasserball/zoo/digits.safetensors"), "lacks wasserball/zoo/digits.safetensors"),
    "no licence": (drop(f"{INFORMATION}licenses/LICENSE"), "lacks wasserball-1.2.0.dist-info/licenses/LICENSE"),
    "no metadata": (drop(ABOUT), "lacks wasserball-1.2.0.dist-info/METADATA"),
    "another version": (edit(ABOUT, b"1.2.0", b"1.2.1"), "whl: Version is 1.2.1, not 1.2.0"),
    "unknown metadata": (edit(ABOUT, b"2.4", b"2.9"), "Metadata-Version is 2.9, not 2.4"),
    "a dead link": (edit(ABOUT, b"(#below)", b"(docs/below.md)"), "docs/below.md in the description leads nowhere"),
    "a dead picture": (edit(ABOUT, b"[below]", b'<img src="a.png">['), "a.png in the description leads nowhere"),
    "no description": (edit(ABOUT, metadata().partition(b"\n\n")[2], b""), "there is no description"),
    "too large": (put("wasserball/large.safetensors", bytes(5_000_001)), "unpacked, takes 5,000,"),
}
IN_SDIST = {
    "an environment": (put(f"{FOLDER}.venv/pyvenv.cfg"), "holds wasserball-1.2.0/.venv/pyvenv.cfg, which is no source"),
    "a build": (put(f"{FOLDER}dist/old.whl"), "which is no source"),
    "a stranger": (put("elsewhere/file.py"), "holds elsewhere/file.py, which is no source"),
    "no readme": (drop(f"{FOLDER}README.md"), "lacks wasserball-1.2.0/README.md"),
    "no test": (drop(f"{FOLDER}tests/test_it.py"), "lacks wasserball-1.2.0/tests/test_it.py"),
    "no source": (drop(f"{FOLDER}src/wasserball/py.typed"), "lacks wasserball-1.2.0/src/wasserball/py.typed"),
    "another version": (edit(f"{FOLDER}PKG-INFO", b"1.2.0", b"1.2.1"), "tar.gz: Version is 1.2.1, not 1.2.0"),
    "too large": (put(f"{FOLDER}docs/large.bin", random.Random(0).randbytes(5_000_001)), "tar.gz takes 5,00"),
}
DAMAGE = [
    pytest.param(which, *case, id=f"{('wheel', 'sdist')[which]}, {name}")
    for which, cases in enumerate((IN_WHEEL, IN_SDIST))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("which", "damage", "complaint"), DAMAGE)
def test_what_is_wrong_with_an_archive_is_said(
    which: int, damage: Callable[[Files], None], complaint: str, root: Path, tmp_path: Path
) -> None:
    made = archives()
    damage(made[which])
    found = list(check_archives.problems(write(tmp_path / "dist", *made), root))
    assert any(complaint in problem for problem in found), found


def test_other_files_than_the_two_are_refused(root: Path, tmp_path: Path) -> None:
    dist = write(tmp_path / "dist", *archives())
    (dist / "wasserball-1.1.0.tar.gz").touch()
    [problem] = check_archives.problems(dist, root)
    assert "holds wasserball-1.1.0.tar.gz, wasserball-1.2.0-py3-none-any.whl" in problem


# The workflows

Workflow = dict[Any, Any]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(file for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if file.name != "config.yml")


def read(file: Path) -> Workflow:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def steps(workflow: Workflow) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.fixture(scope="module")
def release() -> Workflow:
    return read(ROOT / ".github" / "workflows" / "release.yml")


def needed(workflow: Workflow, job: str) -> set[str]:
    """The jobs that have succeeded before this one begins."""
    needs = workflow["jobs"][job].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(needed(workflow, name) for name in direct))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_ends_may_little_and_takes_what_it_knows(file: Path) -> None:
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        called = job.get("uses", "").removeprefix("./")
        assert (ROOT / called).is_file() if called else 0 < job["timeout-minutes"] <= 60, name
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"(actions|pypa)/[a-z-]+@(release/)?v\d+", step["uses"])
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "a tag's name must not become a part of a command"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_what_a_workflow_runs_is_there(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for step in steps(read(file)):
        command = step.get("run", "")
        assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets
        for name in re.findall(r"\.ci/\w+(?:\.py)?", command):
            assert (ROOT / name).is_file()
            assert name.endswith(".py") or os.access(ROOT / name, os.X_OK)


def test_nothing_is_published_before_all_is_checked(release: Workflow) -> None:
    jobs = release["jobs"]
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads "on" as true
    assert jobs["check"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in read(ROOT / ".github" / "workflows" / "ci.yml")[True]
    commands = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert any("release_notes.py" in command for command in commands)
    assert "make dist" in commands
    permitted = {name: job["permissions"] for name, job in jobs.items() if "permissions" in job}
    assert permitted == {
        "pypi": {"id-token": "write"},
        "github": {"contents": "write"},
        "pages": {"pages": "write", "id-token": "write"},
    }
    for name in permitted:
        assert {"check", "build", "docs"} <= needed(release, name)
        assert not any("checkout" in step.get("uses", "") for step in jobs[name]["steps"])


def test_a_release_does_not_wait_for_its_own_checks(release: Workflow) -> None:
    """What is called takes the caller's name for its group, and two of a group do not run at the same time."""
    assert release["concurrency"]["group"] not in {f"{release['name']}-${{{{ github.ref }}}}", release["name"]}
    assert "${{" not in release["concurrency"]["group"]


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_an_issue_form_is_one(file: Path) -> None:
    form = read(file)
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    names = [field["id"] for field in fields]
    assert len(set(names)) == len(names)
    assert all(field["attributes"]["label"] for field in fields)


def test_whoever_reports_a_bug_is_asked_what_they_ran() -> None:
    forms = [read(file) for file in FORMS]
    bugs = [form for form in forms if "bug" in form["labels"]]
    assert len(bugs) == 2
    for form in bugs:
        asked = {field["id"]: field for field in form["body"] if "id" in field}
        assert "`wasserball version`" in asked["version"]["attributes"]["description"]
        assert {"version", "code", "seen"} <= {
            name for name, field in asked.items() if field["validations"]["required"]
        }
