"""A Python code tool: the agent writes functions, runs them in a sandbox, and is judged by hidden tests."""

from treeagent.envs.python.env import PythonEnv
from treeagent.envs.python.options import PythonOptions

__all__ = ["PythonEnv", "PythonOptions"]
