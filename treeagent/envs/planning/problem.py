"""Planning problems as values, their actions grounded with objects, and PDDL read with unified-planning."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from typing import Any, NamedTuple

from treeagent.types import UserError

Fact = tuple[str, ...]
"""A predicate and its objects: ``("on", "a", "b")``. In a domain, a variable such as ``?x`` can stand for an object."""
State = frozenset[Fact]
"""All facts that hold, without those that no action changes."""

_MOST_CASES = 2_000
"""Most alternatives of one condition. More would make every step slow."""


@dataclass(frozen=True, slots=True)
class Holds:
    """The fact holds."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class Equal:
    """Two names denote the same object."""

    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Not:
    part: "Formula"


@dataclass(frozen=True, slots=True)
class Join:
    """The conjunction of the parts if ``every``, otherwise their disjunction."""

    parts: "tuple[Formula, ...]"
    every: bool = True


@dataclass(frozen=True, slots=True)
class Quantified:
    """The part holds for every choice of objects for the variables if ``every``, otherwise for some choice."""

    variables: "tuple[Variable, ...]"
    part: "Formula"
    every: bool


Formula = Holds | Equal | Not | Join | Quantified
TRUE = Join(())


class Variable(NamedTuple):
    name: str
    type: str


class Effect(NamedTuple):
    """If ``when`` holds, ``fact`` becomes ``value``, for every choice of objects for ``variables``."""

    fact: Fact
    value: bool
    when: Formula = TRUE
    variables: tuple[Variable, ...] = ()


class Schema(NamedTuple):
    """An action of a domain, with variables for its objects."""

    name: str
    variables: tuple[Variable, ...]
    when: Formula
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Domain:
    name: str
    schemas: tuple[Schema, ...]
    types: Mapping[str, tuple[str, ...]]
    """Supertypes of each type, including the type itself."""
    constants: Mapping[str, str] = field(default_factory=dict[str, str])
    """Types of the objects that exist in every problem of the domain, by name."""

    @cached_property
    def fluents(self) -> frozenset[str]:
        """The predicates that some action changes."""
        return frozenset(effect.fact[0] for schema in self.schemas for effect in schema.effects)


class Case(NamedTuple):
    """One way to satisfy a condition: the facts that must hold and those that must not."""

    yes: State
    no: State

    def holds(self, state: State) -> bool:
        return self.yes <= state and not (self.no and self.no & state)


Condition = tuple[Case, ...]
"""A disjunction of cases."""
_ALWAYS: Condition = (Case(frozenset(), frozenset()),)


def holds(condition: Condition, state: State) -> bool:
    return any(case.holds(state) for case in condition)


class Change(NamedTuple):
    """The effects of an action under a condition."""

    when: Condition
    adds: State
    deletes: State


