"""Generated repair tasks: a function with a fault, the tests that its agent sees, and hidden checks."""

import itertools
import math
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from treeagent.types import SPLITS, Split, Task, UserError

_TESTS, _EXAMPLES = 12, 2
"""Number of hidden checks of a task, and number of additional examples that its prompt shows."""
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


@lru_cache(maxsize=1024)
def repair_task(split: Split, index: int) -> Task:
    """A task with a fault that the hidden checks notice. The results of the checks have at least three different
    values, so that a constant cannot pass."""
    total = len(_FILTERS) * len(_MAPS) * len(_FOLDS)
    number = 3 * index + SPLITS.index(split)
    if number >= total:
        raise UserError(f"{split} task {index} is asked for, but there are {total // 3} a split")
    # A stride that is coprime to the number of exercises visits each of them once, in a mixed order.
    stride = next(each for each in itertools.count(int(total * 0.618)) if math.gcd(each, total) == 1)
    rest, fold = divmod(number * stride % total, len(_FOLDS))
    (condition, test), (change, value) = _FILTERS[rest // len(_MAPS)], _MAPS[rest % len(_MAPS)]
    gold = f"def f(xs): return {_FOLDS[fold][1].format(f'{value} for x in xs if {test}')}"
    rng, given, right = random.Random(f"cases {number} {gold}"), list[list[int]](), list[Any]()
    while len({repr(each) for each in right[_EXAMPLES:]}) < 3:
        sizes = (rng.randint(3, 7) for _ in range(_EXAMPLES + _TESTS))
        given = [[rng.randint(_LOWEST, _HIGHEST) for _ in range(size)] for size in sizes]
        right = _values(gold, given) or []
    rng = random.Random(f"repair python2-{split}-{index}")
    fault, hidden = gold, slice(_EXAMPLES, None)
    while fault == gold or repr(_values(fault, given[hidden])) == repr(right[hidden]):
        fault = slip(gold, rng)
    examples = list(enumerate(zip(given, right, strict=True)))[:_EXAMPLES]
    tests = "".join(f"def test_{n}():\n    assert f({xs}) == {result}\n\n" for n, (xs, result) in examples)
    data: dict[str, Any] = {
        "files": {"solution.py": f"{fault}\n", "test_solution.py": f"from solution import f\n\n\n{tests}"},
        "checks": [["solution", "f", [xs], result] for xs, result in zip(given[hidden], right[hidden], strict=True)],
        "solution": {"solution.py": f"{gold}\n"},
    }
    words = f"of the numbers in xs that {condition}, {change}, {_FOLDS[fold][0]}"
    listed = "; ".join(f"f({xs}) is {result}" for _, (xs, result) in examples)
    prompt = f"Repair f(xs) in solution.py: {words}. For example, {listed}."
    return Task(f"repair-{split}-{index}", prompt, split, number, data)


def _values(code: str, given: Sequence[list[int]]) -> list[Any] | None:
    """What ``f`` of a text returns for arguments; None if it fails. All texts are made here, so they run here."""
    names: dict[str, Any] = {}
    try:
        exec(code, names)
        return [names["f"](list(xs)) for xs in given]
    except (ArithmeticError, LookupError, NameError, SyntaxError, TypeError, ValueError):  # what a slip leads to
        return None


def slip(gold: str, rng: random.Random) -> str:
    """A text of code with a typical error, such as another number or a reversed comparison."""
    slips = [gold.replace(old, new, 1) for old, new in _SLIPS if old in gold]
    slips += [gold[: at.start()] + str(int(at[0]) + 1) + gold[at.end() :] for at in re.finditer(r"\d+", gold)]
    return rng.choice([*slips, gold.replace("return ", "", 1)])
