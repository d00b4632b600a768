"""The seams where something is plugged into the core, each by a short name or ``"module:Name"``.

The core brings its own names for a seam. ``treeagent.contrib``, if it is installed, adds more: ``NAMES`` there maps
each seam to short names, ``COMMANDS`` the commands of the command line to the modules that define them.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, Literal

Seam = Literal[
    "environment.name",
    "environment.wrappers",
    "policy.generator",
    "policy.format",
    "search.method",
    "update.advantages.kind",
    "rewards.function",
]


def names(seam: Seam, own: Mapping[str, str]) -> dict[str, str]:
    """The short names of a seam: the core's own, and those that ``treeagent.contrib`` adds."""
    added: Mapping[str, Mapping[str, str]] = getattr(_contrib(), "NAMES", {})
    return {**added.get(seam, {}), **own}


def known(seam: Seam, name: str, own: Mapping[str, str], *others: str) -> str:
    """``name``, if it stands for something at a seam, is one of ``others`` or a "module:Name"; else a ValueError."""
    if ":" not in name and name not in (listed := [*others, *names(seam, own)]):
        raise ValueError(f'{name!r} is unknown: use one of {sorted(listed)} or your own "module:Name"')
    return name


def commands() -> Mapping[str, tuple[str, str]]:
    """The commands that ``treeagent.contrib`` adds: name to (module with ``app``, one line of help)."""
    found: Mapping[str, tuple[str, str]] = getattr(_contrib(), "COMMANDS", {})
    return found


def resolve(seam: Seam, name: str, own: Mapping[str, str]) -> Any:
    """Import what ``name`` stands for at a seam. The module may lie in the current folder.

    Args:
        own: the core's short names of this seam, each with its ``"module:Name"``.
    """
    from treeagent.types import UserError  # imported here so that --help, which reads ``commands``, stays fast

    listed = names(seam, own)
    if name not in listed and ":" not in name:
        raise UserError(f'{seam} is {name!r}: use one of {sorted(listed)} or your own "module:Name"')
    module, _, attribute = listed.get(name, name).partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script, unlike python -m, does not search it
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise UserError(
            f"{seam} {name!r} cannot be imported ({error}): give module:Name, in the folder that holds the module"
        ) from error


def checked(options_type: type[Any], options: Mapping[str, object], where: str) -> Any:
    """A value of the dataclass ``options_type`` made from a table of options.

    Args:
        where: what the options belong to, for the error message, such as "environment 'shop'".
    """
    from pydantic import ValidationError

    from treeagent.types import UserError

    try:
        return options_type(**options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        known = f"; it knows {sorted(options_type.__dataclass_fields__)}"
        if first["type"] == "missing":
            raise UserError(f"{where} wants option {name}{known}") from error
        what = f"option {name}={first['input']!r}" if name else f"options {dict(options)!r}"
        raise UserError(f"{where} refuses {what}: {message}{known}") from error


def _contrib() -> object:
    """The package of what is optional, or None where it was taken out. The core knows no more of it than this."""
    try:
        return importlib.import_module("treeagent.contrib")
    except ModuleNotFoundError:
        return None
