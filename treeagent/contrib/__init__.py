"""Everything optional, one folder a thing. ``treeagent.seams`` reads the two tables below; the core imports no more."""

from collections.abc import Mapping

NAMES: Mapping[str, Mapping[str, str]] = {
    "environment.name": {},
    "environment.wrappers": {},
    "policy.generator": {},
    "search.method": {},
    "update.advantages.kind": {},
    "rewards.function": {},
}
"""For each seam, short names and what they stand for: ``"module:Name"``."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "scale": ("treeagent.contrib.scale.cli", "Run a command on a Ray cluster, or with updates in several processes."),
    "review": ("treeagent.contrib.people.cli", "Let people judge a run, and write it anew as they judged it."),
}
"""Commands of the command line: the module whose ``app`` holds each, and its line of help."""
