"""The scripts and styles in the package are built from the viewer's source and its lock file."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUNDLE = Path("treeagent") / "contrib" / "viewer"


def test_the_bundle_was_made_of_the_sources_as_they_are() -> None:
    """This test needs no Node: ``make viewer`` writes hashes of the files that it read and made."""
    lines = (ROOT / "viewer" / "bundle.sha256").read_text().splitlines()
    told = {path: known for known, path in (line.split("  ") for line in lines)}
    sources = ["build.mjs", "package.json", "package-lock.json"]
    read = [ROOT / "viewer" / name for name in sources] + list((ROOT / "viewer" / "src").iterdir())
    made = [ROOT / BUNDLE / f"{name}.{kind}" for name in ("viewer", "review") for kind in ("js", "css")]
    found = {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in (*read, *made)}
    changed = sorted(path for path in {*told, *found} if told.get(path) != found.get(path))
    assert not changed, f"run make viewer: {', '.join(changed)} changed since"


def run(*command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="wants Node: apt-get install nodejs npm")
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
