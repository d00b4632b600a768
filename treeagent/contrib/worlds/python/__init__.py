"""A Python code tool: the agent writes functions, runs them in a sandbox, and is judged by hidden tests."""

from treeagent.contrib.worlds.python.env import PythonEnv
from treeagent.contrib.worlds.python.options import PythonOptions

__all__ = ["PythonEnv", "PythonOptions"]
