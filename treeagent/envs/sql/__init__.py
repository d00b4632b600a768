"""A SQL analyst: questions about generated SQLite databases, to be answered by a query."""

from treeagent.envs.sql.env import SqlEnv
from treeagent.envs.sql.options import SqlOptions

__all__ = ["SqlEnv", "SqlOptions"]
