"""Tool environments: the contract, the check that it is kept, and the environments that ship.

To write an environment, read ``envs/base.py`` and subclass ``Env``; ``treeagent envs new NAME`` writes a small one that
works, and ``treeagent envs check module:Class`` checks yours.

* The contract: ``Env``, ``ToolSpec`` (a tool), ``Demonstrator`` (a scripted player), ``StepResult`` (what ``step``
  returns: observation, reward, terminated, truncated, info), ``SnapshotKind``, and the errors ``EnvBroken`` and
  ``SnapshotLost``.
* To write one with: ``task_to_play`` for ``reset``, ``read_call`` and ``text_tool`` for ``step`` and ``tools``,
  ``probability`` for a demonstrator's noise, ``VisitEnv`` for an episode that is one frozen value, ``ToolEnv`` for such
  an episode that goes on by calls of tools, ``CallRefused`` for a call that is not possible.
* To check and play one: ``check_env`` gives a ``CheckReport``; ``make_env`` makes one by name (``BUILT_IN``,
  ``"module:Class"``; ``EXTRAS`` names the extras that some need); ``Forkable`` goes back to a ``Mark``, by snapshot
  or by replay (``ReplayDivergence``); ``EnvDynamics`` is what search steps through, with rewards and step limit, on
  one environment or on an ``EnvPool`` of several.
* ``AsyncEnv`` is the contract of an environment whose methods are coroutines; ``make_env`` makes it a ``WaitingEnv``.
* Around one: ``WorkerEnv`` runs it in a process of its own, under time limits in seconds (``EnvTimeout``,
  ``EnvCrashed``); ``ShieldedEnv`` refuses calls that a ``Shield`` forbids and cuts observations at a number of bytes.
"""

from treeagent.envs.approval import Approve
from treeagent.envs.asynchronous import AsyncEnv, WaitingEnv
from treeagent.envs.base import (
    Demonstrator,
    Env,
    EnvBroken,
    SnapshotKind,
    SnapshotLost,
    StepResult,
    ToolSpec,
    probability,
    task_to_play,
)
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.check import CheckReport, check_env
from treeagent.envs.dynamics import EnvDynamics
from treeagent.envs.forks import Forkable, Mark, ReplayDivergence
from treeagent.envs.make import BUILT_IN, EXTRAS, env_class, imported, make_env
from treeagent.envs.pool import EnvPool
from treeagent.envs.shield import Shield, ShieldedEnv
from treeagent.envs.visit import CallRefused, ToolEnv, VisitEnv
from treeagent.envs.worker import EnvCrashed, EnvTimeout, WorkerEnv

__all__ = [
    "BUILT_IN",
    "EXTRAS",
    "Approve",
    "AsyncEnv",
    "CallRefused",
    "CheckReport",
    "Demonstrator",
    "Env",
    "EnvBroken",
    "EnvCrashed",
    "EnvDynamics",
    "EnvPool",
    "EnvTimeout",
    "Forkable",
    "Mark",
    "ReplayDivergence",
    "Shield",
    "ShieldedEnv",
    "SnapshotKind",
    "SnapshotLost",
    "StepResult",
    "ToolEnv",
    "ToolSpec",
    "VisitEnv",
    "WaitingEnv",
    "WorkerEnv",
    "check_env",
    "env_class",
    "imported",
    "make_env",
    "probability",
    "read_call",
    "task_to_play",
    "text_tool",
]
