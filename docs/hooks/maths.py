"""Maths as MathML when the site is built: browsers show it without a script, and GitHub reads the same source."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(?P<latex>.*?)(?:\\\)|\\\])</\1>', re.DOTALL)
DIALECT = [
    (r"\\operatorname\*\{([^{}]*)\}_\{([^{}]*)\}", r"\\underset{\2}{\\text{\1}}\\;"),
    (r"\\(?:operatorname\*?|mathrm)\{([^{}]*)\}", r"\\text{\1}"),
    (r"(\\text\{[^{}]*?)\\[ ,]", r"\1 "),
    (r"\\arg(?![a-z])", r"\\operatorname{arg}"),
    (r"\{aligned\}", r"{align*}"),
]
"""What GitHub understands and latex2mathml does not, or only letter by letter, in words that both do."""
NOT_UNDERSTOOD = re.compile(r"\\[a-zA-Z]*|<m[io]>&</m[io]>")


def on_page_content(content: str, page: Page, **_: object) -> str:
    """Replace what Arithmatex found."""

    def formula(found: re.Match[str]) -> str:
        latex = html.unescape(found["latex"]).strip()
        return to_mathml(latex, display="block" if found[1] == "div" else "inline", place=page.file.src_uri)

    return FORMULA.sub(formula, content)


def to_mathml(latex: str, *, display: str, place: str) -> str:
    """A formula as MathML; an error where not all of it is understood, instead of its source in the page."""
    spoken = re.sub(r"\\(min|max)_", r"\\\1\\limits_", latex) if display == "block" else latex
    for theirs, ours in DIALECT:
        while re.search(theirs, spoken):
            spoken = re.sub(theirs, ours, spoken)
    try:
        mathml = convert(spoken, display=display)
    except Exception as error:
        raise PluginError(f"{place}: no formula: {latex} ({error!r})") from error
    strange = NOT_UNDERSTOOD.search(mathml)
    if strange:
        raise PluginError(f"{place}: {strange[0]!r} is not understood in the formula {latex}")
    return mathml if display == "inline" else f'<div class="formula">{mathml}</div>'
