"""Every extra installs together with the pinned learning stack. Run by pytest -m index: it queries a package index and
installs nothing."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.index, pytest.mark.timeout(3600)]  # building alfworld's metadata compiles its planner

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
EXTRAS: tuple[str, ...] = tuple(PROJECT["optional-dependencies"])
LEARNING = ("torch", "transformers", "trl", "datasets", "accelerate", "peft")


def requirements(extras: Sequence[str]) -> list[str]:
    return [*PROJECT["dependencies"], *of_extras(extras)]


def of_extras(extras: Sequence[str]) -> list[str]:
    return [each for extra in extras for each in PROJECT["optional-dependencies"][extra]]


def resolve(wanted: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What pip would install in an empty environment."""
    asked = ["install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-", *wanted]
    return subprocess.run([sys.executable, "-m", "pip", *asked], capture_output=True, text=True, check=False)


@cache
def versions(extras: tuple[str, ...], *others: str) -> dict[str, str]:
    """Versions of the packages that pip would install, by name."""
    pip = resolve([*requirements(extras), *others])
    assert pip.returncode == 0, pip.stderr
    whole = (each["metadata"] for each in json.loads(pip.stdout)["install"])
    found: dict[str, str] = {canonicalize_name(each["name"]): each["version"] for each in whole}
    for requirement in map(Requirement, requirements(extras)):
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)])
    return found


def learning(found: dict[str, str]) -> dict[str, str]:
    return {name: found[name] for name in LEARNING}


@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra not in ("alfworld", "vllm")])
def test_an_extra_leaves_the_learning_stack_as_it_is(extra: str) -> None:
    assert learning(versions((extra,))) == learning(versions(()))


def test_extras_go_together() -> None:
    """Except those that pyproject.toml declares incompatible."""
    together = tuple(extra for extra in EXTRAS if extra != "vllm")
    assert learning(versions(together)) == learning(versions(()))
