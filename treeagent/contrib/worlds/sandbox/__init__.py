"""Sandboxes that branch: a contract of five verbs, four backends, an environment on top."""

from treeagent.contrib.worlds.sandbox.box import Box, PythonBox, Ran
from treeagent.contrib.worlds.sandbox.env import SandboxEnv, SandboxOptions
from treeagent.contrib.worlds.sandbox.hosted import HostedBox
from treeagent.contrib.worlds.sandbox.shell import ContainerBox, ShellBox

__all__ = ["Box", "ContainerBox", "HostedBox", "PythonBox", "Ran", "SandboxEnv", "SandboxOptions", "ShellBox"]
