"""Doors for agents: a proxy that learns from any agent's conversations, and a model that plans before it answers."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from treeagent.types import UserError

if find_spec("starlette") is None or find_spec("uvicorn") is None:
    raise UserError("the doors for agents want Starlette and uvicorn: pip install 'treeagent[doors]'")

_MODULES = {"proxied": "proxy", "send_outcome": "proxy", "Agent": "serve", "searched": "search"}
__all__ = ["Agent", "proxied", "searched", "send_outcome"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'treeagent.contrib.doors' has no attribute {name!r}")
    return getattr(import_module(f"treeagent.contrib.doors.{_MODULES[name]}"), name)
