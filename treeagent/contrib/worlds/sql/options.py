"""Options of the SQL analyst."""

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SqlOptions:
    """Settings of ``SqlEnv``."""

    difficulty: int = Field(default=2, ge=1, le=3)
    """1: values and counts from one table. 2: also groups, orders and extremes. 3: also joins."""
    rows: int = Field(default=12, ge=6, le=20)
    """Rows of the main table. The second table has twice as many."""
    shown: int = Field(default=8, ge=1)
    """Most rows of a query's result that the agent reads."""
