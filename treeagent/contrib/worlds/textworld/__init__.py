"""TextWorld: generated text adventures of a third-party package, played with exact snapshots."""

from treeagent.contrib.worlds.textworld.env import TextWorldEnv
from treeagent.contrib.worlds.textworld.games import TextWorldOptions

__all__ = ["TextWorldEnv", "TextWorldOptions"]
