"""MiniWoB++: small web pages in a headless Chromium."""

from treeagent.contrib.worlds.miniwob.env import MiniWoBEnv, MiniWoBOptions

__all__ = ["MiniWoBEnv", "MiniWoBOptions"]
