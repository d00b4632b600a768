"""Options of the Python code tool."""

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PythonOptions:
    """Settings of ``PythonEnv``."""

    difficulty: int = Field(default=2, ge=1, le=3)
    """1: filter numbers by a condition and reduce them to a result. 2: also transform each number. 3: filter by two
    conditions."""
    seconds: float = Field(default=10.0, gt=0, le=60)
    """Most wall-clock time of a run, in seconds. CPU time is limited to 2 seconds."""
    megabytes: int = Field(default=256, ge=64, le=4096)
    """Most memory of a run, in MiB."""
    shown: int = Field(default=300, ge=20)
    """Most characters of a run's output that the agent reads."""
