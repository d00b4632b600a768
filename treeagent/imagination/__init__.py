"""Search in a world model, and check the imagined trees by replaying paths in the environment.

``dynamics.Imagination`` is the dynamics of such a search: tasks start in the environment, and all later steps are
imagined. ``verify`` replays the best imagined paths, so that no imagined success is used without a check. ``load``
opens the world model of a run. ``env.WorldEnv`` offers it as the environment named "imagined".
"""
