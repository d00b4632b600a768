"""The size of the project against its limits, ``[tool.treeagent.limits]`` of pyproject.toml. ``make check`` runs it:
what is added is paid for by what is taken away.

Run ``python -m benchmarks.size`` to print it; it exits with 1 above a limit.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from treeagent.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]


def size(root: Path = ROOT) -> dict[str, int]:
    """The figures that have limits, by their names in the table."""
    product = sorted((root / "treeagent").rglob("*.py"))
    contrib = [path for path in product if "contrib" in path.relative_to(root).parts]
    core = [path for path in product if path not in contrib]
    docs = [path for path in (root / "docs").rglob("*.md") if not re.search("results|notebook", str(path))]
    settings = (root / "docs" / "settings.md").read_text(encoding="utf-8")
    return {
        "core_lines": _lines(core),
        "core_modules": len(core),
        "contrib_lines": _lines(contrib),
        "contrib_modules": len(contrib),
        "settings": len(re.findall(r"^\| `", settings, re.MULTILINE)),
        "commands": len(COMMANDS),
        "test_lines": _lines((root / "tests").rglob("*.py")),
        "doc_words": sum(len(path.read_text(encoding="utf-8").split()) for path in docs),
    }


def _lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def main() -> None:
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["treeagent"]["limits"]
    found = size()
    for name, limit in limits.items():
        print(f"{name:14} {found[name]:7,} of {limit:7,}" + ("  above the limit" if found[name] > limit else ""))
    if any(found[name] > limit for name, limit in limits.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
