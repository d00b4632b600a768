"""Write docs/results.md, docs/results/ and README's block of results from the result files: ``make results-docs``."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks import estimates
from benchmarks.pages import lengths, sweeps, tables
from benchmarks.pages.figures import curves, dots
from benchmarks.record import RESULTS, ROOT, Result, read
from treeagent.store import write_atomic

TEMPLATES = Path(__file__).parent
PAGES = ("search", "learning", "imagination", "engine")
"""One page per question, in the order of the index."""
_BEGIN, _END = "<!-- results:begin -->\n", "<!-- results:end -->"


def made(results: Path = RESULTS) -> dict[str, bytes]:
    """All files of the pages, by their paths below docs/."""
    files: dict[str, bytes] = {}
    titles: dict[str, tuple[str, str]] = {}
    for name in PAGES:
        text = _render(f"{name}.md.j2", results, files)
        files[f"results/{name}.md"] = text.encode()
        title, answer, *_ = text.split("\n\n")
        titles[name] = title.removeprefix("# "), answer.strip()
    files["results.md"] = _render("index.md.j2", results, files, pages=titles).encode()
    return files


def with_block(readme: str, results: Path = RESULTS) -> str:
    """README with its block of results regenerated; unchanged if no quickstart was measured."""
    if read(results / "quickstart.json") is None:
        return readme
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return f"{before}{begin}{_render('readme.md.j2', results, {})}{end}{after}"


def _render(template: str, results: Path, files: dict[str, bytes], **values: object) -> str:
    page = template.partition(".")[0]

    def result(name: str) -> Result | None:
        return read(results / f"{name}.json")

    def figure(
        found: Result, axis: str, of: str = "", arms: Sequence[str] = (), mark: float | None = None, log: bool = False
    ) -> str:
        """Draw a figure next to the page. Returns the link to it."""
        path = re.sub(r"\W+", "-", f"{page} {found.name} {of}".strip()) + ".svg"
        files[f"results/{path}"] = dots(axis, tables.figure_estimates(found, of, arms), mark, log)
        return f"![{found.question} {axis}]({path})"

    def curve_figure(found: Result, across: str, grid: tables.Grid) -> str:
        """Draw success as curves, with one panel per entry of ``grid``. Returns the link to the figure."""
        path = re.sub(r"\W+", "-", f"{page} {found.name}") + ".svg"
        files[f"results/{path}"] = curves("success, %", across, grid)
        return f"![{found.question}]({path})"

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for module in (tables, sweeps, lengths):
        environment.globals |= {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    environment.globals |= {
        "result": result, "figure": figure, "curve_figure": curve_figure, "of": estimates.figure,
    }  # fmt: skip
    text = environment.get_template(template).render(values)
    text = re.sub("\n(#+ )", r"\n\n\1", text)  # an empty line before each heading, even after a Jinja tag
    lines = [line.rstrip() for line in text.splitlines()]
    kept_lines = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return "\n".join(kept_lines).strip() + "\n"


def write(files: Mapping[str, bytes], docs: Path) -> None:
    """Write the pages, and remove figures that are no longer used."""
    (docs / "results").mkdir(exist_ok=True)
    for path in (docs / "results").iterdir():
        if f"results/{path.name}" not in files:
            path.unlink()
    for name, content in files.items():
        write_atomic(docs / name, content)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    write(made(), ROOT / "docs")
    readme = ROOT / "README.md"
    write_atomic(readme, with_block(readme.read_text()).encode())


if __name__ == "__main__":
    main()
