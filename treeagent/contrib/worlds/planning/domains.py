"""Random problems for the built-in domains. Their size controls the horizon.

A problem is written as lines of three kinds. ``object a block`` says that ``a`` is a block. ``init on a b`` is a fact
that holds at the start. ``goal on b a`` is a fact that must hold at the end.
"""

import random
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from string import ascii_lowercase

from treeagent.contrib.worlds.planning.problem import Domain, Fact, Literal, Problem, Schema


def read_domain(name: str) -> Domain:
    table = tomllib.loads(resources.files(__package__).joinpath("domains.toml").read_text(encoding="utf-8"))[name]
    schemas = [
        Schema(action, tuple(about["variables"]), _literals(about["when"]), _literals(about["effects"]))
        for action, about in table["actions"].items()
    ]
    return Domain(name, tuple(schemas))


def _literals(texts: Sequence[str]) -> tuple[Literal, ...]:
    return tuple((tuple(text.removeprefix("not ").split()), not text.startswith("not ")) for text in texts)


def problem_of(domain: Domain, lines: Sequence[str]) -> Problem:
    """Parse lines into a problem of ``domain``."""
    parts: dict[str, list[Fact]] = {"object": [], "init": [], "goal": []}
    for line in lines:
        kind, *fact = line.split()
        parts[kind].append(tuple(fact))
    objects = sorted(name for name, _ in parts["object"])
    return Problem(domain, objects, frozenset(parts["init"]), tuple(parts["goal"]))


def draw_blocks(size: int, rng: random.Random) -> list[str]:
    """Draw a problem with ``size`` blocks in random towers, to be rebuilt into other towers."""
    names = ascii_lowercase[:size]
    while True:
        (start, clear), (end, _) = _towers(names, rng), _towers(names, rng)
        goal = [fact for fact in end if fact[0] == "on"]
        if not set(goal) <= set(start):
            init = [*start, *(("clear", name) for name in clear), ("handempty",)]
            return _lines({name: "block" for name in names}, init, goal)


def draw_tireworld(size: int, rng: random.Random) -> list[str]:
    """Draw a route of ``size`` roads with a spare tire at each intermediate place, and as many side routes of one to
    three places. A side route leads forward, too, but lacks a spare at one place. Since each drive costs a tire, a car
    that takes a side route never arrives."""
    sides = [rng.randint(1, 3) for _ in range(size)]
    names = [f"p{number + 1}" for number in range(size + 1 + sum(sides))]
    rng.shuffle(names)
    route, others = names[: size + 1], iter(names[size + 1 :])
    roads, spares = list(pairwise(route)), set(route[1:-1])
    for number, length in enumerate(sides):
        side = [next(others) for _ in range(length)]
        stops = [route[number], *side, route[rng.randint(number + 1, size)]]
        roads += pairwise(stops)
        spares |= {*side} - {rng.choice(side)}
    rng.shuffle(roads)
    init = [("vehicle-at", route[0]), *(("road", *road) for road in roads), *(("spare-in", name) for name in spares)]
    return _lines(dict.fromkeys(sorted(names), "place"), sorted(init), [("vehicle-at", route[-1])])


DRAW: Mapping[str, Callable[[int, random.Random], list[str]]] = {
    "blocks": draw_blocks,
    "tireworld": draw_tireworld,
}


def _lines(objects: Mapping[str, str], init: Iterable[Fact], goal: Iterable[Fact]) -> list[str]:
    parts = {"object": objects.items(), "init": init, "goal": goal}
    return [" ".join((kind, *each)) for kind, part in parts.items() for each in part]


def _towers(names: str, rng: random.Random) -> tuple[list[Fact], list[str]]:
    """Draw random towers. Returns a fact for each block, on another block or on the table, and the topmost blocks."""
    found, tops = list[Fact](), list[str]()
    for name in rng.sample(names, len(names)):
        index = rng.randrange(len(tops) + 1)
        if index == len(tops):
            found.append(("ontable", name))
            tops.append(name)
        else:
            found.append(("on", name, tops[index]))
            tops[index] = name
    return found, tops
