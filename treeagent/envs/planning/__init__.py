"""Planning problems in PDDL, generated or from files. The size of generated problems controls the horizon."""

from treeagent.envs.planning.env import PlanningEnv
from treeagent.envs.planning.options import PlanningOptions

__all__ = ["PlanningEnv", "PlanningOptions"]
