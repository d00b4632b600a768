"""The settings of the SQL analyst."""

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SqlOptions:
    """Settings of ``SqlEnv``."""

    difficulty: int = Field(default=2, ge=1, le=3)
    """1 asks for values and counts of one table, 2 for groups, orders and extremes too, 3 for joins too."""
    rows: int = Field(default=12, ge=6, le=20)
    """Rows of the main table; a second one has two for each."""
    shown: int = Field(default=8, ge=1)
    """Rows of a query's result that the agent reads."""
