"""Tool environments: the contract, the forks that search needs, and the environments that ship."""

from treeagent.envs.base import Demonstrator, Env, EnvBroken, SnapshotLost, ToolSpec
from treeagent.envs.check import CheckReport, check_env
from treeagent.envs.dynamics import EnvDynamics
from treeagent.envs.forks import Forkable, Mark, ReplayDivergence
from treeagent.envs.make import BUILT_IN, EXTRAS, env_class, imported, make_env
from treeagent.envs.shield import Shield, ShieldedEnv
from treeagent.envs.worker import EnvCrashed, EnvTimeout, WorkerEnv

__all__ = [
    "BUILT_IN",
    "EXTRAS",
    "CheckReport",
    "Demonstrator",
    "Env",
    "EnvBroken",
    "EnvCrashed",
    "EnvDynamics",
    "EnvTimeout",
    "Forkable",
    "Mark",
    "ReplayDivergence",
    "Shield",
    "ShieldedEnv",
    "SnapshotLost",
    "ToolSpec",
    "WorkerEnv",
    "check_env",
    "env_class",
    "imported",
    "make_env",
]
