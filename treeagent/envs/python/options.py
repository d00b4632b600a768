"""The settings of the Python code tool."""

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PythonOptions:
    """Settings of ``PythonEnv``."""

    difficulty: int = Field(default=2, ge=1, le=3)
    """1 asks to choose among numbers and sum them up, 2 to change them in between, 3 to choose by two conditions."""
    seconds: float = Field(default=10.0, gt=0, le=60)
    """Most wall time of a run; of processor time it may have 2 seconds."""
    megabytes: int = Field(default=256, ge=64, le=4096)
    """Most memory of a run."""
    shown: int = Field(default=300, ge=20)
    """Characters of a run's output that the agent reads."""
