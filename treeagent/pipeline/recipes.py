"""The recipes that come with the package, found by name."""

import difflib
import re
from itertools import takewhile
from pathlib import Path

from treeagent.types import UserError

RECIPES = Path(__file__).parent.parent / "recipes"
"""In a checkout this is a link to ``configs/`` at the repository's root; in an installed package it is a folder."""


def recipes() -> dict[str, str]:
    """The recipes of the package: each name with its purpose, the first sentence of the file's opening comment."""
    return {name: first_sentence(_comment(path)) for name, path in _files(".toml").items()}


def find_recipe(name: str, ending: str = ".toml", key: str = "config") -> Path:
    """The file at the path ``name``, or else the package's file of that name. Errors call the setting ``key``."""
    if Path(name).is_file():
        return Path(name)
    found, bare = _files(ending), name.removesuffix(ending)
    if bare in found:
        return found[bare]
    last = bare.rsplit("/", 1)[-1]
    near = [each for each in found if each.rsplit("/", 1)[-1] == last] or difflib.get_close_matches(bare, found, 3)
    guess = f"did you mean {' or '.join(near)}?" if near else f"the names are {', '.join(found)};"
    raise UserError(f"{key} {name!r} is neither a file nor a recipe: {guess} treeagent recipes describes every recipe")


def find_policy(name: str) -> Path:
    """The folder of a policy that comes with the package, or else the folder or hub name itself."""
    own = RECIPES / name
    return own if (own / "config.json").is_file() and not Path(name).exists() else Path(name)


def _files(ending: str) -> dict[str, Path]:
    paths = sorted(RECIPES.rglob(f"*{ending}"))
    return {path.relative_to(RECIPES).with_suffix("").as_posix(): path for path in paths}


def first_sentence(text: str) -> str:
    joined = " ".join(text.split())
    return re.split(r"(?<=\.) (?=[A-Z`])", joined)[0].rstrip(".") + "."  # "et al. 2017" ends no sentence


def _comment(path: Path) -> str:
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#") for line in lines)
