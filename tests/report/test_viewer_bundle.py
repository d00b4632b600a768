"""The script and the style in the package are what the viewer's source gives under its lock file."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
BUNDLE = Path("treeagent") / "report" / "viewer"
if shutil.which("npm") is None:
    pytest.skip("wants Node: apt-get install nodejs npm", allow_module_level=True)


def run(*command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)


def test_the_bundle_is_what_the_source_gives_and_another_is_told(tmp_path: Path) -> None:
    viewer = shutil.copytree(ROOT / "viewer", tmp_path / "viewer", ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(ROOT / BUNDLE, tmp_path / BUNDLE)
    shutil.copy(ROOT / "Makefile", tmp_path)
    same = run("make", "viewer-check", cwd=tmp_path)
    assert same.returncode == 0, same.stdout + same.stderr
    page = viewer / "src" / "help.tsx"
    page.write_text(page.read_text().replace("this page", "that page"))
    other = run("make", "viewer-check", cwd=tmp_path)
    assert other.returncode != 0 and "viewer.js" in other.stderr and "viewer.css" not in other.stderr
    assert run("make", "viewer", cwd=tmp_path).returncode == 0
    assert run("make", "viewer-check", cwd=tmp_path).returncode == 0
    made = (tmp_path / BUNDLE / "viewer.js").read_text()
    assert made == (ROOT / BUNDLE / "viewer.js").read_text().replace("this page", "that page")
