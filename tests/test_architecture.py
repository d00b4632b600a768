"""The rooms that docs/architecture.md shows equal those of the import contract and the folders on disk."""

import re
import tomllib
from pathlib import Path

HOME = Path(__file__).parents[1]
ROOT_FILES = {
    "__init__.py", "__main__.py", "config.py", "loop.py", "seams.py", "store.py", "threads.py", "types.py",
    "visible.py",
}  # fmt: skip


def contract() -> list[str]:
    """The layers of the import contract from the top down. Modules in one layer are separated by ` | `."""
    settings = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [each["layers"] for each in settings["contracts"] if each["type"] == "layers"]
    return [str(layer) for layer in layers]


def test_the_drawing_shows_the_layers_of_the_import_contract() -> None:
    (block,) = re.findall(r"```layers\n(.*?)```", (HOME / "docs" / "architecture.md").read_text(), flags=re.DOTALL)
    drawn = [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]
    assert drawn == contract()


def test_each_room_of_the_contract_is_a_folder_or_file_and_no_other_exists() -> None:
    named = {room for layer in contract() for room in layer.split(" | ")}
    folders = {path.parent.name for path in (HOME / "treeagent").glob("*/__init__.py")}
    files = {path.name for path in (HOME / "treeagent").glob("*.py")}
    assert files == ROOT_FILES
    assert named == (folders | {Path(name).stem for name in files}) - {"__init__", "contrib"}


def test_the_links_at_the_root_lead_to_their_rooms() -> None:
    for name in ("search", "world_model", "envs"):
        assert (HOME / name).resolve() == HOME / "treeagent" / name
