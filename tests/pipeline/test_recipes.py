"""Recipes are found by name, listed with a sentence, and included in the wheel."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from treeagent.config import load_config
from treeagent.pipeline.recipes import find_recipe, recipes
from treeagent.types import UserError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "sentence"), recipes().items())
def test_every_recipe_is_valid_and_described(name: str, sentence: str) -> None:
    assert load_config(find_recipe(name)) != load_config(None)
    assert sentence.endswith(".") and 5 <= len(sentence.split()) <= 30


def test_a_recipe_is_found_by_name_and_a_file_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("baselines/ppo").read_text() == (ROOT / "configs" / "baselines" / "ppo.toml").read_text()
    assert find_recipe("quickstart.toml") == find_recipe("quickstart")
    (tmp_path / "quickstart.toml").write_text("")
    assert find_recipe("quickstart.toml") == Path("quickstart.toml")  # a file of the user comes first
    assert find_recipe("models/fsdp", ".yaml").name == "fsdp.yaml"


def test_a_wrong_name_lists_near_ones() -> None:
    with pytest.raises(UserError, match=r"'ppo'.*baselines/ppo"):
        find_recipe("ppo")


@pytest.mark.slow
def test_the_wheel_holds_every_recipe_and_the_license(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "treeagent", source / "treeagent", ignore=shutil.ignore_patterns("__pycache__"))  # as files
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "from setuptools import build_meta; build_meta.build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = source.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    wanted = {f"treeagent/recipes/{name}.toml" for name in recipes()} | {"treeagent/recipes/models/fsdp.yaml"}
    assert wanted <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
