"""Generated games: ALFWorld's floor plans, tables, rules and words, with objects placed at random.

They are in the form of ALFWorld's own game files, but are none of them: scores on them are not ALFWorld scores.
"""

import functools
import json
import random
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from treeagent.envs.alfworld.options import AlfworldOptions, Kind
from treeagent.types import Split, Task, UserError

_MOST_OF_A_TYPE = 3
_SPLITS: tuple[Split, ...] = ("test", "validation", "train")
STATIONS: Mapping[str, tuple[str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge"),
}
"""What is done with the object, and where."""
_LAMP_STANDS = ("Desk", "SideTable", "Dresser", "Shelf")
_ABILITIES = {
    "Cleanable": "cleanable",
    "Heatable": "heatable",
    "Coolable": "coolable",
    "Sliceable": "sliceable",
}


@dataclass(frozen=True, slots=True)
class GameSpec:
    """Everything that a generated game depends on: what ``Task.data`` carries."""

    seed: int
    plan: int
    """Number of the floor plan."""
    alike: int
    kind: Kind
    target: str
    """Type of the object asked for."""
    goal: str
    """Type of the receptacle that it must come to, or of the lamp to look at it by."""


_GAME_SPEC: TypeAdapter[GameSpec] = TypeAdapter(GameSpec)


def draw_spec(options: AlfworldOptions, split: Split, index: int) -> GameSpec:
    """Game ``index`` of a split. Splits share no floor plan: a sixth are for the test, a sixth for validation."""
    rng = random.Random(f"alfworld {split} {index}")
    plans = [plan for place, plan in enumerate(_plans()) if _SPLITS[min(place % 6, 2)] == split]
    while True:
        plan, kind = rng.choice(plans), rng.choice(options.kinds)
        choices = _choices(plan, kind)
        if choices:
            target, goal = rng.choice(choices)
            return GameSpec(index, plan, options.alike, kind, target, goal)


def generated(options: AlfworldOptions, split: Split, index: int) -> Task:
    """Game ``index`` of a split as a task."""
    spec = draw_spec(options, split, index)
    name = f"alfworld-generated-{split}-{spec.kind}-{spec.alike}-{index}"
    return Task(name, f"Your task is to: {objective(spec)}.", split, index, _GAME_SPEC.dump_python(spec, mode="json"))


def objective(spec: GameSpec) -> str:
    """What the game asks for, in the words of ALFWorld's templates."""
    template = random.Random(f"words {spec}").choice(_alfworld("goal_library").gdict[spec.kind]["templates"])
    target, goal = spec.target.lower(), spec.goal.lower()
    return str(template.format(obj=target, recep=goal, toggle=goal))


def game_data(spec: GameSpec) -> dict[str, Any]:
    """The game, in the form of ALFWorld's ``game.tw-pddl``."""
    folder = files("alfworld") / "data"
    grammar = (folder / "alfred.twl2").read_text().replace("UNKNOWN GOAL", objective(spec))
    return {
        "pddl_domain": (folder / "alfred.pddl").read_text(),
        "grammar": grammar,
        "pddl_problem": _problem(spec),
    }


def _problem(spec: GameSpec) -> str:
    rng, tables = random.Random(f"place {spec}"), _alfworld("constants")
    holds: Mapping[str, set[str]] = tables.VAL_RECEPTACLE_OBJECTS
    receptacles = {_id(kind, number): kind for kind, number in _numbered(_receptacles(spec.plan, spec.alike))}
    placed = _placed(spec, sorted(receptacles.items()), rng)
    rooms = {name: f"loc_bar_{number}" for number, name in enumerate(sorted(receptacles), start=1)}
    types = sorted({kind for _, kind, _ in placed})
    init = ["(atLocation agent1 loc_bar_0)"]
    for name, kind in sorted(receptacles.items()):
        init += [
            f"(receptacleAtLocation {name} {rooms[name]})",
            f"(receptacleType {name} {kind}Type)",
        ]
        init += [f"(openable {name})"] * (kind in tables.OPENABLE_CLASS_LIST)
    for name, kind, where in placed:
        init += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {where})"]
        init += [f"(objectAtLocation {name} {rooms[where]})"]
        init += [f"({word} {name})" for able, word in _ABILITIES.items() if kind in tables.VAL_ACTION_OBJECTS[able]]
        lamp = kind in tables.VAL_ACTION_OBJECTS["Toggleable"]
        init += [f"(toggleable {name})" if lamp else f"(pickupable {name})"]
    kinds = sorted(set(receptacles.values()) | {"SinkBasin", "Microwave", "Fridge"})
    init += [f"(canContain {kind}Type {each}Type)" for kind in kinds for each in types if each in holds.get(kind, ())]
    goal = _alfworld("goal_library").gdict[spec.kind]["pddl"]
    named = {
        "agent": ["agent1"],
        "location": ["loc_bar_0", *rooms.values()],
        "receptacle": sorted(receptacles),
        "object": [name for name, _, _ in placed],
        "rtype": [f"{kind}Type" for kind in kinds],
        "otype": [f"{kind}Type" for kind in sorted({*types, "Knife", "ButterKnife"})],
    }
    objects = "\n".join(f"{' '.join(names)} - {kind}" for kind, names in named.items())
    wanted = goal.replace("#", "-").format(obj=spec.target, recep=spec.goal, toggle=spec.goal)
    return (
        f"(define (problem generated) (:domain alfred)\n(:objects\n{objects})\n(:init\n{chr(10).join(init)})\n{wanted}"
    )


