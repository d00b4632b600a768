"""Questions that need calls of several tools, in which the output of one call is an argument of the next."""

from treeagent.envs.toolbox.env import ToolboxEnv, Visit
from treeagent.envs.toolbox.options import ToolboxOptions

__all__ = ["ToolboxEnv", "ToolboxOptions", "Visit"]
