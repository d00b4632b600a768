"""Sandboxes that branch: a contract of five verbs, a backend for Linux without containers, an environment on top."""

from treeagent.contrib.worlds.sandbox.box import Box, PythonBox, Ran
from treeagent.contrib.worlds.sandbox.env import SandboxEnv, SandboxOptions

__all__ = ["Box", "PythonBox", "Ran", "SandboxEnv", "SandboxOptions"]
