"""The specifications of games, and their generation, compilation and cache on disk."""

import functools
import os
import random
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter

from treeagent.contrib.worlds.textworld.text import write_plainly
from treeagent.envs.base import task_data
from treeagent.types import SPLITS, Split, Task, UserError, derive_seed

Kind = Literal["cooking", "coin_collector"]


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TextWorldOptions:
    """Settings of ``TextWorldEnv``."""

    kind: Kind = "cooking"
    """TextWorld's challenge."""
    difficulty: int = Field(default=2, ge=1, le=5)
    """Level of ``games.LEVELS``. For cooking, levels 1 to 4 have the recipes, rooms and skills of levels 1 to 4 of
    Adhikari et al. 2020 (GATA)."""
    show_commands: bool = False
    """List the admissible commands in every observation. They make up most of its text, and tell what is worth trying.
    """
    cache: str | None = None
    """Folder of compiled games, shared by processes; unset is ``treeagent/textworld`` in the user's cache folder."""


STORY, GAME = "game.z8", "game.json"
_FORMAT = 1
"""Part of the cache's folder name. Increase it when the same ``GameSpec`` gives another game."""
_ATTEMPTS = 50
"""Seeds tried for one game, since some maps have no quest of the required length."""


@dataclass(frozen=True, slots=True)
class GameSpec:
    """Everything that a generated game depends on. ``Task.data`` holds it."""

    kind: Kind
    rooms: int
    seed: int = 0
    quest_length: int = 0
    ingredients: int = 0
    cut: bool = False
    cook: bool = False

    @property
    def name(self) -> str:
        about = asdict(self)
        seed, kind = about.pop("seed"), about.pop("kind")
        words = (key if value is True else f"{key}{value}" for key, value in about.items() if value)
        return "-".join((kind, "plain", *words, str(seed)))


LEVELS: Mapping[Kind, tuple[GameSpec, ...]] = {
    "cooking": (
        GameSpec("cooking", rooms=1, ingredients=1, cut=True),
        GameSpec("cooking", rooms=1, ingredients=1, cut=True, cook=True),
        GameSpec("cooking", rooms=9, ingredients=1),
        GameSpec("cooking", rooms=6, ingredients=3, cut=True, cook=True),
        GameSpec("cooking", rooms=12, ingredients=3, cut=True, cook=True),
    ),
    "coin_collector": tuple(GameSpec("coin_collector", rooms=2 * n, quest_length=n) for n in (3, 5, 8, 12, 20)),
}
"""Games by kind and difficulty, from 1."""

PROMPTS: Mapping[Kind, str] = {
    "cooking": "Follow the recipe in the cookbook, then eat the meal.",
    "coin_collector": "Find the coin and take it.",
}

_GAME_SPEC: TypeAdapter[GameSpec] = TypeAdapter(GameSpec)


def task_of(options: TextWorldOptions, split: Split, index: int) -> Task:
    level = LEVELS[options.kind][options.difficulty - 1]
    seed = len(SPLITS) * index + SPLITS.index(split)
    spec = replace(level, seed=seed)
    data: dict[str, object] = _GAME_SPEC.dump_python(spec, mode="json")
    return Task(f"textworld-{spec.name}", PROMPTS[spec.kind], split, seed, data)


def spec_of(task: Task) -> GameSpec:
    return task_data(task, _GAME_SPEC, "TextWorld game", "TextWorldEnv")


def cache_folder(folder: str | None) -> Path:
    """Return the folder for compiled games. Each version of TextWorld and of ``_FORMAT`` has its own."""
    from textworld.version import __version__

    shared = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "treeagent" / "textworld"
    return Path(folder or shared).expanduser() / f"{__version__}-{_FORMAT}"


def compiled_folder(spec: GameSpec, cache: Path) -> Path:
    """Return the folder of a compiled game. A game that is not cached is compiled, which takes one to three seconds.

    The folder gets its name only when all its files are complete, so a killed process or two processes at the same time
    do no harm."""
    folder = cache / spec.name
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=cache, prefix=".making-")
    except OSError as error:
        raise UserError(
            f"the cache of TextWorld games {cache} cannot be written ({error.strerror}): set environment option cache"
        ) from error
    with scratch as path:
        game = Path(path) / "game"
        _compile(spec, game)
        try:
            game.rename(folder)
        except OSError:
            if not folder.is_dir():  # if it exists, another process was faster
                raise
    return folder


@contextmanager
def contained() -> Iterator[None]:
    """Context that undoes TextWorld's side effects: it changes the global random state when it is imported and when it
    generates a game, and Jericho warns about every game that it does not know."""
    python, legacy = random.getstate(), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Game .* is not fully supported", UserWarning)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


def _compile(spec: GameSpec, folder: Path) -> None:
    from textworld import GameOptions
    from textworld.generator import CouldNotCompileGameError, compile_game

    options = GameOptions()
    options.path = str(folder / STORY)
    try:
        with contained():
            game = _generate(spec)
            write_plainly(game)
            game.objective = PROMPTS[spec.kind]
            compile_game(game, options)
    except (OSError, CouldNotCompileGameError) as error:
        raise UserError(
            f"TextWorld cannot make the game {spec.name} ({' '.join(str(error).split()):.200}): see that its "
            "compiler runs here"
        ) from error
    (folder / STORY).with_suffix(".ni").unlink()


def _generate(spec: GameSpec) -> Any:
    import textworld
    from textworld import GameOptions
    from textworld.generator import QuestGenerationError

    for attempt in range(_ATTEMPTS):
        options = GameOptions()
        options.seeds = spec.seed if attempt == 0 else derive_seed("textworld", spec.seed, attempt) % 2**32
        options.grammar.only_last_action = True
        textworld.g_rng.set_seed(options.seeds["grammar"])
        try:
            return _made(spec, options)
        except QuestGenerationError as error:
            last = error
    raise last


def _made(spec: GameSpec, options: Any) -> Any:
    from textworld.challenges.tw_coin_collector import coin_collector
    from textworld.challenges.tw_cooking import cooking

    if spec.kind == "cooking":
        settings = {
            "recipe": spec.ingredients,
            "take": spec.ingredients,
            "go": spec.rooms,
            "open": True,
            "cook": spec.cook,
            "cut": spec.cut,
            "drop": False,
            "recipe_seed": 0,
            "split": None,
        }
        return cooking.make(settings, options)
    options.nb_rooms, options.quest_length = spec.rooms, spec.quest_length
    options.kb = _knowledge(coin_collector.KB_PATH)
    options.grammar.allowed_variables_numbering = True
    return coin_collector.make_game("simple", options)


@functools.cache
def _knowledge(path: str) -> Any:
    """Load a challenge's world rules. They are cached, because loading takes longer than making the game."""
    from textworld.generator.data import KnowledgeBase

    return KnowledgeBase.load(path)
