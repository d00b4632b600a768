"""Tool environments: the contract, a check of the contract, and the built-in environments.

To write an environment, read ``envs/base.py`` and subclass ``Env``. ``treeagent envs new NAME`` writes a small working
environment, and ``treeagent envs check module:Class`` checks yours.

* The contract: ``Env``, ``ToolSpec`` (a tool), ``Demonstrator`` (a scripted player), ``StepResult`` (what ``step``
  returns: observation, reward, terminated, truncated, info), ``SnapshotKind``, and the error ``EnvBroken``.
* Helpers to write one: ``task_to_play`` for ``reset``, ``read_call`` and ``text_tool`` for ``step`` and ``tools``,
  ``probability`` for a demonstrator's noise. ``VisitEnv`` is a base class for an environment whose episode state is one
  frozen value, and ``ToolEnv`` for such an environment with tools; it raises ``CallRefused`` for an impossible call.
* To check and play one: ``check_env`` returns a ``CheckReport``. ``make_env`` builds an environment by name, and
  ``wrap`` puts wrappers around it. ``Forkable`` returns to a ``Mark`` by snapshot or by replay (``ReplayDivergence``).
  Search steps through ``EnvDynamics``, which adds rewards and a step limit to one environment or to an ``EnvPool`` of
  several instances.
* Wrappers: ``EnvWrapper`` is the base class of what changes an environment from outside. ``WorkerEnv`` runs an
  environment in its own process, under a time limit (``EnvTimeout``, ``EnvCrashed``).
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
