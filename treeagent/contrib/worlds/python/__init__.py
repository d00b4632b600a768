"""A Python code tool: the agent writes functions, runs them in a sandbox, and is judged by hidden tests."""

from treeagent.contrib.worlds.python.env import PythonEnv, PythonOptions

__all__ = ["PythonEnv", "PythonOptions"]
