"""Tool environments: the contract, a check of the contract, and the built-in environments.

To write an environment, read ``envs/base.py`` and subclass ``Env``, or one of ``VisitEnv`` and ``ToolEnv``, whose state
is one frozen value."""

from treeagent.envs.base import Demonstrator, Env, EnvWrapper, StepResult, ToolSpec, task_to_play
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.check import check_env
from treeagent.envs.dynamics import EnvDynamics, Forkable
from treeagent.envs.make import BUILT_IN, env_class, make_env, wrap
from treeagent.envs.pool import EnvPool
from treeagent.envs.visit import ToolEnv, VisitEnv
from treeagent.envs.worker import EnvCrashed, EnvTimeout, WorkerEnv

__all__ = [
    "BUILT_IN",
    "Demonstrator",
    "Env",
    "EnvCrashed",
    "EnvDynamics",
    "EnvPool",
    "EnvTimeout",
    "EnvWrapper",
    "Forkable",
    "StepResult",
    "ToolEnv",
    "ToolSpec",
    "VisitEnv",
    "WorkerEnv",
    "check_env",
    "env_class",
    "make_env",
    "read_call",
    "task_to_play",
    "text_tool",
    "wrap",
]
