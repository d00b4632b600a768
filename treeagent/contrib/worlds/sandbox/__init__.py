"""Sandboxes that branch: a contract of five verbs, backends for Linux without containers, an environment on top."""

from treeagent.contrib.worlds.sandbox.box import Box, PythonBox, Ran
from treeagent.contrib.worlds.sandbox.env import SandboxEnv, SandboxOptions
from treeagent.contrib.worlds.sandbox.shell import ShellBox

__all__ = ["Box", "PythonBox", "Ran", "SandboxEnv", "SandboxOptions", "ShellBox"]
