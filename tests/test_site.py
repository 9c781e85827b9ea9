"""The documentation site: it builds without a warning, shows all that is public, and no link in it leads nowhere."""

import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup, Tag
from mkdocs.exceptions import PluginError
from mkdocs.utils.yaml import yaml_load
from typer.testing import CliRunner

import wasserball as wb
from docs.hooks.maths import to_mathml
from wasserball import cli

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "mkdocs.yml"
ADAPTERS = [f"adapters.{name}" for name in ("art", "foolbox", "robustbench", "torchattacks")]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""What a browser fetches by itself when it shows a page."""

Pages = dict[Path, BeautifulSoup]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(site),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(CONFIG, folder)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> Pages:
    return {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in site.rglob("*.html")}


def defined_in(name: str) -> list[str]:
    """The public functions and classes of a module that has no list of them."""
    module = import_module(f"wasserball.{name}")
    members = inspect.getmembers(module, lambda thing: inspect.isfunction(thing) or inspect.isclass(thing))
    return [own for own, thing in members if not own.startswith("_") and thing.__module__ == module.__name__]


def public_names() -> list[str]:
    listed = [(f"{name}.", getattr(wb, name).__all__) for name in ("operators", "zoo")]
    found = [(f"{name}.", defined_in(name)) for name in ("plot", *ADAPTERS)]
    return [f"wasserball.{prefix}{name}" for prefix, names in [("", wb.__all__), *listed, *found] for name in names]


def identifiers(page: BeautifulSoup) -> list[str]:
    return [str(element["id"]) for element in page.find_all(id=True)]


def test_every_public_name_is_documented_on_exactly_one_page(pages: Pages) -> None:
    places = Counter(identifier for page in pages.values() for identifier in identifiers(page))
    assert {name: places[name] for name in public_names() if places[name] != 1} == {}


def test_fields_are_documented_with_their_class(pages: Pages, site: Path) -> None:
    [pgd] = pages[site / "reference" / "attacks.html"].find_all(id="wasserball.PGD")
    assert pgd.parent is not None
    names = [term.code.get_text() for term in pgd.parent.find_all("dt") if term.code]
    assert {"step", "momentum", "box", "loss", "restarts"} <= set(names)
    assert ":class:`" not in pages[site / "reference" / "attacks.html"].get_text()


def test_no_link_and_no_picture_leads_nowhere(pages: Pages, site: Path) -> None:
    anchors = {path: {*identifiers(page), ""} for path, page in pages.items()}
    dead = []
    for path, page in pages.items():
        targets = [
            element.get("href") or element.get("src") for element in page.find_all(["a", "img", "link", "script"])
        ]
        for target in (urlsplit(str(target)) for target in targets if target):
            if target.scheme or target.netloc:
                continue
            start = site if target.path.startswith("/") else path.parent
            file = (start / unquote(target.path).lstrip("/")).resolve() if target.path else path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file() or (file in anchors and unquote(target.fragment) not in anchors[file]):
                dead.append(f"{path.relative_to(site)}: {target.geturl()}")
    assert not dead


def test_nothing_is_fetched_from_elsewhere(pages: Pages, site: Path) -> None:
    for path, page in pages.items():
        for tag, attribute in LOADED.items():
            for element in page.find_all(tag):
                address = str(element.get(attribute, ""))
                assert not re.match(r"(https?:)?//", address), f"{path.relative_to(site)}: {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_the_reference_has_all_commands_with_all_options(pages: Pages, site: Path) -> None:
    page = pages[site / "reference" / "command-line.html"]
    for command in (info.callback for info in cli.app.registered_commands):
        assert command is not None
        name = command.__name__
        [heading] = page.find_all(id=f"wasserball-{name}")
        shown = " ".join(str(part.get_text()) for part in until_next(heading))
        words = CliRunner().invoke(cli.app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        options = set(re.findall(r"^\W*(--[a-z-]+)", words, re.MULTILINE)) - {"--help"}
        assert options <= set(re.findall(r"--[a-z-]+", shown)), name


def until_next(heading: Tag) -> list[Tag]:
    parts = []
    for part in heading.find_next_siblings():
        if part.name == heading.name:
            break
        parts.append(part)
    return parts


def test_the_first_page_says_what_the_readme_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    rows = [line for line in first.splitlines() if re.match(r"\| (MNIST|CIFAR|ImageNet)", line)]
    assert len(rows) == 5
    assert set(rows) <= set(readme.splitlines())
    [code] = re.findall(r"```python\n(.*?)```", first, re.DOTALL)
    assert code in readme  # where it is run


PACKAGE = '''"""A package for a site."""

class Thing:
    """Has a :meth:`part` and more, see :func:`other`.

    >>> 1 + 1
    2
    """

    size: int = 3
    """How large."""

    def part(self) -> None:
        """A part of a :class:`Thing`."""

def other() -> None:
    """The other :class:`tiny.Thing`, in ``torch``'s words a :class:`torch.nn.Module`."""
