"""Search in a world model, and replay in the environment of what the imagined trees promise.

``Imagination`` is the dynamics of such a search: tasks open in the environment, and all later steps are imagined.
``verify`` replays the best imagined paths, so that no imagined success is believed unchecked. ``world_model`` opens the
world model of a run. ``WorldEnv`` offers it as the environment named "imagined".
"""

from importlib import import_module
from typing import TYPE_CHECKING

from treeagent.envs import BUILT_IN

if TYPE_CHECKING:  # these load torch or need an extra
    from treeagent.imagination.dynamics import Imagination
    from treeagent.imagination.env import WorldEnv
    from treeagent.imagination.load import world_model, world_of
    from treeagent.imagination.verify import settle, verify

__all__ = ["Imagination", "WorldEnv", "settle", "verify", "world_model", "world_of"]

_LATE = {
    "Imagination": "dynamics",
    "WorldEnv": "env",
    "world_model": "load",
    "world_of": "load",
    "settle": "verify",
    "verify": "verify",
}


def __getattr__(name: str) -> object:
    """Import a name of ``_LATE`` when it is first used."""
    if name in _LATE:
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Registered here, because no environment may import this room.
BUILT_IN["imagined"] = "treeagent.imagination.env:WorldEnv"
