"""What the reference makes of docstrings: roles become links, examples become code, the fields of a class a list."""

import importlib.util
import re
import textwrap
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(?P<short>~?)(?P<name>[\w.]+)`")
EXAMPLE = re.compile(r"^>>> .*\n?(?:^\S.*\n?)*", re.MULTILINE)

_logger = griffe.get_logger("docstrings")  # mkdocstrings hands its lines to MkDocs, where a warning ends a strict build


class Docstrings(griffe.Extension):
    """Docstrings as they are written here, in the Markdown that mkdocstrings expects."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite all docstrings of a package when all of it has been read."""
        choices = dict(_literals(pkg))
        objects = list(_objects(pkg))
        for thing in objects:
            _spell_choices(thing, choices)
            if thing.docstring:
                thing.docstring.value = EXAMPLE.sub(_fenced, _linked(thing, pkg))
        for thing in objects:
            if isinstance(thing, griffe.Class):
                _list_fields(thing, pkg)
        for thing in objects:
            if isinstance(thing, griffe.Attribute) and _is_field(thing):
                thing.docstring = None  # it stands in the list of its class


def _objects(thing: griffe.Object) -> "list[griffe.Object]":
    """All that a module or a class defines, itself first; not what it imports."""
    own = [member for member in thing.members.values() if isinstance(member, griffe.Object)]
    return [thing, *(inner for member in own for inner in _objects(member))]


def _linked(thing: griffe.Object, package: griffe.Module) -> str:
    assert thing.docstring is not None

    def link(role: re.Match[str]) -> str:
        name = role["name"]
        shown = f"`{name.rpartition('.')[2] if role['short'] else name}`"
        target = _find(thing, name, package)
        if target:
            return f"[{shown}][{target}]"
        first = name.partition(".")[0]
        if first == package.name or importlib.util.find_spec(first) is None:
            _logger.warning(f"{thing.path}: {role[0]} names nothing that there is")
        return shown  # of another package, which has its own reference

    return ROLE.sub(link, thing.docstring.value)


def _find(thing: griffe.Object, name: str, package: griffe.Module) -> str | None:
    """The path under which the site knows what a docstring calls ``name``; None where the package has no such thing."""
    first, *rest = name.split(".")
    try:
        path = name.split(".") if first == package.name else thing.resolve(first).split(".") + rest
        if path[0] != package.name:
            return None
        found = package[path[1:]] if path[1:] else package
        found = found.final_target if isinstance(found, griffe.Alias) else found
    except (griffe.NameResolutionError, griffe.AliasResolutionError, KeyError):
        return None
    if isinstance(found, griffe.Attribute) and _is_field(found):
        return str(found.path).rpartition(".")[0]
    return str(found.path)


def _fenced(example: re.Match[str]) -> str:
    return f"```pycon\n{example[0].rstrip()}\n```\n"


def _literals(package: griffe.Module) -> "list[tuple[str, str]]":
    """The names that modules give to a choice between a few words, and the words."""
    return [
        (thing.name, " | ".join(str(word).replace("'", '"') for word in thing.value.slice.elements))
        for thing in _objects(package)
        if isinstance(thing, griffe.Attribute)
        and isinstance(thing.value, griffe.ExprSubscript)
        and str(thing.value.left) == "Literal"
        and isinstance(thing.value.slice, griffe.ExprTuple)
    ]


def _spell_choices(thing: griffe.Object, choices: dict[str, str]) -> None:
    """Say what the words are: a reader of the reference does not know the names of these types."""
    places: list[Any] = [*thing.parameters] if isinstance(thing, griffe.Function) else [thing]
    for place in places:
        annotation = getattr(place, "annotation", None)
        names = {str(part) for part in annotation.iterate(flat=True)} if isinstance(annotation, griffe.Expr) else set()
        if names & choices.keys():
            words = (choices.get(word, word) for word in re.split(r"(\w+)", str(annotation)))
            place.annotation = "".join(words)


def _is_field(thing: griffe.Object) -> bool:
    return isinstance(thing.parent, griffe.Class) and "property" not in thing.labels


def _list_fields(owner: griffe.Class, package: griffe.Module) -> None:
    """Add the fields of a class to its docstring, and those of bases that the reference does not show."""
    hidden = (package[path[1:]] for path in _hidden_bases(owner, package))
    fields = {member.name: member for source in (*hidden, owner) for member in _fields(source)}
    if fields and owner.docstring:
        owner.docstring.value += "\n\n" + "\n".join(_field(member) for member in fields.values())


def _hidden_bases(owner: griffe.Class, package: griffe.Module) -> "list[list[str]]":
    """Where to find the bases that belong to the package and not to what it exports."""
    paths = [base.canonical_path.split(".") for base in owner.bases if isinstance(base, griffe.Expr)]
    exports = {str(name) for name in package.exports or ()}
    return [path for path in paths if path[0] == package.name and path[-1] not in exports]


def _fields(owner: griffe.Class) -> "list[griffe.Attribute]":
    """Of a record all that it is made with, of any other class what has words of its own."""
    is_record = "dataclass" in owner.labels or "NamedTuple" in map(str, owner.bases)
    own = [member for member in owner.members.values() if isinstance(member, griffe.Attribute) and _is_field(member)]
    return [
        member
        for member in own
        if not member.name.startswith("_")
        and (member.docstring or (is_record and "init=False" not in str(member.value)))
    ]


def _field(member: griffe.Attribute) -> str:
    value = "" if member.value is None or "field(" in str(member.value) else f" = {member.value}"
    kind = f"{member.annotation}{value}".replace("'", '"')
    words = member.docstring.value if member.docstring else "&nbsp;"
    return f"`{member.name}` `{kind}`\n:   {textwrap.indent(words, '    ').lstrip()}\n"
