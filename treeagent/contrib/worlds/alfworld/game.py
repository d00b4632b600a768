"""One game, which can be played from any state that commands lead to, with ALFWorld's rules and texts, by Fast
Downward."""

import copy
import functools
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np

_PLACES = 4096
"""Most cached states of a game, a few KB each. A state that is not cached is replayed from the start."""

Facts = Mapping[Any, tuple[Any, ...]]
"""TextWorld's propositions by signature, sorted, so that lists in texts have the same order in every process."""


@dataclass(frozen=True, slots=True)
class Place:
    """The state that a sequence of commands leads to."""

    state: int
    """Fast Downward's number of the state, valid while this game is loaded there."""
    facts: Facts
    won: bool
    moves: Mapping[str, Any]
    """TextWorld's actions by command."""
    inspected: tuple[str, ...]
    """Receptacles that have been looked into."""


class Game:
    """A game in the format of ALFWorld's ``game.tw-pddl``. A state is identified by the commands that lead to it."""

    _loaded: ClassVar["Game | None"] = None
    """The game that is loaded in Fast Downward, which holds one at a time."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        with contained():
            from alfworld.agents.utils.misc import Demangler
            from textworld.envs.pddl.logic import Atom, GameLogic, PddlState
            from textworld.generator.game import EntityInfo

        _cache_texts()
        self._atom = Atom
        Game._loaded = None
        with _translated_once():
            logic = GameLogic(data["pddl_domain"], data["grammar"])
            self._state = PddlState(_planner(), data["pddl_problem"], logic)
        self._infos = {
            each.name: EntityInfo(each.name, each.type) for fact in self._state.facts for each in fact.arguments
        }
        names = Demangler(game_infos=self._infos)
        for info in self._infos.values():
            info.name, info.definite, info.indefinite = names.demangle_alfred_name(info.id), "the", "a"
        self._names = {key: info.name for key, info in self._infos.items()}
        self._moves: dict[int, tuple[str, Any]] = {}
        self._places: dict[tuple[str, ...], Place] = {}
        self._start = _apply_effects({}, self._state.facts)
        intro = self._render("#intro#", {}, self._start)
        self.opening, _, self.objective = intro.partition("\n\n")[2].rpartition("\n\n")

    def play(self, history: tuple[str, ...], command: str) -> tuple[str, tuple[str, ...]]:
        """Give a command after the commands ``history``. Returns (the observation, the commands that lead to the new
        state), the latter ``history`` if nothing happens."""
        words = " ".join(command.split())
        action = self.at(history).moves.get(words)
        if action is None:
            return "Nothing happens.", history
        extended = (*history, words)
        return self._render(action.feedback_rule, action.mapping, self.at(extended).facts), extended

    def commands(self, history: tuple[str, ...]) -> list[str]:
        place = self.at(history)
        return [] if place.won else sorted(place.moves)

    def key(self, history: tuple[str, ...]) -> str:
        changed = {fact for facts in self.at(history).facts.values() for fact in facts}
        changed ^= {fact for facts in self._start.values() for fact in facts}
        return blake2b("\n".join(sorted(map(str, changed))).encode(), digest_size=16).hexdigest()

    def objects(self, history: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return (object, receptacle) for every object that is in a receptacle."""
        pairs = (
            [self._names[each.name].strip() for each in fact.arguments]
            for facts in self.at(history).facts.values()
            for fact in facts
            if fact.name == "inreceptacle"
        )
        return sorted((name, where) for name, where in pairs)

    def at(self, history: tuple[str, ...]) -> Place:
        if Game._loaded is not self:
            # Another game was loaded since, so the state numbers of this game are no longer valid.
            _planner().load_sas(self._state.sas.encode())
            Game._loaded = self
            self._places = {(): self._current_place(self._start, ())}
        elif len(self._places) > _PLACES:
            self._places = {(): self._places[()]}
        known = len(history)
        while history[:known] not in self._places:
            known -= 1
        for count in range(known, len(history)):
            self._places[history[: count + 1]] = self._next_place(self._places[history[:count]], history[count])
        return self._places[history]

    def _next_place(self, place: Place, command: str) -> Place:
        action, library = place.moves[command], _planner()
        library.set_state_id(place.state)
        effects = (self._atom * action.effects)()
        library.apply_operator(action.id, effects)
        facts = _apply_effects(place.facts, [each.get_fact(self._state.name2type) for each in effects])
        following = self._current_place(facts, place.inspected)
        receptacle = command.removeprefix("go to ").removeprefix("open ")
        # A receptacle that is still closed does not show its contents.
        if receptacle == command or receptacle in place.inspected or f"open {receptacle}" in following.moves:
            return following
        return replace(following, inspected=(*place.inspected, receptacle))

    def _current_place(self, facts: Facts, inspected: tuple[str, ...]) -> Place:
        moves: dict[str, Any] = {}
        for action in self._state.all_applicable_actions():
            if action.id not in self._moves:
                # Names and positions of receptacles never change, so the text of a command is computed once.
                action.command_template = self._render(action.command_template, action.mapping, facts)
                action.effects = self._state._operators[action.id].nb_effect_atoms
                self._moves[action.id] = " ".join(action.format_command(self._names).split()), action
            moves.setdefault(*self._moves[action.id])
        library = _planner()
        return Place(library.get_state_id(), facts, bool(library.check_goal()), moves, inspected)

    def _render(self, text: str, mapping: Mapping[Any, Any], facts: Facts) -> str:
        self._state._facts = defaultdict(tuple, facts)
        context = {
            "state": self._state,
            "facts": list(self._state.facts),
            "variables": {each.name: self._infos[value.name] for each, value in mapping.items()},
            "mapping": mapping,
            "entity_infos": self._infos,
        }
        return str(self._state._logic.grammar.derive(text, context)).strip()


