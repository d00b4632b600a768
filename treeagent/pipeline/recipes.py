"""The recipes that come with the package: files of settings to start from, found by name wherever the package is
installed."""

import difflib
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from treeagent.types import UserError

_FOLDER = Path(__file__).parent.parent / "recipes"
"""In a checkout this is a link to ``configs/`` at the repository's root; in an installed package it is a folder."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A file of settings that ``--config`` finds by ``name``."""

    name: str
    """Path below ``configs/`` without the ending, such as "baselines/ppo"."""
    path: Path
    sentence: str
    """Its purpose: the first sentence of the file's opening comment."""


def recipes() -> list[Recipe]:
    """Every recipe of the package, sorted by name."""
    return [Recipe(name, path, first_sentence(_comment(path))) for name, path in _files(".toml").items()]


def find_recipe(name: str, ending: str = ".toml", key: str = "config") -> Path:
    """The file at the path ``name``, or else the file of the package of that name, such as "baselines/ppo". Errors call
    the setting ``key``."""
    if Path(name).is_file():
        return Path(name)
    found, bare = _files(ending), name.removesuffix(ending)
    if bare in found:
        return found[bare]
    last = bare.rsplit("/", 1)[-1]
    near = [each for each in found if each.rsplit("/", 1)[-1] == last] or difflib.get_close_matches(bare, found, 3)
    guess = f"did you mean {' or '.join(near)}?" if near else f"the names are {', '.join(found)};"
    raise UserError(f"{key} {name!r} is neither a file nor a recipe: {guess} treeagent recipes describes every recipe")


def _files(ending: str) -> dict[str, Path]:
    paths = sorted(_FOLDER.rglob(f"*{ending}"))
    return {path.relative_to(_FOLDER).with_suffix("").as_posix(): path for path in paths}


def first_sentence(text: str) -> str:
    joined = " ".join(text.split())
    return re.split(r"(?<=\.) (?=[A-Z`])", joined)[0].rstrip(".") + "."  # "et al. 2017" ends no sentence


def _comment(path: Path) -> str:
    """The comment at the top of a file."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#") for line in lines)
