"""Links that the site has and GitHub has not, and the reverse: names such as ``wb.PGD``, files that are no page."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.pages import Page

import wasserball

OUTSIDE = re.compile(r"\[(?P<words>[^][]*)\]\((?P<target>(?:\.\./)+[^)#\s]*)[^)]*\)")
APART = re.compile(r"(<pre.*?</pre>|<a .*?</a>|<autoref .*?</autoref>|<h[1-6].*?</h[1-6]>)", re.DOTALL)
NAME = re.compile(r"<code>(?:wb|wasserball)\.(?P<name>[A-Za-z_][\w.]*\w)(?:\([^<]*\))?</code>")

_logger = get_plugin_logger(__name__)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Files of the repository that are no part of the site: a link to the repository, or their name where there is no
    address for it."""

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found["target"]))
        if not path.startswith("../"):
            return found[0]
        inside = path.removeprefix("../")
        if not (Path(config.docs_dir).parent / inside).exists():
            _logger.warning(f"{page.file.src_uri}: {found['target']} is not there")
        return f"[{found['words']}]({config.repo_url}/blob/main/{inside})" if config.repo_url else found["words"]

    return OUTSIDE.sub(link, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Link the names of the package, as readers write them, to the reference; one that is not there is a warning."""
    pieces = APART.split(html)
    pieces[::2] = [NAME.sub(_reference, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _reference(found: re.Match[str]) -> str:
    return f'<autoref identifier="{_path(found["name"])}">{found[0]}</autoref>'


def _path(name: str) -> str:
    """Where the reference has a name: fields are listed with their class."""
    thing: object = wasserball
    path = "wasserball"
    for part in name.split("."):
        if part in getattr(thing, "__dataclass_fields__", {}):
            break
        thing, path = getattr(thing, part, None), f"{path}.{part}"
    return path
