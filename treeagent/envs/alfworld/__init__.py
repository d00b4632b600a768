"""ALFWorld: household chores in text, on games generated from its own floor plans or on its official games."""

from treeagent.envs.alfworld.env import AlfworldEnv
from treeagent.envs.alfworld.options import AlfworldOptions

__all__ = ["AlfworldEnv", "AlfworldOptions"]
