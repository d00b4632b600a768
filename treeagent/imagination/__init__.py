"""Search in a world model, and replay in the environment of what the imagined trees promise.

``dynamics.Imagination`` is the dynamics of such a search: tasks open in the environment, and all later steps are
imagined. ``verify`` replays the best imagined paths, so that no imagined success is believed unchecked. ``load`` opens
the world model of a run. ``env.WorldEnv`` offers it as the environment named "imagined".
"""

from treeagent.envs import BUILT_IN

# Registered here, because no environment may import this room.
BUILT_IN["imagined"] = "treeagent.imagination.env:WorldEnv"
