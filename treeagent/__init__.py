"""treeagent: search trees, a learned world model and preference optimisation for language agents.

The names below are imported when they are used, so that ``import treeagent`` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treeagent.loop import collect, evaluate, load_config, quickstart, train, update
    from treeagent.search import Search, Tree

__all__ = ["Search", "Tree", "collect", "evaluate", "load_config", "quickstart", "train", "update"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'treeagent' has no attribute {name!r}")
    return getattr(import_module("treeagent.search" if name in ("Search", "Tree") else "treeagent.loop"), name)
