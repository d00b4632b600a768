"""Search in a world model: the dynamics that imagines, and the replay that verifies what it promised."""

from treeagent.envs import BUILT_IN

BUILT_IN["imagined"] = "treeagent.imagination.env:WorldEnv"  # registered from here: no environment may import this room
