"""The settings of ALFWorld's games."""

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
"""ALFWorld's names of what there is to do."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AlfworldOptions:
    """Settings of ``AlfworldEnv``."""

    kinds: tuple[Kind, ...] = Field(default=Kind.__args__, min_length=1)  # type: ignore[attr-defined]
    """What the generated games ask for."""
    alike: int = Field(default=10, ge=1)
    """Most receptacles of a type in a generated game: a real kitchen may have a dozen drawers."""
    games: str | None = None
    """A folder of ALFWorld's own game files, such as the ``json_2.1.1`` of ``alfworld-download``, to play in place of
    generated games."""
    show_commands: bool = True
    """List the admissible commands below each observation."""