def _apply_effects(facts: Facts, effects: Iterable[Any]) -> Facts:
    """Return the facts after the effects. Each effect removes its negation."""
    now: dict[Any, set[Any]] = {}
    for effect in effects:
        opposite = effect.negate()
        for each in (opposite, effect):
            now.setdefault(each.signature, set(facts.get(each.signature, ())))
        now[opposite.signature].discard(opposite)
        now[effect.signature].add(effect)
    return {**facts, **{signature: tuple(sorted(each, key=str)) for signature, each in now.items()}}


@contextmanager
def contained() -> Iterator[None]:
    """Context that undoes a side effect of TextWorld, which changes the global random state when it is imported."""
    python, legacy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


@functools.cache
def _planner() -> Any:
    """Return Fast Downward's library, loaded once per process and never closed. All loaded copies of the library share
    a registry of their parts. Closing one leaves dangling pointers in it, and loading the next copy crashes."""
    import fast_downward

    return fast_downward.load_lib()


@contextmanager
def _translated_once() -> Iterator[None]:
    """Context in which each game is translated once, which halves the loading time: TextWorld translates it again for
    plans. The translator overwrites ``sys.argv``, which is restored."""
    import fast_downward

    translate, line = fast_downward.pddl2sas, sys.argv
    once = functools.cache(translate)
    fast_downward.pddl2sas = lambda domain, problem, **settings: once(domain, problem)
    try:
        yield
    finally:
        fast_downward.pddl2sas, sys.argv = translate, line


@functools.cache
def _cache_texts() -> None:
    """Patch TextWorld to cache its parsed texts and to share names and variables, which never change. This saves nine
    tenths of the time of a step."""
    from textworld.envs.pddl import textgen

    parse, query = functools.cache(textgen._parse_and_convert), functools.cache(textgen.Rule.parse_conjunctive_query)
    textgen._parse_and_convert = lambda *args, **settings: copy.deepcopy(parse(*args, **settings))
    textgen.Rule.parse_conjunctive_query = query
    textgen.copy_context = lambda context: {
        **context,
        "variables": dict(context["variables"]),
        "mapping": dict(context["mapping"]),
    }
