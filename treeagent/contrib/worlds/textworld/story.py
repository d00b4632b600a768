"""A loaded game, played as a pure function of positions: no state is kept between commands, except caches."""

import copy
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from treeagent.contrib.worlds.textworld.games import GAME, STORY, contained
from treeagent.contrib.worlds.textworld.text import LOST, WON, opening, split_trace

_SEED = 1
"""Seed of the interpreter. A TextWorld game seeds its own generator at the start."""
_TRACKED = 64
"""Tracked positions cached for each game, 30 kB each. One that was dropped is tracked again from the first action."""
_REPLIES = 256
"""Replies cached for each game, about 2 kB each, because search and sampling repeat the same commands."""
_LONGEST = 120
"""Most characters of a command. The interpreter truncates at 198 bytes."""
_ONE_SENTENCE = re.compile(r"[\w' -]+")
_LOOKING = ("looking", "examining", "taking inventory")
"""Prefixes of actions that change nothing, which are accepted even if TextWorld does not know them."""
_OBJECT_TABLE, _FIRST_OBJECT, _PROPERTIES = 0x0A, 63 * 2, 12
"""Address of the object table in the header, and its layout (Z-machine Standard 1.1, sections 11.1 and 12.3)."""
_OBJECT_BYTES = 14
_PASSING = (21, 31, 35, 36)
"""Attributes that no later text depends on: whether a room was visited, and flags that the game uses while it
prints."""
_LASTING = ~np.packbits([number in _PASSING for number in range(8 * _OBJECT_BYTES)])
"""Mask of the bits of an object that tell states apart."""

Outcome = Literal["", "won", "lost"]


@dataclass(frozen=True, slots=True)
class Position:
    """A state of a game: a small value from which any process with the same compiled game can continue."""

    memory: bytes
    """The interpreter's memory and stack, compressed, as the XOR with those at the start."""
    registers: tuple[object, ...]
    """The rest of the interpreter's state."""
    actions: tuple[str, ...] = ()
    """The actions so far, in Inform 7's words (``taking the coin``)."""
    outcome: Outcome = ""


@dataclass(eq=False)
class Tracked:
    """TextWorld's own model of a position: the true facts, the possible actions and a solution."""

    progress: Any
    inform7: Any

    @cached_property
    def commands(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.inform7.gen_commands_from_actions(self.progress.valid_actions))))

    @cached_property
    def policy(self) -> tuple[str, ...] | None:
        """Commands that win from here; ``None`` if TextWorld knows of none."""
        actions = self.progress.winning_policy
        return None if actions is None else tuple(self.inform7.gen_commands_from_actions(actions))

    @cached_property
    def facts(self) -> bytes:
        true = sorted(map(str, self.progress.state.facts))
        done = [str(quest.done) for quest in self.progress.quest_progressions]
        return blake2b("\n".join((*true, *done)).encode(), digest_size=16).digest()

    def after(self, action: str) -> "Tracked | None":
        """Return the model after an action; ``None`` if TextWorld does not know the action."""
        found = self.inform7.detect_action(action, self.progress.valid_actions)
        if found is None:
            return self if action.startswith(_LOOKING) else None
        if not found.added and not found.removed:
            return self
        progress = _copied(self.progress)
        progress.update(found)
        return Tracked(progress, self.inform7)


