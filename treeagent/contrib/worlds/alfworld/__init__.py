"""ALFWorld: household tasks in text, in games generated from its own floor plans or in its official games."""

from treeagent.contrib.worlds.alfworld.env import AlfworldEnv
from treeagent.contrib.worlds.alfworld.games import AlfworldOptions

__all__ = ["AlfworldEnv", "AlfworldOptions"]
