"""README and the pages of docs: quoted code equals the examples, links and paths exist, and so do commands.

``python tests/test_docs.py`` copies the examples into README.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from treeagent.cli.app import commands
from treeagent.config import RunConfig

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted(
    [
        README,
        ROOT / "CHANGELOG.md",
        ROOT / "AGENTS.md",
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("treeagent/contrib/*/README.md"),
    ]
)
QUOTED = re.compile(r"(<!-- code: (\S+) from: (.*?)(?: until: (.*?))? -->\n```python\n)(.*?)(```)", re.DOTALL)
"""A quoted block in README: path of the example, the beginnings of the first line and of the line after the last one,
and the code."""


def example(path: str, start: str, end: str) -> str:
    """The lines of an example, from the one that begins with ``start`` up to the one before a line that begins with
    ``end``."""
    text = (ROOT / path).read_text()
    text = text[f"\n{text}".index(f"\n{start}") :]
    return (text.partition(f"\n{end}")[0] if end else text).rstrip() + "\n"


def test_readme_quotes_the_examples() -> None:
    quoted = QUOTED.findall(README.read_text())
    assert [path for _, path, *_ in quoted] == ["examples/own_environment.py"]
    for _, path, start, end, code, _ in quoted:
        assert code == example(path, start, end), path


def test_the_results_block_of_readme_is_marked() -> None:
    begin, end = (README.read_text().index(f"<!-- results:{word} -->") for word in ("begin", "end"))
    assert begin < end


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link
    for link, anchor in re.findall(r"\]\((?!https:)([^)#\s]*)#([^)\s]+)\)", text):
        headings = re.findall(r"^#+ (.*)$", (page.parent / link).read_text() if link else text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, anchor
    for path in re.findall(
        r"\b((?:configs|tests|benchmarks|examples|treeagent|docs)/[\w/.-]+\.(?:py|toml|yaml|md))\b", text
    ):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_recipes_exist(page: Path) -> None:
    text = page.read_text()
    known = set(commands())
    for command in re.findall(r"(?:^    |`|/)treeagent ([a-z-]*[a-z])", text, re.MULTILINE):
        assert command in known, command
    for name in re.findall(r"--config ([\w/]+)(?![\w/.])", text):
        assert name == "NAME" or (ROOT / "configs" / f"{name}.toml").exists(), name


def settings(section: Any, prefix: str = "") -> Iterator[str]:
    """All dotted names of sections and settings in a settings class."""
    kinds = get_type_hints(section)
    for each in fields(section):
        yield prefix + each.name
        for kind in (kinds[each.name], *get_args(kinds[each.name])):
            if is_dataclass(kind):
                yield from settings(kind, f"{prefix}{each.name}.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_exist(page: Path) -> None:
    known = set(settings(RunConfig))
    sections = "|".join(name for name in known if "." not in name)
    for name in re.findall(rf"(?<![\w./-])((?:{sections})(?:\.[a-z_]+)+)\b(?![./(])", page.read_text()):
        if ".options." not in name and not name.endswith((".md", ".py")):
            assert name in known, name


def test_messages_name_settings_that_exist() -> None:
    known = set(settings(RunConfig))
    sections = "|".join(name for name in known if "." not in name)
    for source in (ROOT / "treeagent").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            for name in re.findall(rf"(?<![\w./-])((?:{sections})(?:\.[a-z_]+)+)\b(?![./(])", text):
                if ".options" not in name and not name.endswith((".md", ".py", ".sqlite", ".toml")):
                    assert name in known, f"{source.relative_to(ROOT)} names {name}"


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


if __name__ == "__main__":
    quoted = QUOTED.sub(
        lambda block: block[1] + example(block[2], block[3], block[4] or "") + block[6], README.read_text()
    )
    README.write_text(quoted)