class Story:
    """A compiled game, loaded into memory."""

    def __init__(self, folder: Path) -> None:
        import jericho
        from textworld.generator.game import Game
        from textworld.generator.inform7 import Inform7Game

        with contained():
            self._interpreter = jericho.FrotzEnv(str(folder / STORY), _SEED)
        game = Game.load(str(folder / GAME))
        self._verbs = frozenset(game.verbs)
        self._track = _tracker(game, Inform7Game(game))
        self._replies: dict[tuple[Position, str], tuple[str, Position]] = {}
        raw, _ = self._interpreter.reset()
        self.opening = opening(raw)
        self._interpreter.step("tw-trace-actions")
        ram, stack, *_ = self._interpreter.get_state()
        self._ram_bytes, self._origin = len(ram), np.concatenate((ram, stack))
        self.start = self._current_position()

    def play(self, position: Position, command: str) -> tuple[str, Position]:
        """Give a command. Returns (the observation, the position after the command). The position stays the same if the
        command was not understood or had no effect."""
        words = " ".join(command.split())
        reply = self._replies.get((position, words))
        if reply is None:
            reply = self._replies[position, words] = self._execute(position, words)
            if len(self._replies) > _REPLIES:
                del self._replies[next(iter(self._replies))]
        return reply

    def tracked(self, position: Position) -> Tracked:
        tracked = self._track(position.actions)
        assert tracked is not None, "the position is another game's"
        return tracked

    def key(self, position: Position) -> str:
        """Return a hash of the facts and the interpreter's object tree. If it is equal for two positions, the same
        commands give the same texts from there on, except for commands with the word "it"."""
        memory = self._memory(position)[: self._ram_bytes]
        ram = memory.tobytes()
        table = int.from_bytes(ram[_OBJECT_TABLE : _OBJECT_TABLE + 2], "big") + _FIRST_OBJECT
        # The object table ends where the first property list begins.
        end = int.from_bytes(ram[table + _PROPERTIES : table + _PROPERTIES + 2], "big")
        digest = blake2b(self.tracked(position).facts, digest_size=16)
        objects = memory[table:end].reshape(-1, _OBJECT_BYTES)
        digest.update((objects & _LASTING).tobytes())
        return f"{digest.hexdigest()}{position.outcome}"

    def _execute(self, position: Position, words: str) -> tuple[str, Position]:
        objection = self._refusal(position, words)
        if objection:
            return objection, position
        memory = self._memory(position)
        self._interpreter.set_state((memory[: self._ram_bytes], memory[self._ram_bytes :], *position.registers))
        raw: str = self._interpreter.step(words)[0]
        text, done = split_trace(raw)
        actions = (*position.actions, *done)
        if not done:
            return text, position
        if self._track(actions) is None:
            return "Say in full what to do with what.", position
        outcome: Outcome = "won" if WON in text else "lost" if LOST in text else ""
        return text, self._current_position(actions, outcome)

    def _refusal(self, position: Position, words: str) -> str:
        if position.outcome:
            return "The game is over."
        if not words:
            return "I beg your pardon?"
        if len(words) > _LONGEST:
            return "That is too long."
        if words in self.tracked(position).commands:
            return ""
        # Commands such as "undo" would use state that the interpreter keeps outside its memory.
        if words.split()[0].lower() not in self._verbs:
            return "That's not a verb I recognise."
        # A full stop or "then" starts another command, and its verb would not be checked.
        if not _ONE_SENTENCE.fullmatch(words) or "then" in words.lower().split():
            return "One thing at a time."
        return ""

    def _current_position(self, actions: tuple[str, ...] = (), outcome: Outcome = "") -> Position:
        ram, stack, *registers = self._interpreter.get_state()
        memory = np.concatenate((ram, stack)) ^ self._origin
        return Position(zlib.compress(memory.tobytes(), 1), tuple(registers), actions, outcome)

    def _memory(self, position: Position) -> Any:
        return np.frombuffer(zlib.decompress(position.memory), np.uint8) ^ self._origin


def _copied(progress: Any) -> Any:
    """Copy as ``GameProgression.copy`` does, in a tenth of the time. That method also computes the start of the game
    again, without using it."""
    twin = copy.copy(progress)
    twin.state = progress.state.copy()
    twin.quest_progressions = [copy.copy(quest) for quest in progress.quest_progressions]
    for quest in twin.quest_progressions:
        quest.win_events = [copy.copy(event) for event in quest.win_events]
        quest.fail_events = [copy.copy(event) for event in quest.fail_events]
        for event in (*quest.win_events, *quest.fail_events):
            event._tree = event._tree.copy()
    return twin


def _tracker(game: Any, inform7: Any) -> Callable[[tuple[str, ...]], Tracked | None]:
    """Return a function from a sequence of actions to TextWorld's model after them, with a cache of recent results."""
    from textworld.generator.game import GameProgression

    @lru_cache(_TRACKED)
    def track(actions: tuple[str, ...]) -> Tracked | None:
        if not actions:
            return Tracked(GameProgression(game), inform7)
        before = track(actions[:-1])
        return None if before is None else before.after(actions[-1])

    return track
