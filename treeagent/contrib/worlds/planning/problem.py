"""Planning problems in STRIPS with negative conditions: grounded actions, and sentences."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

Fact = tuple[str, ...]
"""A predicate and its objects: ``("on", "a", "b")``. In a domain, a variable such as ``?x`` can stand for an object."""
State = frozenset[Fact]
"""All facts that hold, without those that no action changes."""
Literal = tuple[Fact, bool]
"""A fact and whether it must hold, or becomes true."""


class Schema(NamedTuple):
    """An action of a domain."""

    name: str
    variables: Sequence[str]
    when: tuple[Literal, ...]
    effects: tuple[Literal, ...]


@dataclass(frozen=True)
class Domain:
    name: str
    schemas: tuple[Schema, ...]

    @cached_property
    def fluents(self) -> frozenset[str]:
        """The predicates that some action changes."""
        return frozenset(fact[0] for schema in self.schemas for fact, _ in schema.effects)


class Step(NamedTuple):
    """A grounded action. Its name is as the agent writes it, such as ``unstack a b``."""

    name: str
    needs: State
    """The facts that must hold."""
    forbids: State
    """The facts that must not hold."""
    adds: State
    deletes: State

    def possible(self, state: State) -> bool:
        return self.needs <= state and not self.forbids & state

    def after(self, state: State) -> State:
        """A fact that is both deleted and added is true (PDDL 2.1)."""
        return state - self.deletes | self.adds


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem of a domain: its objects, the initial facts, and the facts of the goal."""

    domain: Domain
    objects: Sequence[str]
    init: State
    goal: tuple[Fact, ...]

    def solved(self, state: State) -> bool:
        return state.issuperset(self.goal)

    @cached_property
    def start(self) -> State:
        return frozenset(fact for fact in self.init if fact[0] in self.domain.fluents)

    @cached_property
    def known(self) -> State:
        """The facts that no action changes."""
        return self.init - self.start

    @cached_property
    def steps(self) -> Mapping[str, Step]:
        """The grounded actions by name, sorted, without those that are unreachable even in the delete relaxation."""
        left = [step for schema in self.domain.schemas for step in self._grounded(schema)]
        found, reached, before = dict[str, Step](), self.start, -1
        while len(found) > before:
            before = len(found)
            found |= {step.name: step for step in left if step.needs <= reached}
            left = [step for step in left if step.name not in found]
            reached = reached.union(*(step.adds for step in found.values()))
        return dict(sorted(found.items()))

    def possible(self, state: State) -> list[str]:
        return [name for name, step in self.steps.items() if step.possible(state)]

    def _grounded(self, schema: Schema) -> Iterator[Step]:
        for objects in product(self.objects, repeat=len(schema.variables)):
            names = dict(zip(schema.variables, objects, strict=True))
            if (when := self._condition(schema.when, names)) is not None:
                adds = frozenset(_filled(fact, names) for fact, value in schema.effects if value)
                deletes = frozenset(_filled(fact, names) for fact, value in schema.effects if not value)
                yield Step(" ".join([schema.name, *objects]), *when, adds, deletes)

    def _condition(self, literals: Iterable[Literal], names: Mapping[str, str]) -> tuple[State, State] | None:
        """The facts that must hold and those that must not, without what never changes; None if this can never be."""
        yes, no = set[Fact](), set[Fact]()
        for fact, value in literals:
            filled = _filled(fact, names)
            if fact[0] in self.domain.fluents:
                (yes if value else no).add(filled)
            elif (filled in self.known) != value:
                return None
        return None if yes & no else (frozenset(yes), frozenset(no))


def _filled(fact: Fact, names: Mapping[str, str]) -> Fact:
    return tuple(names.get(each, each) for each in fact)


_SENTENCES = {
    "clear": "{} is clear",
    "flattire": "the tire is flat",
    "handempty": "your hand is empty",
    "holding": "you hold {}",
    "on": "{} is on {}",
    "ontable": "{} is on the table",
    "road": "road {} {}",
    "spare-in": "a spare is at {}",
    "vehicle-at": "the car is at {}",
}


def sentence(fact: Fact) -> str:
    return _SENTENCES[fact[0]].format(*fact[1:])


def sentences(facts: Iterable[Fact], hidden: Collection[str]) -> str:
    return ", ".join(sorted(sentence(fact) for fact in facts if fact[0] not in hidden))


def prompt_of(problem: Problem, hidden: Collection[str]) -> str:
    known = sentences(problem.known, hidden)
    calls = (" ".join([each.name, *(name[1:] for name in each.variables)]) for each in problem.domain.schemas)
    goal = f"Goal: {', '.join(map(sentence, problem.goal))}"
    return "\n".join((goal, *([f"Always: {known}"] if known else []), f"Actions: {', '.join([*calls, 'finish'])}"))