def _placed(spec: GameSpec, receptacles: Sequence[tuple[str, str]], rng: random.Random) -> list[tuple[str, str, str]]:
    """(name, type, receptacle) of every object; those asked for do not lie where they must come to."""
    holds: Mapping[str, set[str]] = _alfworld("constants").VAL_RECEPTACLE_OBJECTS
    placed = []
    for kind in _objects(spec.plan):
        fit = [name for name, where in receptacles if kind in _holding(holds, where)]
        if kind == spec.target:
            fit = [name for name in fit if dict(receptacles)[name] != spec.goal] or fit
        lamp = kind in ("DeskLamp", "FloorLamp")
        if lamp:
            fit = fit or [name for name, where in receptacles if where in _LAMP_STANDS]
        least = 2 if spec.kind == "pick_two_obj_and_place" and kind == spec.target else 1
        for number in range(rng.randint(least, 1 if lamp else _MOST_OF_A_TYPE) if fit else 0):
            placed.append((_id(kind, number + 1), kind, rng.choice(fit)))
    return placed


def _choices(plan: int, kind: Kind) -> list[tuple[str, str]]:
    """(target, goal) that a floor plan allows, so that the target can lie somewhere else at first."""
    tables = _alfworld("constants")
    holds: Mapping[str, set[str]] = tables.VAL_RECEPTACLE_OBJECTS
    there = sorted(set(_receptacles(plan, 1)))
    lamps = [each for each in _objects(plan) if each in tables.VAL_ACTION_OBJECTS["Toggleable"]]
    movable = [each for each in _objects(plan) if each not in lamps]
    homes = {each: [where for where in there if each in _holding(holds, where)] for each in movable}
    if kind == "look_at_obj_in_light":
        return [
            (each, lamp)
            for each in movable
            for lamp in lamps
            if homes[each] and any(where in there for where in _LAMP_STANDS)
        ]
    verb, station = STATIONS.get(kind, ("", ""))
    return [
        (each, where)
        for each in movable
        for where in homes[each]
        if len(homes[each]) > 1
        and (
            not verb
            or (each in tables.VAL_ACTION_OBJECTS[f"{verb.title()}able"] and station in there and where != station)
        )
    ]


