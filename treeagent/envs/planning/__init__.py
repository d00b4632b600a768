"""Planning problems in PDDL, generated or from files, whose size is the dial of the horizon."""

from treeagent.envs.planning.env import PlanningEnv
from treeagent.envs.planning.options import PlanningOptions

__all__ = ["PlanningEnv", "PlanningOptions"]
