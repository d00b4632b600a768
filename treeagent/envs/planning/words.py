"""Write facts, goals and actions as text."""

from collections.abc import Collection, Iterable

from treeagent.envs.planning.problem import Domain, Equal, Fact, Formula, Holds, Join, Not, Problem, Quantified

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


def sentences(facts: Iterable[Fact], hidden: Collection[str]) -> str:
    """Return the sentences of the facts whose predicate is not hidden, in alphabetical order."""
    return ", ".join(sorted(sentence(fact) for fact in facts if fact[0] not in hidden))


def goal_words(goal: Formula) -> str:
    match goal:
        case Holds(fact):
            return sentence(fact)
        case Equal(left, right):
            return f"{left} is {right}"
        case Not(part):
            return f"not {_inner(part)}"
        case Join(parts, every):
            one = len(parts) == 1
            return (", " if every else " or ").join(goal_words(part) if one else _inner(part, every) for part in parts)
        case Quantified(variables, part, every):
            names = ", ".join(f"{each.type} {each.name}" for each in variables)
            return f"{'every' if every else 'some'} {names}: {_inner(part)}"


def _inner(part: Formula, every: bool | None = None) -> str:
    """Write a part of a condition, in brackets if it would be ambiguous without them.

    A fact needs no brackets, and neither does an "and" within an "and" or an "or" within an "or".

    Args:
        every: whether the condition around it is an "and" (True) or an "or" (False); None for anything else.
    """
    plain = isinstance(part, Holds | Not) or (isinstance(part, Join) and (len(part.parts) == 1 or every == part.every))
    return goal_words(part) if plain else f"({goal_words(part)})"


def action_words(domain: Domain) -> str:
    """Return the form of a call of each action, such as ``stack block lower``."""
    return ", ".join(
        " ".join([each.name, *(v.name.removeprefix("?") for v in each.variables)]) for each in domain.schemas
    )


def prompt_of(problem: Problem, hidden: Collection[str]) -> str:
    """Return the task's prompt: the goal, the facts that never change, and the actions."""
    known = sentences(problem.known, hidden)
    return "\n".join(
        line
        for line in (
            f"Goal: {goal_words(problem.aim)}",
            known and f"Always: {known}",
            f"Actions: {action_words(problem.domain)}, finish",
        )
        if line
    )
