"""The reference of the command line, from the commands themselves: what Typer makes them of, nothing else."""

import inspect
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import typer
from mkdocs.structure.pages import Page
from typer.models import ArgumentInfo

from wasserball import cli

PLACE = "<!-- commands -->"
KINDS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH", bool: ""}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put the commands where a page asks for them."""
    return markdown.replace(PLACE, commands()) if PLACE in markdown else markdown


def commands() -> str:
    """All commands with their help, arguments, options and defaults, as Markdown."""
    known = [info.callback for info in cli.app.registered_commands]
    return "\n\n".join(_command(command) for command in known if command is not None)


def _command(command: Callable[..., Any]) -> str:
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        (parameter, *get_args(hints[name])[:2])
        for name, parameter in inspect.signature(command).parameters.items()
        if hints[name] is not typer.Context
    ]
    arguments = [_call_name(*parameter) for parameter in parameters if isinstance(parameter[2], ArgumentInfo)]
    required = [_call_name(*one) for one in parameters if not isinstance(one[2], ArgumentInfo) and _is_required(one[0])]
    usage = " ".join(["wasserball", command.__name__, *arguments, *required, "[OPTIONS]" if parameters else ""])
    lines = [_parameter(*parameter) for parameter in parameters]
    words = inspect.getdoc(command) or ""
    return "\n\n".join([f"## wasserball {command.__name__}", f"    {usage.strip()}", words, "\n".join(lines)])


def _parameter(parameter: inspect.Parameter, kind: Any, settings: Any) -> str:
    default = parameter.default
    if _is_required(parameter):
        remark = " required"
    elif default is None or default is False:
        remark = ""
    else:
        remark = f" `= {default}`"
    return f"`{_call_name(parameter, kind, settings)}`{remark}\n:   {settings.help or '&nbsp;'}\n"


def _call_name(parameter: inspect.Parameter, kind: Any, settings: Any) -> str:
    """As it is typed: ``--eps TEXT``."""
    if isinstance(settings, ArgumentInfo):
        name = settings.metavar or parameter.name.upper()
        return name if _is_required(parameter) else f"[{name}]"
    # Typer takes the first of the names for a default until it has seen that it stands in an annotation.
    given = [word for word in (settings.default, *(settings.param_decls or ())) if str(word).startswith("-")]
    names = given or [f"--{parameter.name.replace('_', '-')}"]
    return " ".join(filter(None, [", ".join(names), settings.metavar or _words(_plain(kind))]))


def _plain(kind: Any) -> Any:
    """The type without ``| None``, of one where there may be several."""
    inner = [part for part in get_args(kind) if part is not NoneType]
    return _plain(inner[0]) if inner else kind


def _words(kind: Any) -> str:
    return "|".join(choice.value for choice in kind) if issubclass(kind, Enum) else KINDS[kind]


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty
