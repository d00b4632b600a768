"""Tool environments: the contract, a check of the contract, and the built-in environments.

To write an environment, read ``envs/base.py`` and subclass ``Env``. ``treeagent envs new NAME`` writes a small working
environment, and ``treeagent envs check module:Class`` checks yours.

The rest: ``VisitEnv`` and ``ToolEnv`` are bases for environments whose state is one frozen value, ``EnvWrapper`` for
what changes an environment from outside. ``WorkerEnv`` is an environment in its own process, ``EnvPool`` several
instances in threads, ``Forkable`` returns to a ``Mark`` by snapshot or replay, and search steps ``EnvDynamics``.
"""

from treeagent.envs.base import (
    Demonstrator,
    Env,
    EnvBroken,
    EnvWrapper,
    SnapshotKind,
    StepResult,
    ToolSpec,
    probability,
    task_to_play,
)
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.check import CheckReport, check_env
from treeagent.envs.dynamics import EnvDynamics
from treeagent.envs.forks import Forkable, Mark, ReplayDivergence
from treeagent.envs.make import BUILT_IN, env_class, make_env, wrap
from treeagent.envs.pool import EnvPool
from treeagent.envs.visit import CallRefused, ToolEnv, VisitEnv
from treeagent.envs.worker import EnvCrashed, EnvTimeout, WorkerEnv

__all__ = [
    "BUILT_IN",
    "CallRefused",
    "CheckReport",
    "Demonstrator",
    "Env",
    "EnvBroken",
    "EnvCrashed",
    "EnvDynamics",
    "EnvPool",
    "EnvTimeout",
    "EnvWrapper",
    "Forkable",
    "Mark",
    "ReplayDivergence",
    "SnapshotKind",
    "StepResult",
    "ToolEnv",
    "ToolSpec",
    "VisitEnv",
    "WorkerEnv",
    "check_env",
    "env_class",
    "make_env",
    "probability",
    "read_call",
    "task_to_play",
    "text_tool",
    "wrap",
]
