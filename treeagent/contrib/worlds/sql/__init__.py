"""A SQL analyst: the agent answers questions about generated SQLite databases by queries."""

from treeagent.contrib.worlds.sql.env import SqlEnv
from treeagent.contrib.worlds.sql.options import SqlOptions

__all__ = ["SqlEnv", "SqlOptions"]
