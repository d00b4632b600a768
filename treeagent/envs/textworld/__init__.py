"""TextWorld: generated text adventures of a third-party package, played with exact snapshots."""

from treeagent.envs.textworld.env import TextWorldEnv
from treeagent.envs.textworld.options import TextWorldOptions

__all__ = ["TextWorldEnv", "TextWorldOptions"]
