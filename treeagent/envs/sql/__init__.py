"""A SQL analyst: the agent answers questions about generated SQLite databases by queries."""

from treeagent.envs.sql.env import SqlEnv
from treeagent.envs.sql.options import SqlOptions

__all__ = ["SqlEnv", "SqlOptions"]
