"""Planning problems, whose size controls the horizon."""

from treeagent.contrib.worlds.planning.env import PlanningEnv, PlanningOptions

__all__ = ["PlanningEnv", "PlanningOptions"]
