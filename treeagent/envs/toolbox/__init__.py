"""Questions that take calls of several tools, the output of one being an argument of the next."""

from treeagent.envs.toolbox.env import ToolboxEnv, Visit
from treeagent.envs.toolbox.options import ToolboxOptions

__all__ = ["ToolboxEnv", "ToolboxOptions", "Visit"]
