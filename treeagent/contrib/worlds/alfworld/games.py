"""Generated and official ALFWorld games, in the format of ALFWorld's game files.

Generated games use ALFWorld's floor plans, tables, rules and texts, with objects placed at random. Scores on them are
not ALFWorld scores.
"""

import functools
import importlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.types import Split, Task, UserError

Kind = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
"""ALFWorld's names of the kinds of tasks."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AlfworldOptions:
    """Settings of ``AlfworldEnv``."""

    kinds: tuple[Kind, ...] = Field(default=Kind.__args__, min_length=1)  # type: ignore[attr-defined]
    """Kinds of tasks in generated games."""
    alike: int = Field(default=10, ge=1)
    """Most receptacles of the same type in a generated game; a floor plan may have a dozen drawers."""
    games: str | None = None
    """Folder of official game files to play instead of generated games, such as ``json_2.1.1`` from
    ``alfworld-download``."""
    show_commands: bool = True
    """List the admissible commands below each observation."""


_MOST_OF_A_TYPE = 3
_SPLITS: tuple[Split, ...] = ("test", "validation", "train")
STATIONS: Mapping[str, tuple[str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge"),
}
"""What to do with the target, and the type of the receptacle where it is done."""
_LAMP_STANDS = ("Desk", "SideTable", "Dresser", "Shelf")
_ABILITIES = ("Cleanable", "Heatable", "Coolable", "Sliceable")


@dataclass(frozen=True, slots=True)
class GameSpec:
    """Everything that a generated game depends on. ``Task.data`` holds it."""

    seed: int
    plan: int
    """Number of the floor plan."""
    alike: int
    """Most receptacles of the same type."""
    kind: Kind
    target: str
    """Type of the object that the task is about."""
    goal: str
    """Type of the receptacle to put it into, or of the lamp under which to look at it."""


def draw_spec(options: AlfworldOptions, split: Split, index: int) -> GameSpec:
    """Draw game ``index`` of a split. Splits share no floor plan: one sixth of the plans are for test, one sixth for
    validation, the others for training."""
    rng = random.Random(f"alfworld {split} {index}")
    plans = [plan for number, plan in enumerate(_plans()) if _SPLITS[min(number % 6, 2)] == split]
    while True:
        plan, kind = rng.choice(plans), rng.choice(options.kinds)
        choices = _choices(plan, kind)
        if choices:
            target, goal = rng.choice(choices)
            return GameSpec(index, plan, options.alike, kind, target, goal)


def generated_task(options: AlfworldOptions, split: Split, index: int) -> Task:
    spec = draw_spec(options, split, index)
    name = f"alfworld-generated-{split}-{spec.kind}-{spec.alike}-{index}"
    return Task(name, f"Your task is to: {objective(spec)}.", split, index, asdict(spec))


def objective(spec: GameSpec) -> str:
    template = random.Random(f"words {spec}").choice(_alfworld("goal_library").gdict[spec.kind]["templates"])
    target, goal = spec.target.lower(), spec.goal.lower()
    return str(template.format(obj=target, recep=goal, toggle=goal))


def game_data(source: GameSpec | str) -> Mapping[str, Any]:
    """Return the generated game of a spec, or the official game in a file, in the format of ``game.tw-pddl``."""
    if isinstance(source, str):
        try:
            return dict(json.loads(Path(source).read_text()))
        except (OSError, ValueError) as error:
            raise UserError(f"{source} is no ALFWorld game ({error!r}): take tasks from AlfworldEnv.tasks") from error
    folder = files("alfworld") / "data"
    return {
        "pddl_domain": (folder / "alfred.pddl").read_text(),
        "grammar": (folder / "alfred.twl2").read_text().replace("UNKNOWN GOAL", objective(source)),
        "pddl_problem": _problem(source),
    }


def _problem(spec: GameSpec) -> str:
    tables = _alfworld("constants")
    counts = _receptacles(spec.plan, spec.alike)
    kind_of = {_id(kind, number + 1): kind for kind, count in counts.items() for number in range(count)}
    receptacles = dict(sorted(kind_of.items()))
    placed = _placed(spec, receptacles)
    rooms = {name: f"loc_bar_{number}" for number, name in enumerate(receptacles, start=1)}
    types = sorted({kind for _, kind, _ in placed})
    init = ["(atLocation agent1 loc_bar_0)"]
    for name, kind in receptacles.items():
        init += [f"(receptacleAtLocation {name} {rooms[name]})", f"(receptacleType {name} {kind}Type)"]
        init += [f"(openable {name})"] * (kind in tables.OPENABLE_CLASS_LIST)
    for name, kind, where in placed:
        init += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {where})"]
        init += [f"(objectAtLocation {name} {rooms[where]})"]
        init += [f"({able.lower()} {name})" for able in _ABILITIES if kind in tables.VAL_ACTION_OBJECTS[able]]
        lamp = kind in tables.VAL_ACTION_OBJECTS["Toggleable"]
        init += [f"(toggleable {name})" if lamp else f"(pickupable {name})"]
    kinds = sorted({*counts, "SinkBasin", "Microwave", "Fridge"})
    init += [f"(canContain {kind}Type {each}Type)" for kind in kinds for each in types if each in _holds(kind)]
    objects = {
        "agent": ["agent1"],
        "location": ["loc_bar_0", *rooms.values()],
        "receptacle": receptacles,
        "object": [name for name, _, _ in placed],
        "rtype": [f"{kind}Type" for kind in kinds],
        "otype": [f"{kind}Type" for kind in sorted({*types, "Knife", "ButterKnife"})],
    }
    listed = "\n".join(f"{' '.join(names)} - {kind}" for kind, names in objects.items())
    facts = "\n".join(init)
    goal = _alfworld("goal_library").gdict[spec.kind]["pddl"].replace("#", "-")
    goal_text = goal.format(obj=spec.target, recep=spec.goal, toggle=spec.goal)
    return f"(define (problem generated) (:domain alfred)\n(:objects\n{listed})\n(:init\n{facts})\n{goal_text}"


def _placed(spec: GameSpec, receptacles: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Draw (name, type, receptacle) for every object. Targets are not placed in the goal if they fit elsewhere."""
    rng, placed = random.Random(f"place {spec}"), []
    for kind in _objects(spec.plan):
        fit = [name for name, where in receptacles.items() if kind in _holds(where)]
        if kind == spec.target:
            fit = [name for name in fit if receptacles[name] != spec.goal] or fit
        lamp = kind in ("DeskLamp", "FloorLamp")
        if lamp:
            fit = fit or [name for name, where in receptacles.items() if where in _LAMP_STANDS]
        least = 2 if spec.kind == "pick_two_obj_and_place" and kind == spec.target else 1
        for number in range(rng.randint(least, 1 if lamp else _MOST_OF_A_TYPE) if fit else 0):
            placed.append((_id(kind, number + 1), kind, rng.choice(fit)))
    return placed


