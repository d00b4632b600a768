"""Repair small real packages: one fault each, an issue that shows its effect, hidden calls that decide."""

from treeagent.contrib.worlds.swe.env import SweEnv, SweOptions

__all__ = ["SweEnv", "SweOptions"]
