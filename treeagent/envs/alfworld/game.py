"""One game, played from any place that commands lead to: ALFWorld's rules and words through Fast Downward."""

import copy
import functools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar

from treeagent.envs.textworld.games import contained

_PLACES = 4096
"""Places of a game that are remembered, a few KB each; another one is played anew from the start."""

Facts = Mapping[Any, tuple[Any, ...]]
"""TextWorld's propositions by signature, sorted: lists in texts are then in the same order in every process."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where commands have led."""

    state: int
    """Fast Downward's number of the state, as long as it holds this game."""
    facts: Facts
    won: bool
    moves: Mapping[str, Any]
    """TextWorld's actions by command."""
    looked: tuple[str, ...]
    """Receptacles whose contents have been seen."""


class Game:
    """A game in the form of ALFWorld's ``game.tw-pddl``. A place in it is named by the commands that lead there."""

    _planned: ClassVar["Game | None"] = None
    """The game that Fast Downward holds: it holds one at a time."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        with contained():
            from alfworld.agents.utils.misc import Demangler
            from textworld.envs.pddl.logic import Atom, GameLogic, PddlState
            from textworld.generator.game import EntityInfo

        _quicken_texts()
        self._atom = Atom
        Game._planned = None
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
        self._start = _changed({}, self._state.facts)
        intro = self._written("#intro#", {}, self._start)
        self.opening, _, self.objective = intro.partition("\n\n")[2].rpartition("\n\n")

    def play(self, did: tuple[str, ...], command: str) -> tuple[str, tuple[str, ...]]:
        """(What is read after a command, the commands that lead to where it led): ``did`` where nothing happens."""
        words = " ".join(command.split())
        action = self.at(did).moves.get(words)
        if action is None:
            return "Nothing happens.", did
        there = (*did, words)
        return self._written(action.feedback_rule, action.mapping, self.at(there).facts), there

    def commands(self, did: tuple[str, ...]) -> list[str]:
        """The admissible commands, sorted; none where the task is done."""
        place = self.at(did)
        return [] if place.won else sorted(place.moves)

    def key(self, did: tuple[str, ...]) -> str:
        """Equal where all facts are."""
        changed = {fact for facts in self.at(did).facts.values() for fact in facts}
        changed ^= {fact for facts in self._start.values() for fact in facts}
        return blake2b("\n".join(sorted(map(str, changed))).encode(), digest_size=16).hexdigest()

    def objects(self, did: tuple[str, ...]) -> list[tuple[str, str]]:
        """(object, receptacle) of every object that lies somewhere."""
        pairs = (
            [self._names[each.name].strip() for each in fact.arguments]
            for facts in self.at(did).facts.values()
            for fact in facts
            if fact.name == "inreceptacle"
        )
        return sorted((name, where) for name, where in pairs)

    def at(self, did: tuple[str, ...]) -> Place:
        """The place that commands lead to."""
        if Game._planned is not self:
            # What Fast Downward called the states of this game means nothing any more.
            _planner().load_sas(self._state.sas.encode())
            Game._planned = self
            self._places = {(): self._arrived(self._start, ())}
        elif len(self._places) > _PLACES:
            self._places = {(): self._places[()]}
        known = len(did)
        while did[:known] not in self._places:
            known -= 1
        for count in range(known, len(did)):
            self._places[did[: count + 1]] = self._after(self._places[did[:count]], did[count])
        return self._places[did]

    def _after(self, place: Place, command: str) -> Place:
        action, library = place.moves[command], _planner()
        library.set_state_id(place.state)
        effects = (self._atom * action.effects)()
        library.apply_operator(action.id, effects)
        facts = _changed(place.facts, [each.get_fact(self._state.name2type) for each in effects])
        there = self._arrived(facts, place.looked)
        came = command.removeprefix("go to ").removeprefix("open ")
        # What is still to be opened shows nothing.
        if came == command or came in place.looked or f"open {came}" in there.moves:
            return there
        return replace(there, looked=(*place.looked, came))

    def _arrived(self, facts: Facts, looked: tuple[str, ...]) -> Place:
        """The place where Fast Downward stands."""
        moves: dict[str, Any] = {}
        for action in self._state.all_applicable_actions():
            if action.id not in self._moves:
                # Names and places of receptacles never change, so a command is written once.
                action.command_template = self._written(action.command_template, action.mapping, facts)
                action.effects = self._state._operators[action.id].nb_effect_atoms
                self._moves[action.id] = " ".join(action.format_command(self._names).split()), action
            moves.setdefault(*self._moves[action.id])
        library = _planner()
        return Place(library.get_state_id(), facts, bool(library.check_goal()), moves, looked)

    def _written(self, text: str, mapping: Mapping[Any, Any], facts: Facts) -> str:
        self._state._facts = defaultdict(tuple, facts)
        context = {
            "state": self._state,
            "facts": list(self._state.facts),
            "variables": {each.name: self._infos[value.name] for each, value in mapping.items()},
            "mapping": mapping,
            "entity_infos": self._infos,
        }
        return str(self._state._logic.grammar.derive(text, context)).strip()


def _changed(facts: Facts, effects: Iterable[Any]) -> Facts:
    """The facts after effects; each effect ends its opposite."""
    now: dict[Any, set[Any]] = {}
    for effect in effects:
        opposite = effect.negate()
        for each in (opposite, effect):
            now.setdefault(each.signature, set(facts.get(each.signature, ())))
        now[opposite.signature].discard(opposite)
        now[effect.signature].add(effect)
    return {**facts, **{signature: tuple(sorted(each, key=str)) for signature, each in now.items()}}


@functools.cache
def _planner() -> Any:
    """Fast Downward, one for the process and never closed. Every loaded copy of the library enters its parts into a
    registry that all copies share; when one is closed, the registry points at nothing, and loading the next crashes."""
    import fast_downward

    return fast_downward.load_lib()


@contextmanager
def _translated_once() -> Iterator[None]:
    """Translate each game once while it is loaded, and put the process's command line back.

    TextWorld translates a second time, for plans, which takes half the loading time; no plan is asked for here. The
    translator overwrites ``sys.argv``.
    """
    import fast_downward

    translate, line = fast_downward.pddl2sas, sys.argv
    once = functools.cache(translate)
    fast_downward.pddl2sas = lambda domain, problem, **settings: once(domain, problem)
    try:
        yield
    finally:
        fast_downward.pddl2sas, sys.argv = translate, line


@functools.cache
def _quicken_texts() -> None:
    """Cache what TextWorld parses, and share its names and variables in place of copies, which saves nine tenths of the
    time of a step. It parses the same few texts at every step, and it never changes a name or a variable."""
    from textworld.envs.pddl import textgen

    parse, query = functools.cache(textgen._parse_and_convert), functools.cache(textgen.Rule.parse_conjunctive_query)
    textgen._parse_and_convert = lambda *args, **settings: copy.deepcopy(parse(*args, **settings))
    textgen.Rule.parse_conjunctive_query = query
    textgen.copy_context = lambda context: {
        **context,
        "variables": dict(context["variables"]),
        "mapping": dict(context["mapping"]),
    }
