"""Make environments by name: built-in ones, and the user's own by ``"module:Class"``."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import ValidationError

from treeagent.envs.asynchronous import WaitingEnv, is_async
from treeagent.envs.base import Env
from treeagent.types import UserError

BUILT_IN = {
    "shop": "treeagent.envs.shop:ShopEnv",
    "textworld": "treeagent.contrib.worlds.textworld:TextWorldEnv",
    "frozenlake": "treeagent.contrib.worlds.frozenlake:FrozenLakeEnv",
    "minigrid": "treeagent.contrib.worlds.minigrid:MiniGridEnv",
    "sql": "treeagent.contrib.worlds.sql:SqlEnv",
    "python": "treeagent.contrib.worlds.python:PythonEnv",
    "qa": "treeagent.contrib.worlds.qa:QaEnv",
    "sokoban": "treeagent.contrib.worlds.sokoban:SokobanEnv",
    "miniwob": "treeagent.contrib.worlds.miniwob:MiniWoBEnv",
    "alfworld": "treeagent.contrib.worlds.alfworld:AlfworldEnv",
    "planning": "treeagent.envs.planning:PlanningEnv",
    "toolbox": "treeagent.envs.toolbox:ToolboxEnv",
    "imagined": "treeagent.pipeline.imagined_env:WorldEnv",
}

EXTRAS = {
    "textworld": "textworld",
    "frozenlake": "gymnasium",
    "minigrid": "minigrid",
    "miniwob": "miniwob",
    "alfworld": "alfworld",
    "planning": "planning",
}
"""The extra that a built-in environment needs."""


def env_class(name: str) -> type[Env]:
    """Return the class of a built-in environment, or of the user's own by ``"module:Class"``. The module may be in the
    current folder.

    Raises:
        UserError: there is no such environment.
    """
    if name not in BUILT_IN and ":" not in name:
        raise UserError(f'unknown environment {name!r}: use one of {sorted(BUILT_IN)} or your own "module:Class"')
    found: type[Env] = imported(importable(name), "environment")
    return found


def importable(name: str) -> str:
    """Return ``"module:Class"`` for the name of a built-in environment, and any other name unchanged."""
    return BUILT_IN.get(name, name)


def imported(name: str, what: str) -> Any:
    """Import the object ``"module:name"``. The module may be in the current folder.

    Args:
        what: what the object should be, for the error message.

    Raises:
        UserError: there is no such module, or it has no such name.
    """
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script, unlike python -m, does not search it
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise UserError(
            f"{what} {name!r} cannot be imported ({error}): give module:name, in the folder that holds the module"
        ) from error


def _returned_class(found: object) -> type | None:
    """Return the class of the environments that ``found`` makes: ``found`` itself, or the annotated return type of a
    Python function; None if that is not an environment. Nothing is called to find out, because a settings file can
    name any function, such as ``os:system``."""
    returned = found
    if inspect.isfunction(found):
        returned = found.__annotations__.get("return")
        if isinstance(returned, str):  # an annotation in quotes
            returned = getattr(sys.modules.get(found.__module__), returned, None)
    methods = (name for name, each in vars(Env).items() if inspect.isfunction(each) and not name.startswith("_"))
    return returned if inspect.isclass(returned) and all(hasattr(returned, name) for name in methods) else None


def make_env(name: str, options: Mapping[str, object] | None = None) -> Env:
    """Build a built-in environment by name, or the user's own by ``"module:Class"``. An ``AsyncEnv`` is wrapped in a
    ``WaitingEnv``.

    A class with an ``options_type`` gets one value of that type, any other class gets the options as keyword arguments.

    Raises:
        UserError: there is no such environment, it does not take these options, or the result is not an environment.
    """
    factory: Callable[..., Any] = env_class(name)
    kind = _returned_class(factory)
    if kind is None:
        raise UserError(
            f"{name!r} is no environment: name a subclass of treeagent.envs.Env, or a function whose return type is one"
        )
    if is_async(kind) and Env in kind.__mro__:
        raise UserError(
            f"{name!r} derives from Env, but its step is a coroutine: derive from treeagent.envs.AsyncEnv, and write "
            "all methods that touch the episode as coroutines"
        )
    settings = dict(options or {})
    options_type = getattr(factory, "options_type", None)
    try:
        make = partial(factory, options_type(**settings)) if options_type is not None else partial(factory, **settings)
        env: Env = WaitingEnv(make) if is_async(kind) else make()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        known = f"; it knows {sorted(options_type.__dataclass_fields__)}" if options_type is not None else ""
        if first["type"] == "unexpected_keyword_argument":
            known += "; where these are another environment's, give all of environment.options={...} anew"
        what = f"wants option {where}" if first["type"] == "missing" else f"refuses option {where}={first['input']!r}"
        if not where:  # options that do not fit each other
            what, known = f"refuses options {settings!r}", ""
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"environment {name!r} {what}: {message}{known}") from error
    except TypeError as error:
        raise UserError(f"environment {name!r} refuses options {settings!r}: {error}") from error
    required = (member for member in vars(Env) if not member.startswith("_"))
    lacking = [member for member in required if not hasattr(env, member)]
    if lacking:
        raise UserError(
            f"{name!r} is no environment: it lacks {', '.join(lacking)}; name a subclass of treeagent.envs.Env, or a "
            "function that returns one"
        )
    return env
