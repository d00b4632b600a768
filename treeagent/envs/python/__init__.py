"""A Python code tool: functions to be written, tried out in a sandbox and judged by hidden tests."""

from treeagent.envs.python.env import PythonEnv
from treeagent.envs.python.options import PythonOptions

__all__ = ["PythonEnv", "PythonOptions"]
