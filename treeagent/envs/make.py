"""Make environments and their wrappers by name: built-in ones, and the user's own by ``"module:Class"``."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from treeagent import seams
from treeagent.envs.base import Env, EnvWrapper
from treeagent.types import UserError

BUILT_IN = {"shop": "treeagent.envs.shop:ShopEnv"}
"""The core's own short names of environments."""


def env_class(name: str) -> type[Env]:
    """Return the class or function that makes an environment: a short name, or the user's own "module:Class"."""
    found: type[Env] = seams.resolve("environment.name", name, BUILT_IN)
    return found


def make_env(name: str, options: Mapping[str, object] | None = None) -> Env:
    """Build an environment. A class with an ``options_type`` gets one value of that type, any other the options as
    keyword arguments."""
    env: Env = _made(env_class(name), Env, f"environment {name!r}", options or {})
    return env


def wrap(env: Env, wrappers: Sequence[str | Mapping[str, object]]) -> Env:
    """Put wrappers around an environment, the first of them next to it: each a short name, a "module:Class", or a table
    with this ``name`` and ``options``."""
    for wrapper in wrappers:
        match {"name": wrapper} if isinstance(wrapper, str) else wrapper:
            case {"name": str(name), "options": Mapping() as options}:
                pass
            case {"name": str(name), **rest} if not rest:
                options = {}
            case _:
                raise UserError(f"environment.wrappers holds {wrapper!r:.80}: give a name, or name and options")
        factory = seams.resolve("environment.wrappers", name, {})
        env = _made(factory, EnvWrapper, f"wrapper {name!r}", options, env)
    return env


def _made(factory: Any, kind: type, what: str, options: Mapping[str, object], *arguments: object) -> Any:
    # Nothing is called to find out what it returns, because a settings file can name any function, such as os:system.
    returned = factory
    if inspect.isfunction(factory):
        returned = factory.__annotations__.get("return")
        if isinstance(returned, str):  # an annotation in quotes
            returned = getattr(sys.modules.get(factory.__module__), returned, None)
    if not inspect.isclass(returned) or kind not in returned.__mro__:
        raise UserError(f"{what} is no subclass of treeagent.envs.{kind.__name__}, and no function that returns one")
    if (options_type := getattr(factory, "options_type", None)) is not None:
        return factory(*arguments, seams.checked(options_type, options, what))
    try:
        return factory(*arguments, **options)
    except TypeError as error:
        raise UserError(f"{what} refuses options {dict(options)!r}: {error}") from error
