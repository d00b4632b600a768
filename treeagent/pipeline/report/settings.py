"""Every setting as a table: key, type, default and what it does."""

import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import groupby
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from treeagent.config import known_settings
from treeagent.types import UserError

_PLAIN = {bool: "true or false", int: "integer", float: "number", str: "text"}
_BOUNDS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}"}


class Row(NamedTuple):
    """One row of the table, as texts."""

    key: str
    type: str
    default: str
    text: str


def settings_rows(section: str = "") -> list[Row]:
    """The settings in a section such as ``update.dpo``; all settings if ``section`` is empty.

    Raises:
        UserError: there is no such section.
    """
    rows = [
        Row(key, type_in_words(Annotated[field.annotation, field]), _default_in_words(field), text)
        for key, field, text in known_settings()
        if not section or f"{key}.".startswith(f"{section}.")
    ]
    if not rows:
        sections = dict.fromkeys(key.partition(".")[0] for key, _, _ in known_settings())
        raise UserError(f"{section} is no section of settings: name one of {', '.join(sections)}")
    return rows


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