def _choices(plan: int, kind: Kind) -> list[tuple[str, str]]:
    """Return the pairs (target, goal) that a floor plan allows. The target must also fit into another receptacle, where
    it can be at the start."""
    uses = _alfworld("constants").VAL_ACTION_OBJECTS
    receptacles = sorted(_receptacles(plan, 1))
    lamps = [each for each in _objects(plan) if each in uses["Toggleable"]]
    homes = {
        each: [where for where in receptacles if each in _holds(where)] for each in _objects(plan) if each not in lamps
    }
    if kind == "look_at_obj_in_light":
        has_lamp_stand = any(where in receptacles for where in _LAMP_STANDS)
        return [(each, lamp) for each in homes for lamp in lamps if homes[each] and has_lamp_stand]
    pairs = [(each, where) for each in homes for where in homes[each] if len(homes[each]) > 1]
    if kind not in STATIONS:
        return pairs
    verb, station = STATIONS[kind]
    able = uses[f"{verb.title()}able"]
    return [(each, where) for each, where in pairs if each in able and station in receptacles and where != station]


def _holds(receptacle: str) -> set[str]:
    held: set[str] = _alfworld("constants").VAL_RECEPTACLE_OBJECTS.get(receptacle, set())
    return held


def _objects(plan: int) -> list[str]:
    tables = _alfworld("constants")
    known = set[str]().union(*tables.VAL_RECEPTACLE_OBJECTS.values()) | tables.VAL_ACTION_OBJECTS["Toggleable"]
    return sorted(kind for kind in _layout(plan, "objects") if kind in known)


def _receptacles(plan: int, alike: int) -> dict[str, int]:
    """Return the types of the receptacles of a floor plan and their numbers, at most ``alike`` of each type."""
    # A basin is a part of its sink, and its key is an extension of the sink's.
    kinds = [key.split("|")[4] if key.count("|") > 3 else key.split("|")[0] for key in _layout(plan, "openable")]
    present = [kind for kind in _layout(plan, "objects") if kind in ("CoffeeMachine", "StoveBurner", "Toaster")]
    counted = {kind: kinds.count(kind) for kind in kinds} | dict.fromkeys(present, 1)
    return {kind: min(count, alike) for kind, count in sorted(counted.items())}


def _id(kind: str, number: int) -> str:
    """Return a name that contains the type in ALFWorld's notation. ALFWorld assigns its own numbers for display."""
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
    return importlib.import_module(f"alfworld.gen.{table}")


_ASKED = re.compile(r'Your task is to: [^"]*')


def official_games(folder: Path, split: Split) -> Sequence[Task]:
    """Return the official games of a split in a folder, selected as ALFWorld does: solvable, with no sliced objects and
    no movable receptacles."""
    # ALFWorld's own splits; the games in unseen rooms are the test split.
    folders = {"train": ["train"], "validation": ["valid_seen", "valid_train"], "test": ["valid_unseen"]}[split]
    paths = sorted(path for name in folders for path in (folder / name).rglob("game.tw-pddl"))
    tasks = []
    for path in paths:
        data = {} if "movable" in str(path) or "Sliced" in str(path) else json.loads(path.read_text())
        if data.get("solvable"):
            request = _ASKED.search(data["grammar"])
            prompt = request.group() if request else "Do what is asked for."
            tasks.append(Task(f"alfworld-{path.parent.relative_to(folder)}", prompt, split, data={"game": str(path)}))
    return tasks
