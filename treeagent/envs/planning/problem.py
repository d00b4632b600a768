"""Planning problems in STRIPS with types, negative conditions and equality: PDDL, grounded actions, and sentences."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from treeagent.types import UserError

Fact = tuple[str, ...]
"""A predicate and its objects: ``("on", "a", "b")``. In a domain, a variable such as ``?x`` can stand for an object."""
State = frozenset[Fact]
"""All facts that hold, without those that no action changes."""
Literal = tuple[Fact, bool]
"""A fact and whether it must hold, or becomes true."""
_ROOT = "object"
"""The type that all objects have."""
_EQUAL = "="
_SECTIONS = {":requirements", ":predicates", ":types", ":constants", ":domain", ":objects", ":init", ":goal"}


class Case(NamedTuple):
    """A condition: the facts that must hold and those that must not."""

    yes: State
    no: State

    def holds(self, state: State) -> bool:
        return self.yes <= state and not self.no & state


_NEVER = Case(frozenset([("never",)]), frozenset())


class Schema(NamedTuple):
    """An action of a domain. Its variables have types."""

    name: str
    variables: Mapping[str, str]
    when: tuple[Literal, ...]
    effects: tuple[Literal, ...]


@dataclass(frozen=True)
class Domain:
    name: str
    schemas: tuple[Schema, ...]
    types: Mapping[str, tuple[str, ...]]
    """Supertypes of each type, including the type itself."""
    constants: Mapping[str, str]
    """Types of the objects that exist in every problem of the domain, by name."""

    @cached_property
    def fluents(self) -> frozenset[str]:
        """The predicates that some action changes."""
        return frozenset(fact[0] for schema in self.schemas for fact, _ in schema.effects)


class Step(NamedTuple):
    """A grounded action. Its name is as the agent writes it, such as ``unstack a b``."""

    name: str
    when: Case
    adds: State
    deletes: State

    def after(self, state: State) -> State:
        """Return the state after the action, whose condition must hold. A fact that is both deleted and added is true
        (PDDL 2.1)."""
        return state - self.deletes | self.adds


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem of a domain: its objects with their types, the initial facts, and the goal."""

    domain: Domain
    objects: Mapping[str, str]
    init: State
    aim: tuple[Literal, ...]

    @cached_property
    def start(self) -> State:
        return frozenset(fact for fact in self.init if fact[0] in self.domain.fluents)

    @cached_property
    def known(self) -> State:
        """The facts that no action changes."""
        return self.init - self.start

    @cached_property
    def goal(self) -> Case:
        return self._grounded_condition(self.aim, {}) or _NEVER

    @cached_property
    def steps(self) -> Mapping[str, Step]:
        """The grounded actions by name, sorted, without those that are unreachable even in the delete relaxation."""
        steps = [step for schema in self.domain.schemas for step in self._grounded(schema)]
        missing = [len(step.when.yes) for step in steps]
        users: dict[Fact, list[int]] = {}
        for number, step in enumerate(steps):
            for fact in step.when.yes:
                users.setdefault(fact, []).append(number)
        found = {step.name: step for step in steps if not step.when.yes}
        reached = {*self.start, *(fact for step in found.values() for fact in step.adds)}
        queue = list(reached)
        for fact in queue:
            for number in users.get(fact, ()):
                missing[number] -= 1
                if not missing[number]:
                    found[steps[number].name] = steps[number]
                    new = steps[number].adds - reached
                    reached |= new
                    queue += new
        return dict(sorted(found.items()))

    def possible(self, state: State) -> list[str]:
        """Return the names of the actions that are possible in a state, sorted."""
        candidates = (step for fact in (None, *state) for step in self._by_fact.get(fact, ()))
        return sorted(step.name for step in candidates if step.when.holds(state))

    @cached_property
    def _by_fact(self) -> Mapping[Fact | None, Sequence[Step]]:
        """The actions by the rarest fact that they need (None if they need none), so that few are tested in a state."""
        counts = Counter(fact for step in self.steps.values() for fact in step.when.yes)
        found: dict[Fact | None, list[Step]] = {}
        for step in self.steps.values():
            rarest = min(step.when.yes, key=lambda fact: (counts[fact], fact), default=None)
            found.setdefault(rarest, []).append(step)
        return found

    @cached_property
    def _of_type(self) -> Mapping[str, Sequence[str]]:
        members: dict[str, list[str]] = {name: [] for name in self.domain.types}
        for name, kind in sorted({**self.domain.constants, **self.objects}.items()):
            for each in self.domain.types.get(kind, ()):
                members[each].append(name)
        return members

    def _grounded(self, schema: Schema) -> Iterator[Step]:
        for names in self._choices(schema):
            when = self._grounded_condition(schema.when, names)
            adds = frozenset(_filled(fact, names) for fact, value in schema.effects if value)
            deletes = frozenset(_filled(fact, names) for fact, value in schema.effects if not value)
            if when is not None and (adds or deletes):
                yield Step(" ".join([schema.name, *(names[each] for each in schema.variables)]), when, adds, deletes)

    def _choices(self, schema: Schema) -> Iterator[dict[str, str]]:
        """Yield assignments of objects to the variables. The facts of the condition that no action changes are matched
        first, which rules out most impossible assignments early."""
        fixed = self.domain.fluents | {_EQUAL}
        patterns = [fact for fact, value in schema.when if value and fact[0] not in fixed and len(fact) > 1]
        choices: list[dict[str, str]] = [{}]
        bound = set[str]()
        while patterns:
            pattern = max(patterns, key=lambda each: len(bound.intersection(each)))
            patterns.remove(pattern)
            known = sorted(fact for fact in self.known if fact[0] == pattern[0])
            matches = (_matched(pattern, fact, choice) for choice in choices for fact in known)
            choices = [match for match in matches if match is not None]
            bound.update(pattern)
        free = [name for name in schema.variables if name not in bound]
        allowed = {name: self._of_type.get(kind, ()) for name, kind in schema.variables.items()}
        for choice in choices:
            if all(value in allowed[name] for name, value in choice.items()):
                for values in product(*(allowed[name] for name in free)):
                    yield choice | dict(zip(free, values, strict=True))

    def _grounded_condition(self, literals: Iterable[Literal], names: Mapping[str, str]) -> Case | None:
        """Evaluate what never changes. None if the condition can never hold."""
        parts: tuple[set[Fact], set[Fact]] = (set(), set())
        for fact, value in literals:
            filled = _filled(fact, names)
            if fact[0] in self.domain.fluents:
                parts[not value].add(filled)
            elif (filled[1] == filled[2] if fact[0] == _EQUAL else filled in self.known) != value:
                return None
        return None if parts[0] & parts[1] else Case(frozenset(parts[0]), frozenset(parts[1]))


