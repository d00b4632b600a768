"""Facts, goals and actions in words."""

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
"""By predicate and number of objects. Any other fact is written as in PDDL, without brackets."""


def sentence(fact: Fact) -> str:
    name, *objects = fact
    return _SENTENCES.get((name, len(objects)), " ".join(fact)).format(*objects)


def sentences(facts: Iterable[Fact], hidden: Collection[str]) -> str:
    """The facts whose predicate is not hidden, in alphabetical order of their sentences."""
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
    """The words of a part of a condition, in brackets where they could be misread.

    A fact needs none, and neither does an "and" within an "and" or an "or" within an "or".

    Args:
        every: whether the condition around it is an "and" (True) or an "or" (False); None for anything else.
    """
    plain = isinstance(part, Holds | Not) or (isinstance(part, Join) and (len(part.parts) == 1 or every == part.every))
    return goal_words(part) if plain else f"({goal_words(part)})"


def action_words(domain: Domain) -> str:
    """How each action is called: ``stack block lower``."""
    return ", ".join(
        " ".join([each.name, *(v.name.removeprefix("?") for v in each.variables)]) for each in domain.schemas
    )


def prompt_of(problem: Problem, hidden: Collection[str]) -> str:
    """The task: its goal, the facts that never change, and the actions."""
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
