"""Read PDDL with unified-planning and convert it to the values of ``problem``."""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from treeagent.envs.planning.problem import (
    Domain,
    Effect,
    Equal,
    Fact,
    Formula,
    Holds,
    Join,
    Not,
    Problem,
    Quantified,
    Schema,
    Variable,
)
from treeagent.types import UserError

_OBJECT = "object"
"""The root type, which all objects have."""


def read_domain(text: str) -> Domain:
    """Parse a PDDL domain.

    Raises:
        UserError: the text is not a domain, or uses numbers, durations, probabilities or another unsupported part of
            PDDL.
    """
    return _domain(_parsed(text, None))


def read_problem(domain: str, problem: str) -> Problem:
    """Parse a PDDL problem, given the texts of its domain and of the problem.

    Raises:
        UserError: as for ``read_domain``.
    """
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
