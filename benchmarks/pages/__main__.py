"""Write the pages of results from the result files: ``make results-docs``.

Three layers: answers (``docs/results.md`` and README's block), data (``results/*.json``, with the index
``results/README.md``), and the notebook (``docs/notebook.md``).
"""

import argparse
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks import estimates
from benchmarks.pages import sweeps, tables
from benchmarks.pages.figures import curves
from benchmarks.record import RESULTS, ROOT, Result, read
from treeagent.store import write_atomic

TEMPLATES = Path(__file__).parent
SWEEP = {"tree search": "mcts", "best-of-N": "best_of_n", "greedy": "greedy"}
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->"


def made(results: Path = RESULTS) -> dict[str, bytes]:
    """All files that are made from the results, by their paths below the repository's root."""
    readme = (ROOT / "README.md").read_text()
    before, begin, rest = readme.partition(BEGIN)
    after = rest.partition(END)[2]
    swept = _result(results, "sweep")
    return {
        "docs/results.md": _render("answers.md.j2", results).encode(),
        "docs/notebook.md": _render("notebook.md.j2", results).encode(),
        "docs/results/horizon.svg": curves("success, %", "decisions", sweeps.curves_of(swept, SWEEP)),
        "results/README.md": index(results).encode(),
        "README.md": f"{before}{begin}{_render('readme.md.j2', results)}{END}{after}".encode(),
    }


def index(results: Path) -> str:
    """The index of the result files, a row a file."""
    lines = []
    for path in sorted(results.glob("*.json")):
        found = read(path)
        if found is None:
            continue
        command = tables.commands(found.sessions)[0]
        module = re.findall(r"python -m (\S+)", command)[0]
        if found.name in tables.BY_SUM:
            state = "stale: an earlier rule ranked ends"
        elif found.name in tables.RETIRED:
            state = "stale: its world was removed"
        elif find_spec(module) is None:
            state = "stale: its program was removed"
        else:
            state = "current"
        commit = found.sessions[-1].commit[:7]
        arms = f"{len(found.arms)} arms, {len(found.seeds)} seeds"
        lines.append([f"[{found.name}]({path.name})", found.question, arms, f"`{command}`", commit, state])
    table = tables.markdown(["file", "question", "arms", "command", "commit", "state"], lines)
    return f"# Result files\n\nMade by `make results-docs`. `python -m benchmarks.table NAME` prints one.\n\n{table}\n"


def _result(results: Path, name: str) -> Result:
    found = read(results / f"{name}.json")
    if found is None:
        raise FileNotFoundError(results / f"{name}.json")
    return found


def _render(template: str, results: Path) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for module in (tables, sweeps):
        environment.globals |= {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    environment.globals |= {"result": lambda name: _result(results, name), "mean": estimates.mean}
    environment.globals |= {"figure": estimates.figure, "difference": estimates.difference}
    text = environment.get_template(template).render()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines())).strip() + "\n"


def write(files: Mapping[str, bytes], root: Path = ROOT) -> None:
    """Write the files, and remove figures that are no longer used."""
    for path in (root / "docs" / "results").glob("*"):
        if f"docs/results/{path.name}" not in files:
            path.unlink()
    for name, content in files.items():
        write_atomic(root / name, content)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    write(made())


if __name__ == "__main__":
    main()