def _holding(holds: Mapping[str, set[str]], where: str) -> set[str]:
    return holds.get(where, set())


def _objects(plan: int) -> list[str]:
    """Types of what can be carried or switched on in a floor plan."""
    tables = _alfworld("constants")
    known = set[str]().union(*tables.VAL_RECEPTACLE_OBJECTS.values()) | tables.VAL_ACTION_OBJECTS["Toggleable"]
    return sorted(kind for kind in _layout(plan, "objects") if kind in known)


def _receptacles(plan: int, alike: int) -> list[str]:
    """Types of the receptacles of a floor plan, each as often as it is there, but for those beyond ``alike``."""
    # A basin is a part of its sink and named after it.
    kinds = [key.split("|")[4] if key.count("|") > 3 else key.split("|")[0] for key in _layout(plan, "openable")]
    present = [kind for kind in _layout(plan, "objects") if kind in ("CoffeeMachine", "StoveBurner", "Toaster")]
    counted = {kind: kinds.count(kind) for kind in kinds} | dict.fromkeys(present, 1)
    return [kind for kind in sorted(counted) for _ in range(min(counted[kind], alike))]


def _numbered(kinds: Sequence[str]) -> list[tuple[str, int]]:
    return [(kind, kinds[:place].count(kind) + 1) for place, kind in enumerate(kinds)]


def _id(kind: str, number: int) -> str:
    """A name from which ALFWorld reads the type; it finds numbers of its own."""
    if kind.endswith("Basin"):
        return f"{kind.removesuffix('Basin')}_bar_{number:02}_bar_{kind}"
    return f"{kind}_bar_{number:02}"


@functools.cache
def _plans() -> tuple[int, ...]:
    names = (each.name for each in (files("alfworld") / "gen" / "layouts").iterdir())
    return tuple(sorted(int(name[9:].partition("-")[0]) for name in names if name.endswith("-objects.json")))


@functools.cache
def _layout(plan: int, what: str) -> Any:
    return json.loads((files("alfworld") / "gen" / "layouts" / f"FloorPlan{plan}-{what}.json").read_text())


def _alfworld(table: str) -> Any:
    import importlib

    return importlib.import_module(f"alfworld.gen.{table}")


_FOLDERS: Mapping[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("valid_seen", "valid_train"),
    "test": ("valid_unseen",),
}
"""ALFWorld's own splits: its unseen rooms are the test."""
_ASKED = re.compile(r'Your task is to: [^"]*')


def official_games(folder: Path, split: Split) -> Sequence[Task]:
    """The games of a split below a folder, as ALFWorld selects them: solvable, with nothing sliced or movable."""
    paths = sorted(path for name in _FOLDERS[split] for path in (folder / name).rglob("game.tw-pddl"))
    tasks = []
    for path in paths:
        data = {} if "movable" in str(path) or "Sliced" in str(path) else json.loads(path.read_text())
        if data.get("solvable"):
            asked = _ASKED.search(data["grammar"])
            prompt = asked.group() if asked else "Do what is asked for."
            tasks.append(Task(f"alfworld-{path.parent.relative_to(folder)}", prompt, split, data={"game": str(path)}))
    return tasks


def read_game(task: Task) -> dict[str, Any]:
    """An official game.

    Raises:
        UserError: its file is no game.
    """
    try:
        return dict(json.loads(Path(str(task.data["game"])).read_text()))
    except (KeyError, OSError, ValueError) as error:
        raise UserError(f"task {task.id!r} has no game file ({error!r}): take tasks from AlfworldEnv.tasks") from error


def spec_of(task: Task) -> GameSpec:
    """The generated game in ``task.data``.

    Raises:
        UserError: the data is no game.
    """
    try:
        return _GAME_SPEC.validate_python(dict(task.data))
    except ValidationError as error:
        raise UserError(f"task {task.id!r} holds no ALFWorld game: take tasks from AlfworldEnv.tasks") from error
