"""Recipes are found by name, listed with a sentence, and included in the wheel."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from treeagent.config import load_config
from treeagent.pipeline.recipes import find_recipe, recipes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "sentence"), recipes().items())
def test_every_recipe_is_valid_and_described(name: str, sentence: str) -> None:
    assert load_config(find_recipe(name)) != load_config(None)
    assert sentence.endswith(".") and 5 <= len(sentence.split()) <= 30


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