def _filled(fact: Fact, names: Mapping[str, str]) -> Fact:
    return tuple(names.get(each, each) for each in fact)


def _matched(pattern: Fact, fact: Fact, names: dict[str, str]) -> dict[str, str] | None:
    """Extend ``names`` by the objects that make ``pattern`` equal to ``fact``; ``None`` if it cannot match."""
    found = dict(names)
    for term, value in zip(pattern[1:], fact[1:], strict=True):
        if (found.setdefault(term, value) if term.startswith("?") else term) != value:
            return None
    return found


def read_domain(text: str) -> Domain:
    """Parse a PDDL domain: ``:strips``, ``:typing``, ``:negative-preconditions`` and ``:equality``."""
    with _reading():
        name, sections = _sections(text, "domain")
        parents = _typed(sections.get(":types", []))
        types: dict[str, tuple[str, ...]] = {_ROOT: (_ROOT,)}
        for kind in {*parents, *parents.values()}:
            above = [kind]
            while above[-1] != _ROOT:
                above.append(parents.get(above[-1], _ROOT))
                if above[-1] in above[:-1]:
                    raise ValueError(f"the type {kind} is above itself")
            types[kind] = tuple(above)
        constants = _typed(sections.get(":constants", []))
        return Domain(name, tuple(map(_schema, sections.get(":action", []))), types, constants)


