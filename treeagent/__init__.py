"""treeagent: search trees, a learned world model and preference optimisation for language agents.

The names below are imported when they are used, so that ``import treeagent`` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treeagent.loop import quickstart, train
    from treeagent.pipeline.api import collect, evaluate, load_config, update
    from treeagent.search import Search, Tree

__all__ = ["Search", "Tree", "collect", "evaluate", "load_config", "quickstart", "train", "update"]
_MODULES = {
    "Search": "treeagent.search",
    "Tree": "treeagent.search",
    "quickstart": "treeagent.loop",
    "train": "treeagent.loop",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'treeagent' has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "treeagent.pipeline.api")), name)
