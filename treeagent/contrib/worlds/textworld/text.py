"""The texts that a player reads: plain descriptions, written into the game before it is compiled, and replies without
banner, prompt and trace."""

import re
from typing import Any

_TRACE = re.compile(r"\[([^\]]+)\]\n?")
_SUCCEEDED = " - succeeded"
_ROOM = re.compile(r"-= (.+?) =-")
_SCORE = re.compile(r"Your score has just gone up by (\w+) points?\.")
WON, LOST = "*** The End ***", "*** You lost! ***"
_RECIPE = re.compile(r"Ingredients:\s*(?P<ingredients>.*?)\s*Directions:\s*(?P<directions>.*)", re.DOTALL)


def write_plainly(game: Any) -> None:
    """Replace the descriptions of the rooms and things in a ``textworld.Game`` by short ones. Call it before the game
    is compiled.

    The descriptions are Inform 7 source, so the compiled game still says what is open and where things are.
    """
    for room in game.world.rooms:
        game.infos[room.id].desc = _room(game, room)
    for thing in game.world.objects:
        game.infos[thing.id].desc = "Nothing special."
    recipe = _RECIPE.search(str(game.metadata.get("recipe", "")))
    if recipe is not None:
        book = next(info for info in game.infos.values() if info.name == "cookbook")
        book.desc = (
            f"Ingredients: {_joined_lines(recipe['ingredients'])}. Directions: {_joined_lines(recipe['directions'])}."
        )


def split_trace(raw: str) -> tuple[str, tuple[str, ...]]:
    """Split the interpreter's output. Returns (the text for the player, the successful actions in Inform 7's words)."""
    tags: list[str] = _TRACE.findall(raw)
    done = (tag.removesuffix(_SUCCEEDED) for tag in tags if tag.endswith(_SUCCEEDED))
    # The trace of a rule contains brackets. A rule is a part of an action, so it is skipped.
    return clean(_TRACE.sub("", raw)), tuple(action for action in done if "(" not in action)


def clean(raw: str) -> str:
    """Return one line per paragraph, without prompt and status line, and nothing after the end of the game."""
    text = raw.rpartition("\n>")[0] or raw
    for end in (WON, LOST):
        before, found, _ = text.partition(end)
        text = before + found
    lines = (" ".join(line.split()) for line in text.splitlines())
    return _SCORE.sub(r"Score up by \1.", _ROOM.sub(r"\1", "\n".join(line for line in lines if line)))


def opening(raw: str) -> str:
    """Return the description of the first room from the interpreter's first output, without banner and objective."""
    return clean(raw[raw.index("-= ") :])


def _room(game: Any, room: Any) -> str:
    kinds = game.kb.types
    things = []
    for thing in room.content:
        name, this = game.infos[thing.id].name, thing.id
        if kinds.is_descendant_of(thing.type, ["c"]):
            inside = f"[if {this} is open and something is in {this}] with [a list of things in {this}][end if]"
            things.append(f"{_state(this)} {name}{inside}")
        elif kinds.is_descendant_of(thing.type, ["s"]):
            things.append(f"{name}[if something is on {this}] with [a list of things on {this}][end if]")
    exits = []
    for direction in sorted(room.exits):
        door = room.doors.get(direction)
        exits.append(direction if door is None else f"{direction} by {_state(door.id)} {game.infos[door.id].name}")
    contents = f"Here: {'; '.join(things)}. " if things else ""
    return f"{contents}Exits: {', '.join(exits) or 'none'}."


def _state(this: str) -> str:
    return f"[if {this} is locked]locked[else if {this} is open]open[otherwise]closed[end if]"


def _joined_lines(lines: str) -> str:
    return "; ".join(line.strip() for line in lines.splitlines() if line.strip())