'''
PAGE = """# Title

Half of $x^2$ costs `$HOME`, `wb.PGD` nothing: [here](#title), [the code](../tiny.py), [a notebook](more.ipynb).

```sh
echo $HOME and $PATH
```

$$\\Pi \\ge 0$$

::: tiny.Thing

::: tiny.other

[](){#wasserball.PGD}
"""
CELLS = [
    {"cell_type": "markdown", "source": ["# A notebook"]},
    {"cell_type": "code", "source": ["print(7 * 6)"], "outputs": [{"output_type": "stream", "text": ["42\n"]}]},
    {
        "cell_type": "code",
        "source": ["draw()"],
        "outputs": [{"data": {"image/png": "AAAA", "text/plain": "a picture"}}],
    },
]


def tiny_site(folder: Path, *, page: str = PAGE, package: str = PACKAGE, nav: tuple[str, ...] = ("index.md",)) -> Path:
    """A site of two pages and a module, with the hooks and settings of the real one."""
    config = yaml_load(CONFIG.read_text(encoding="utf-8"))
    [plugin] = [entry["mkdocstrings"] for entry in config["plugins"] if isinstance(entry, dict)]
    settings = plugin["handlers"]["python"]
    settings["paths"] = [str(folder)]
    settings["options"]["extensions"] = [str(ROOT / path) for path in settings["options"]["extensions"]]
    config |= dict(hooks=[str(ROOT / path) for path in config["hooks"]], nav=[*nav, "more.ipynb"], extra_css=[])
    (folder / "docs").mkdir()
    (folder / "mkdocs.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    (folder / "docs" / "index.md").write_text(page, encoding="utf-8")
    (folder / "docs" / "more.ipynb").write_text(json.dumps({"cells": CELLS}), encoding="utf-8")
    (folder / "tiny.py").write_text(package, encoding="utf-8")
    return folder / "mkdocs.yml"


def test_the_hooks_do_what_they_are_for(tmp_path: Path) -> None:
    built = build(tiny_site(tmp_path), tmp_path / "site")
    assert built.returncode == 0, built.stderr
    page = BeautifulSoup((tmp_path / "site" / "index.html").read_text(encoding="utf-8"), "html.parser").article
    assert page is not None
    links = {str(link.get_text()): link.get("href") for link in page.find_all("a")}
    assert (links["part"], links["other"], links["Thing"]) == ("#tiny.Thing.part", "#tiny.other", "#tiny.Thing")
    assert (links["wb.PGD"], links["a notebook"]) == ("#wasserball.PGD", "more.html")
    assert "the code" not in links  # a file of the repository, for which there is no address
    assert [formula["display"] for formula in page.find_all("math")] == ["inline", "block"]
    text = page.get_text()
    assert "$HOME" in text
    assert "echo $HOME and $PATH" in text
    assert ">>> 1 + 1\n2" in text
    assert [term.get_text() for term in page.find_all("dt")] == ["size int = 3"]
    assert "torch.nn.Module" in text

    notebook = BeautifulSoup((tmp_path / "site" / "more.html").read_text(encoding="utf-8"), "html.parser").article
    assert notebook is not None
    assert [block.get_text().strip() for block in notebook.find_all("pre")] == ["print(7 * 6)", "42", "draw()"]
    assert [picture["src"] for picture in notebook.find_all("img")] == ["data:image/png;base64,AAAA"]
    assert (tmp_path / "site" / "more.ipynb").is_file()


FAULTS = {
    "a role that names nothing": (":meth:`part`", ":meth:`past`"),
    "a role that names nothing of the package": ("`tiny.Thing`", "`tiny.Thong`"),
    "a role to what is on no page": ("::: tiny.other", ""),
    "a name that wasserball has not": ("`wb.PGD`", "`wb.PGX`"),
    "an anchor that is not there": ("(#title)", "(#titel)"),
    "a file that is not there": ("(../tiny.py)", "(../huge.py)"),
}


def test_each_fault_is_named_and_ends_the_build(tmp_path: Path) -> None:
    page, package = PAGE, PACKAGE
    for right, wrong in FAULTS.values():
        page, package = page.replace(right, wrong), package.replace(right, wrong)
    built = build(tiny_site(tmp_path, page=page, package=package, nav=("index.md", "missing.md")), tmp_path / "site")
    assert built.returncode != 0
    warnings = [line for line in built.stderr.splitlines() if line.startswith("WARNING")]
    for said in ("past", "tiny.Thong", "tiny.other", "wasserball.PGX", "#titel", "huge.py", "missing.md"):
        assert any(said in line for line in warnings), said
    assert len(warnings) == len(FAULTS) + 1


@pytest.mark.parametrize("latex", [r"a \nonsense b", r"\begin{gather} a & b \end{gather}"])
def test_maths_that_is_not_understood_ends_the_build(latex: str) -> None:
    with pytest.raises(PluginError, match="here"):
        to_mathml(latex, display="block", place="here")


@pytest.mark.parametrize(
    ("latex", "part"),
    [
        (r"\begin{aligned} a &= b \\ c &= d \end{aligned}", "<mtable"),
        (r"\arg\min_{\Pi} f", "arg</mo>"),
        (r"\operatorname*{arg\,min}_{\Pi} f", "<munder>"),
        (r"a < b", "&#x0003C;"),
    ],
)
def test_maths_that_github_knows_is_understood(latex: str, part: str) -> None:
    assert part in to_mathml(latex, display="block", place="here")