class Step(NamedTuple):
    """A grounded action."""

    name: str
    """Name as the agent writes it, such as ``unstack a b``."""
    when: Condition
    changes: tuple[Change, ...]

    def after(self, state: State) -> State:
        """Return the state after the action, whose condition must hold. A fact that is both deleted and added is true
        (PDDL 2.1)."""
        adds, deletes = frozenset[Fact](), frozenset[Fact]()
        for change in self.changes:
            if change.when is _ALWAYS or holds(change.when, state):
                adds, deletes = adds | change.adds, deletes | change.deletes
        return state - deletes | adds


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem of a domain: its objects with their types, the initial facts, and the goal."""

    domain: Domain
    objects: Mapping[str, str]
    init: State
    aim: Formula

    @cached_property
    def start(self) -> State:
        return frozenset(fact for fact in self.init if fact[0] in self.domain.fluents)

    @cached_property
    def known(self) -> State:
        """The facts that no action changes."""
        return self.init - self.start

    @cached_property
    def goal(self) -> Condition:
        return tuple(self._cases(self.aim, {}))

    @cached_property
    def steps(self) -> Mapping[str, Step]:
        """The grounded actions by name, sorted. Actions that are unreachable even in the delete relaxation are left
        out."""
        steps = [step for schema in self.domain.schemas for step in self._grounded(schema)]
        cases = [(step, case) for step in steps for case in step.when]
        missing = [len(case.yes) for _, case in cases]
        users: dict[Fact, list[int]] = {}
        for number, (_, case) in enumerate(cases):
            for fact in case.yes:
                users.setdefault(fact, []).append(number)
        found = {step.name: step for step, case in cases if not case.yes}
        reached = {*self.start, *(fact for step in found.values() for each in step.changes for fact in each.adds)}
        queue = list(reached)
        for fact in queue:
            for number in users.get(fact, ()):
                missing[number] -= 1
                step = cases[number][0]
                if not missing[number] and step.name not in found:
                    found[step.name] = step
                    new = {each for change in step.changes for each in change.adds} - reached
                    reached |= new
                    queue += new
        return dict(sorted(found.items()))

    def possible(self, state: State) -> list[str]:
        """Return the names of the actions that are possible in a state, sorted."""
        candidates = (each for fact in (None, *state) for each in self._by_fact.get(fact, ()))
        return sorted({name for case, name in candidates if case.holds(state)})

    @cached_property
    def _by_fact(self) -> Mapping[Fact | None, Sequence[tuple[Case, str]]]:
        """All cases of the actions' conditions with the action's name, indexed by the rarest fact that the case needs
        (None if it needs none). So only few cases have to be tested in a state."""
        fact_counts = Counter(fact for step in self.steps.values() for case in step.when for fact in case.yes)
        found: dict[Fact | None, list[tuple[Case, str]]] = {}
        for step in self.steps.values():
            for case in step.when:
                rarest = min(case.yes, key=lambda fact: (fact_counts[fact], fact), default=None)
                found.setdefault(rarest, []).append((case, step.name))
        return found

    @cached_property
    def _of_type(self) -> Mapping[str, Sequence[str]]:
        members: dict[str, list[str]] = {name: [] for name in self.domain.types}
        for name, kind in {**self.domain.constants, **self.objects}.items():
            for each in self.domain.types[kind]:
                members[each].append(name)
        return {kind: sorted(names) for kind, names in members.items()}

    @cached_property
    def _known_of(self) -> Mapping[str, Sequence[Fact]]:
        found: dict[str, list[Fact]] = {}
        for fact in sorted(self.known):
            found.setdefault(fact[0], []).append(fact)
        return found

    def _grounded(self, schema: Schema) -> Iterator[Step]:
        for names in self._choices(schema.variables, schema.when):
            when = tuple(self._cases(schema.when, names))
            changes = self._changes(schema.effects, names) if when else ()
            if changes:
                yield Step(" ".join([schema.name, *(names[each.name] for each in schema.variables)]), when, changes)

    def _choices(self, variables: Sequence[Variable], when: Formula) -> Iterator[dict[str, str]]:
        """Yield assignments of objects to the variables. The facts of the condition that no action changes are matched
        first, which rules out most impossible assignments early."""
        kinds = dict(variables)
        patterns = [
            part.fact
            for part in _conjuncts(when)
            if isinstance(part, Holds) and part.fact[0] not in self.domain.fluents and len(part.fact) > 1
        ]
        choices: list[dict[str, str]] = [{}]
        bound = set[str]()
        while patterns and choices:
            pattern = max(patterns, key=lambda each: len(bound.intersection(each)))
            patterns.remove(pattern)
            choices = [
                match
                for choice in choices
                for fact in self._known_of.get(pattern[0], ())
                if (match := _matched(pattern, fact, choice, kinds)) is not None
            ]
            bound.update(pattern)
        free = [each for each in variables if each.name not in bound]
        allowed = {name: frozenset(self._of_type.get(kind, ())) for name, kind in kinds.items()}
        for choice in choices:
            if all(value in allowed[name] for name, value in choice.items()):
                for values in product(*(self._of_type.get(each.type, ()) for each in free)):
                    yield choice | dict(zip((each.name for each in free), values, strict=True))

    def _changes(self, effects: Sequence[Effect], names: Mapping[str, str]) -> tuple[Change, ...]:
        """Ground the effects, and merge those with the same condition into one ``Change``."""
        found: dict[Condition, tuple[set[Fact], set[Fact]]] = {}
        for effect in effects:
            for values in self._bindings(effect.variables):
                binding = {**names, **values}
                when = _ALWAYS if effect.when == TRUE else tuple(self._cases(effect.when, binding))
                if when:
                    adds, deletes = found.setdefault(when, (set(), set()))
                    (adds if effect.value else deletes).add(_filled(effect.fact, binding))
        always = {when: _ALWAYS if when == _ALWAYS else when for when in found}
        return tuple(Change(always[when], frozenset(adds), frozenset(gone)) for when, (adds, gone) in found.items())

    def _bindings(self, variables: Sequence[Variable]) -> Iterator[dict[str, str]]:
        for values in product(*(self._of_type.get(each.type, ()) for each in variables)):
            yield dict(zip((each.name for each in variables), values, strict=True))

    def _cases(self, formula: Formula, names: Mapping[str, str], truth: bool = True) -> list[Case]:
        """Return the cases in which a formula has the truth value ``truth``; empty if it cannot. Facts that never
        change and equalities are evaluated here."""
        match formula:
            case Not(part):
                return self._cases(part, names, not truth)
            case Equal(left, right):
                return list(_ALWAYS) if (names.get(left, left) == names.get(right, right)) == truth else []
            case Holds(fact):
                filled = _filled(fact, names)
                if filled[0] not in self.domain.fluents:
                    return list(_ALWAYS) if (filled in self.known) == truth else []
                one, none = frozenset([filled]), frozenset[Fact]()
                return [Case(one, none) if truth else Case(none, one)]
            case Join(parts, every):
                return _joined((self._cases(part, names, truth) for part in parts), every == truth)
            case Quantified(variables, part, every):
                each = (self._cases(part, {**names, **values}, truth) for values in self._bindings(variables))
                return _joined(each, every == truth)


def _joined(parts: Iterable[list[Case]], every: bool) -> list[Case]:
    """Return the cases of the conjunction of the parts if ``every``, otherwise of their disjunction."""
    if not every:
        return list(dict.fromkeys(case for part in parts for case in part))
    cases = list(_ALWAYS)
    for part in parts:
        combined = (Case(one.yes | other.yes, one.no | other.no) for one in cases for other in part)
        cases = list(dict.fromkeys(case for case in combined if not case.yes & case.no))
        if len(cases) > _MOST_CASES:
            raise UserError(f"a condition has more than {_MOST_CASES} alternatives: split the action or the goal")
    return cases


def _conjuncts(formula: Formula) -> Iterator[Formula]:
    if isinstance(formula, Join) and (formula.every or len(formula.parts) == 1):
        for part in formula.parts:
            yield from _conjuncts(part)
    else:
        yield formula


def _filled(fact: Fact, names: Mapping[str, str]) -> Fact:
    return tuple(names.get(each, each) for each in fact)


def _matched(pattern: Fact, fact: Fact, names: dict[str, str], variables: Mapping[str, str]) -> dict[str, str] | None:
    """Extend ``names`` by the objects that make ``pattern`` equal to ``fact``; ``None`` if it cannot match."""
    found = dict(names)
    for term, value in zip(pattern[1:], fact[1:], strict=True):
        if (found.setdefault(term, value) if term in variables else term) != value:
            return None
    return found


_OBJECT = "object"
"""The root type, which all objects have."""


def read_domain(text: str) -> Domain:
    """Parse a PDDL domain."""
    return _domain(_parsed(text, None))


def read_problem(domain: str, problem: str) -> Problem:
    """Parse a PDDL problem, given the texts of its domain and of the problem."""
    found = _parsed(domain, problem)
    start = {node: value for node, value in found.explicit_initial_values.items() if value.is_true()}
    return Problem(
        _domain(found),
        {each.name: _type(each.type) for each in found.all_objects},
        frozenset(_fact(node) for node in start),
        Join(tuple(_formula(goal) for goal in found.goals)),
    )


def _parsed(domain: str, problem: str | None) -> Any:
    from unified_planning.model import ContingentProblem, SensingAction

    reader, environment = _reader()
    with warnings.catch_warnings():
        # In PDDL an action and a predicate may have the same name. The library warns or, by default, raises an error.
        warnings.simplefilter("ignore")
        strict, environment.error_used_name = environment.error_used_name, False
        try:
            found = reader.parse_problem_string(domain.lower(), problem and problem.lower())
        except Exception as error:  # the library and its parser raise many kinds of errors
            why = " ".join(str(error).split())
            raise UserError(f"the PDDL cannot be read ({why}): write STRIPS or ADL without numbers") from error
        finally:
            environment.error_used_name = strict
    odd = [each.name for each in found.fluents if not each.type.is_bool_type()]
    odd += [each.name for each in found.actions if not hasattr(each, "effects") or hasattr(each, "duration")]
    if odd:
        raise UserError(f"{', '.join(odd)} has a number or a duration: use a domain in which facts are true or false")
    unsupported = {
        "constraints": found.trajectory_constraints,
        "timed facts": found.timed_effects,
        "timed goals": found.timed_goals,
        "unknown facts": isinstance(found, ContingentProblem),
        "sensing": any(isinstance(each, SensingAction) for each in found.actions),
    }
    if named := [name for name, used in unsupported.items() if used]:
        raise UserError(
            f"the PDDL has {' and '.join(named)}, which are not supported: write STRIPS or ADL without them"
        )
    return found


@cache
def _reader() -> tuple[Any, Any]:
    """Return the library's reader and its environment, which stores expressions. Creating the reader takes a tenth of a
    second."""
    from unified_planning.environment import get_environment
    from unified_planning.io import PDDLReader

    # With a separate environment, the reader fails on quantified effects (version 1.3.0).
    return PDDLReader(), get_environment()


def _domain(found: Any) -> Domain:
    types = {each.name: tuple(above.name for above in each.ancestors) for each in found.user_types}
    return Domain(
        found.name,
        tuple(_schema(action) for action in found.actions),
        {kind: tuple(dict.fromkeys((*above, _OBJECT))) for kind, above in {_OBJECT: (_OBJECT,), **types}.items()},
        {each.name: _type(each.type) for each in found.all_objects},
    )


def _schema(action: Any) -> Schema:
    return Schema(
        action.name,
        _variables(action.parameters),
        Join(tuple(_formula(each) for each in action.preconditions)),
        tuple(
            Effect(_fact(each.fluent), each.value.is_true(), _formula(each.condition), _variables(each.forall))
            for each in action.effects
        ),
    )


def _type(kind: Any) -> str:
    return str(kind.name)


def _variables(found: Sequence[Any]) -> tuple[Variable, ...]:
    return tuple(Variable(f"?{each.name}", _type(each.type)) for each in found)


def _formula(node: Any) -> Formula:
    parts = node.args
    if node.is_fluent_exp():
        return Holds(_fact(node))
    if node.is_equals():
        return Equal(_name(parts[0]), _name(parts[1]))
    if node.is_not():
        return Not(_formula(parts[0]))
    if node.is_true() or node.is_false():
        return Join((), every=node.is_true())
    if node.is_and() or node.is_or():
        return Join(tuple(_formula(part) for part in parts), every=node.is_and())
    if node.is_implies():
        return Join((Not(_formula(parts[0])), _formula(parts[1])), every=False)
    if node.is_forall() or node.is_exists():
        return Quantified(_variables(node.variables()), _formula(parts[0]), every=node.is_forall())
    raise UserError(f"{node} is not supported in a condition: use and, or, not, imply, forall, exists, = and facts")


def _fact(node: Any) -> Fact:
    return (node.fluent().name, *(_name(each) for each in node.args))


def _name(node: Any) -> str:
    if node.is_parameter_exp():
        return f"?{node.parameter().name}"
    return f"?{node.variable().name}" if node.is_variable_exp() else str(node.object().name)


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


def sentence(fact: Fact) -> str:
    name, *objects = fact
    return _SENTENCES.get((name, len(objects)), " ".join(fact)).format(*objects)
