"""Options of the TextWorld environment."""

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Kind = Literal["cooking", "coin_collector", "treasure_hunter", "custom"]
Prose = Literal["plain", "house"]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TextWorldOptions:
    """Settings of ``TextWorldEnv``."""

    kind: Kind = "cooking"
    """TextWorld's challenge. ``custom`` is its general generator."""
    difficulty: int = Field(default=2, ge=1, le=5)
    """Level of ``games.LEVELS``. For cooking, levels 1 to 4 have the recipes, rooms and skills of levels 1 to 4 of
    Adhikari et al. 2020 (GATA)."""
    guided: bool = False
    """Whether the objective lists every step of a solution instead of only the last one."""
    prose: Prose = "plain"
    """``house`` is TextWorld's own grammar. ``plain`` describes rooms and recipes with a quarter of the words."""
    show_commands: bool = False
    """List the admissible commands in every observation. They make up most of its text, and tell what is worth trying.
    """
    cache: str | None = None
    """Folder of compiled games, shared by processes; unset is ``treeagent/textworld`` in the user's cache folder."""
