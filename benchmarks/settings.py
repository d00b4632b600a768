"""docs/settings.md: every setting with its type, its default and what it does.

Run ``python -m benchmarks.settings`` to print it.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import groupby, pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from treeagent.config import known_settings

_PLAIN = {bool: "true or false", int: "integer", float: "number", str: "text"}
_BOUNDS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}"}


class Row(NamedTuple):
    """One row of the table, as texts."""

    key: str
    type: str
    default: str
    text: str


def settings_rows() -> list[Row]:
    """The settings. A key that several tables share, as ``learning_rate`` of each training, is listed where it stands
    first, and again only where its default or its text differs."""
    rows, told = list[Row](), set[Row]()
    for key, field, section in known_settings():
        row = Row(key, type_in_words(Annotated[field.annotation, field]), _default_in_words(field), _text(section, key))
        shared = row._replace(key=key.rpartition(".")[2])
        if shared not in told:
            rows.append(row)
            told.add(shared)
    return rows


def _text(section: Any, key: str) -> str:
    """The docstring below an attribute, on one line. Python does not keep it, so it is read from the source."""
    found = ""
    for kind in reversed(section.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for attribute, text in pairwise(tree.body):
            match attribute, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    if name == key.rpartition(".")[2]:
                        found = " ".join(words.split())
    return found


def settings_markdown() -> str:
    """All settings as Markdown, with one table per section."""
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    for section, rows in groupby(settings_rows(), key=lambda row: row.key.partition(".")[0] if "." in row.key else ""):
        yield f"## [{section}]\n" if section else "## The run\n"
        yield "| key | type | default | what it does |\n|---|---|---|---|"
        for row in rows:
            text = row.text.replace("``", "`").replace("|", r"\|")
            yield f"| `{row.key}` | {row.type} | {row.default} | {text} |"
        yield ""


def type_in_words(annotation: Any) -> str:
    """A type annotation in the words of someone who writes TOML: ``int`` is "integer"; ``None`` is left out."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [
            pattern.format(getattr(bound, name))
            for field in members[1:]
            for bound in getattr(field, "metadata", ())
            for name, pattern in _BOUNDS.items()
            if getattr(bound, name, None) is not None
        ]
        return " ".join([type_in_words(members[0]), ", ".join(bounds)]).strip()
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_in_words(each) for each in members if each is not NoneType))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in members)
    if origin is tuple:
        if members[-1] is ...:
            return f"list of {type_in_words(members[0])}"
        return f"[{', '.join(map(type_in_words, members))}]"
    return "table" if origin is dict or is_dataclass(annotation) else _PLAIN[annotation]


def _default_in_words(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    default = field.get_default(call_default_factory=True)
    return "unset" if default is None else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    print(settings_markdown(), end="")