def read_problem(domain: str, problem: str) -> Problem:
    """Parse a PDDL problem, given the texts of its domain and of the problem."""
    read = read_domain(domain)
    with _reading():
        _, sections = _sections(problem, "problem")
        init = _literals(["and", *sections.get(":init", [])])
        if not all(value for _, value in init):
            raise ValueError("a fact of :init is negative")
        [goal] = sections[":goal"]
        objects = _typed(sections.get(":objects", []))
        return Problem(read, objects, frozenset(fact for fact, _ in init), _literals(goal))


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"the PDDL cannot be read ({error}): write STRIPS with types") from error


def _sections(text: str, kind: str) -> tuple[str, dict[str, Any]]:
    """The name of a domain or problem, and what stands in each of its sections; ``:action`` lists all actions."""
    tokens = re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text.lower()))
    stack: list[list[Any]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            inner = stack.pop()
            stack[-1].append(inner)
        else:
            stack[-1].append(token)
    [[[define, [head, name], *parts]]] = stack
    if (define, head) != ("define", kind):
        raise ValueError(f"it is no {kind}")
    sections: dict[str, Any] = {}
    for section, *content in parts:
        if section == ":action":
            sections.setdefault(section, []).append(content)
        elif section in _SECTIONS:
            sections[section] = content
        else:
            raise ValueError(f"{section} is not supported")
    return name, sections


def _schema(parts: Sequence[Any]) -> Schema:
    name, *rest = parts
    given = dict(zip(rest[::2], rest[1::2], strict=True))
    variables, when = _typed(given.get(":parameters", [])), _literals(given.get(":precondition", ["and"]))
    return Schema(name, variables, when, _literals(given[":effect"]))


def _typed(words: Sequence[str]) -> dict[str, str]:
    """Read ``a b - block c`` as the type of each name, ``object`` if none is given."""
    found, pending = dict[str, str](), list[str]()
    rest = iter(words)
    for word in rest:
        if word == "-":
            kind = next(rest, None)
            if not isinstance(kind, str):
                raise ValueError("(either ...) is not supported")
            found |= dict.fromkeys(pending, kind)
            pending = []
        else:
            pending.append(word)
    return found | dict.fromkeys(pending, _ROOT)


def _literals(formula: Sequence[Any], value: bool = True) -> tuple[Literal, ...]:
    match formula:
        case []:
            return ()
        case ["and", *parts] if value:
            return tuple(literal for part in parts for literal in _literals(part))
        case ["not", part]:
            return _literals(part, not value)
        case [str(name), *objects] if all(isinstance(each, str) for each in objects):
            if name not in ("and", "or", "imply", "forall", "exists", "when", "oneof"):
                return (((name, *objects), value),)
    raise ValueError(f"{formula!r:.80} is not supported")


_SENTENCES = {
    ("at", 2): "{} is at {}",
    ("clear", 1): "{} is clear",
    ("flattire", 0): "the tire is flat",
    ("handempty", 0): "your hand is empty",
    ("holding", 1): "you hold {}",
    ("in", 2): "{} is in {}",
    ("on", 2): "{} is on {}",
    ("ontable", 1): "{} is on the table",
    ("spare-in", 1): "a spare is at {}",
    ("vehicle-at", 1): "the car is at {}",
}
"""Sentences by predicate and number of objects. Any other fact is written as in PDDL, without brackets."""


def sentence(fact: Fact, value: bool = True) -> str:
    name, *objects = fact
    words = _SENTENCES.get((name, len(objects)), " ".join(fact)).format(*objects)
    return words if value else f"not {words}"


def sentences(facts: Iterable[Fact], hidden: Collection[str]) -> str:
    """Return the sentences of the facts whose predicate is not hidden, in alphabetical order."""
    return ", ".join(sorted(sentence(fact) for fact in facts if fact[0] not in hidden))


def prompt_of(problem: Problem, hidden: Collection[str]) -> str:
    """Return the task's prompt: the goal, the facts that never change, and the actions."""
    known = sentences(problem.known, hidden)
    calls = (" ".join([each.name, *(name[1:] for name in each.variables)]) for each in problem.domain.schemas)
    lines = [f"Goal: {', '.join(sentence(*each) for each in problem.aim)}", f"Actions: {', '.join([*calls, 'finish'])}"]
    return "\n".join((lines[0], *([f"Always: {known}"] if known else []), lines[1]))
