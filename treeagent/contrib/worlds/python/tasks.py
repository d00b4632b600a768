"""Exercises: a description of a function, its solution, and hidden tests."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from treeagent.types import SPLITS, Split, Task, UserError

TESTS, EXAMPLES = 12, 2
"""Number of hidden tests of a task, and number of additional examples that its prompt shows."""

_FILTERS = (
    ("are positive", "x > 0"),
    ("are negative", "x < 0"),
    ("are even", "x % 2 == 0"),
    ("are odd", "x % 2 == 1"),
    *((f"are greater than {k}", f"x > {k}") for k in range(1, 15)),
    *((f"are less than {k}", f"x < {k}") for k in range(1, 15)),
    *((f"are divisible by {k}", f"x % {k} == 0") for k in range(3, 10)),
    *((f"are not {k}", f"x != {k}") for k in range(1, 10)),
)
_MAPS = (
    ("squared", "x * x"),
    ("negated", "-x"),
    ("made positive", "abs(x)"),
    *((f"times {k}", f"{k} * x") for k in range(2, 10)),
    *((f"plus {k}", f"x + {k}") for k in range(1, 10)),
)
_FOLDS = (
    ("their sum", "sum({})"),
    ("their number", "len([{}])"),
    ("the list of them", "[{}]"),
    ("the sorted list of them", "sorted({})"),
    ("the list of them from last to first", "[{}][::-1]"),
    ("the largest, or 0 if there is none", "max([{}], default=0)"),
    ("the smallest, or 0 if there is none", "min([{}], default=0)"),
    ("the list of them without duplicates, sorted", "sorted(set({}))"),
)
_PLAIN = (("", "x"),)
_LOWEST, _HIGHEST = -9, 20
"""Range of the numbers in tests."""
_FEWEST = 4
"""Fewest numbers of the range that two conditions together must leave."""
_Choice = tuple[str, str]


def _pairs() -> list[tuple[_Choice, ...]]:
    """Return the pairs of conditions that together leave enough numbers, but fewer than either alone."""
    meant: dict[_Choice, set[int]] = {
        each: {x for x in range(_LOWEST, _HIGHEST + 1) if eval(each[1], {"x": x})} for each in _FILTERS
    }
    return [
        pair
        for pair in itertools.combinations(_FILTERS, 2)
        if len(both := meant[pair[0]] & meant[pair[1]]) >= _FEWEST and both not in (meant[pair[0]], meant[pair[1]])
    ]


_STAGES: Mapping[int, tuple[Sequence[tuple[_Choice, ...]], Sequence[_Choice]]] = {
    1: ([(each,) for each in _FILTERS], _PLAIN),
    2: ([(each,) for each in _FILTERS], _MAPS),
    3: (_pairs(), _MAPS),
}
"""The conditions and the transformations of each difficulty."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """The answer key of an exercise. ``Task.data`` holds it."""

    gold: str
    examples: tuple[tuple[list[int], Any], ...]
    """Pairs (argument, value of ``f``) that the prompt shows."""
    tests: tuple[tuple[list[int], Any], ...]
    """Hidden pairs (argument, value of ``f``)."""


def draw_task(split: Split, index: int, difficulty: int) -> Task:
    conditions, changes = _STAGES[difficulty]
    total = len(conditions) * len(changes) * len(_FOLDS)
    number = 3 * index + SPLITS.index(split)
    if number >= total:
        raise UserError(
            f"{split} task {index} is asked for, but of difficulty {difficulty} there are {total // 3} a split"
        )
    # A stride that is coprime to the number of exercises visits each of them once, in a mixed order.
    stride = next(each for each in itertools.count(int(total * 0.618)) if math.gcd(each, total) == 1)
    rest, fold = divmod(number * stride % total, len(_FOLDS))
    condition, change = divmod(rest, len(changes))
    words, gold = _exercise(conditions[condition], changes[change], _FOLDS[fold])
    examples, tests = _cases(gold, number)
    listed = "; ".join(f"f({argument}) is {value}" for argument, value in examples)
    prompt = f"Write f(xs): {words}. For example, {listed}."
    key = Exercise(gold, examples, tests)
    return Task(f"python{difficulty}-{split}-{index}", prompt, split, number, to_jsonable_python(key))


def _exercise(conditions: Sequence[_Choice], change: _Choice, fold: _Choice) -> tuple[str, str]:
    chosen = " and ".join(words for words, _ in conditions)
    words = ", ".join(filter(None, (f"of the numbers in xs that {chosen}", change[0], fold[0])))
    numbers = f"{change[1]} for x in xs if {' and '.join(test for _, test in conditions)}"
    return words, f"def f(xs): return {fold[1].format(numbers)}"


def _cases(gold: str, number: int) -> tuple[tuple[tuple[list[int], Any], ...], ...]:
    """Draw examples and tests by running the solution. The results of the tests have at least three different values,
    so that a constant cannot pass."""
    rng = random.Random(f"cases {number} {gold}")
    namespace: dict[str, Any] = {}
    exec(gold, namespace)
    while True:
        arguments = [
            [rng.randint(_LOWEST, _HIGHEST) for _ in range(rng.randint(3, 7))] for _ in range(EXAMPLES + TESTS)
        ]
        cases = [(argument, namespace["f"](list(argument))) for argument in arguments]
        if len({repr(value) for _, value in cases[EXAMPLES:]}) > 2:
            return tuple(cases[:EXAMPLES]), tuple(cases[EXAMPLES:])
