"""A SQL analyst: the agent answers questions about generated SQLite databases by queries."""

from treeagent.contrib.worlds.sql.env import SqlEnv, SqlOptions

__all__ = ["SqlEnv", "SqlOptions"]
