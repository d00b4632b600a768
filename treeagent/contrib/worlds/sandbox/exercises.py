"""Exercises that the repair tasks are made of: a description of a function, its solution, and cases to test it on."""

import itertools
import math
import random
import re
from typing import Any, NamedTuple

from treeagent.types import SPLITS, Split, UserError

TESTS, EXAMPLES = 12, 2
"""Number of hidden tests of an exercise, and number of additional examples that its description shows."""

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
_LOWEST, _HIGHEST = -9, 20
"""Range of the numbers in tests."""
_SLIPS = ((">", "<"), ("<", ">"), ("==", "!="), ("!=", "=="), ("*", "+"), ("+", "-"), ("max", "min"), ("min", "max"))


class Exercise(NamedTuple):
    words: str
    gold: str
    """The solution."""
    examples: list[tuple[list[int], Any]]
    """Pairs (argument, value of ``f``)."""
    tests: list[tuple[list[int], Any]]
    number: int
    """Its number among all exercises."""


def draw(split: Split, index: int) -> Exercise:
    total = len(_FILTERS) * len(_MAPS) * len(_FOLDS)
    number = 3 * index + SPLITS.index(split)
    if number >= total:
        raise UserError(f"{split} task {index} is asked for, but there are {total // 3} a split")
    # A stride that is coprime to the number of exercises visits each of them once, in a mixed order.
    stride = next(each for each in itertools.count(int(total * 0.618)) if math.gcd(each, total) == 1)
    rest, fold = divmod(number * stride % total, len(_FOLDS))
    condition, change = divmod(rest, len(_MAPS))
    parts = f"of the numbers in xs that {_FILTERS[condition][0]}", _MAPS[change][0], _FOLDS[fold][0]
    gold = f"def f(xs): return {_FOLDS[fold][1].format(f'{_MAPS[change][1]} for x in xs if {_FILTERS[condition][1]}')}"
    cases = _cases(gold, number)
    return Exercise(", ".join(parts), gold, cases[:EXAMPLES], cases[EXAMPLES:], number)


def _cases(gold: str, number: int) -> list[tuple[list[int], Any]]:
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
            return cases


def slip(gold: str, rng: random.Random) -> str:
    """A text of code with a typical error, such as another number or a reversed comparison."""
    slips = [gold.replace(old, new, 1) for old, new in _SLIPS if old in gold]
    slips += [gold[: at.start()] + str(int(at[0]) + 1) + gold[at.end() :] for at in re.finditer(r"\d+", gold)]
    return rng.choice([*slips, gold.replace("return ", "", 1)])
