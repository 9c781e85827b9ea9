"""Notebooks as pages: their Markdown, their code and what it printed and drew, in the looks of all other pages."""

import json
import shutil
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SUFFIX = ".ipynb"


class Notebook(File):
    """A notebook that is a page, so that a link to it leads to that page, here as on GitHub."""

    def is_documentation_page(self) -> bool:
        """Whether MkDocs makes a page of it."""
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take notebooks for pages."""
    for file in list(files):
        if file.src_uri.endswith(SUFFIX):
            files.remove(file)
            page = Notebook(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls)
            files.append(page)
    return files


def on_page_read_source(page: Page, **_: object) -> str | None:
    """The Markdown of a notebook."""
    if not page.file.src_uri.endswith(SUFFIX):
        return None
    name = Path(page.file.src_uri).name
    cells = json.loads(page.file.content_string)["cells"]
    title, *rest = ["\n\n".join(_blocks(cell)) for cell in cells]
    download = f'<a href="{name}" download>{name}</a>: this page as a notebook, to run it.'
    return "\n\n".join([title, download, *rest])


def on_post_build(config: MkDocsConfig, **_: object) -> None:
    """Put the notebooks themselves beside their pages."""
    docs = Path(config.docs_dir)
    for source in docs.rglob(f"*{SUFFIX}"):
        if ".ipynb_checkpoints" not in source.parts:
            shutil.copy(source, Path(config.site_dir) / source.relative_to(docs))


def _blocks(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return [source]
    return [_fence(source, ".python"), *(_output(output) for output in cell["outputs"])]


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        pixels = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="What the code above draws" src="data:image/png;base64,{pixels}">'
    words = "".join(output.get("text", data.get("text/plain", "")))
    return _fence(words.rstrip("\n"), ".text .output") if words else ""


def _fence(text: str, classes: str) -> str:
    return f"````{{ {classes} }}\n{text}\n````"
