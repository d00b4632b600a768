"""Options of the ALFWorld environment."""

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Kind = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
"""ALFWorld's names of the kinds of tasks."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AlfworldOptions:
    """Settings of ``AlfworldEnv``."""

    kinds: tuple[Kind, ...] = Field(default=Kind.__args__, min_length=1)  # type: ignore[attr-defined]
    """Kinds of tasks in generated games."""
    alike: int = Field(default=10, ge=1)
    """Most receptacles of the same type in a generated game; a floor plan may have a dozen drawers."""
    games: str | None = None
    """Folder of official game files to play instead of generated games, such as ``json_2.1.1`` from
    ``alfworld-download``."""
    show_commands: bool = True
    """List the admissible commands below each observation."""
