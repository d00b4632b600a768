"""Figures as SVG and CSV files."""

import csv
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from treeagent.pipeline.report.chart import Chart, Line, file_name, write_chart
from treeagent.pipeline.report.curves import curves
from treeagent.pipeline.report.parts import figures

CHART = Chart(
    "calibration",
    "Calibration",
    "V",
    "outcome",
    [
        Line("base", [(0.1, 0.2), (0.9, 0.8)], [(0.1, 0.3), (0.7, 0.9)]),
        Line("greedy", [(0.5, 0.5)], [(0.4, 0.6)], "dots", colour=1),
        Line("count", [(0.25, 3), (0.75, 1)], kind="bars", colour=7),
        Line("nothing", []),
    ],
    diagonal=True,
)


def test_a_figure_is_written_as_a_document_and_as_its_data(tmp_path: Path) -> None:
    write_chart(tmp_path / "figures", CHART)
    svg, table = tmp_path / "figures" / "calibration.svg", tmp_path / "figures" / "calibration.csv"
    assert ElementTree.fromstring(svg.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in svg.read_text() and "#01020" not in svg.read_text()
    rows = list(csv.reader(table.read_text().splitlines()))
    assert rows[0] == ["series", "V", "outcome", "low", "high"]
    assert rows[1] == ["base", "0.1", "0.2", "0.1", "0.3"] and rows[4] == ["count", "0.25", "3", "", ""]
    assert len(rows) == 6


def test_on_the_page_a_figure_has_its_colours_and_its_name(tmp_path: Path) -> None:
    svg = write_chart(tmp_path, CHART)
    assert svg.startswith('<svg role="img" aria-label="Calibration"') and "xmlns" not in svg
    assert "var(--series-0)" in svg and "var(--series-1)" in svg and "#01020" not in svg
    assert 'id="calibration-' in svg
    written = (tmp_path / "calibration.svg").read_text()
    assert write_chart(tmp_path, CHART) == svg and (tmp_path / "calibration.svg").read_text() == written


def test_names_of_files_are_plain_and_differ(tmp_path: Path) -> None:
    assert file_name("curve", "dpo <i>", "rewards/margins") == "curve-dpo-i-rewards-margins"
    rows = [{"stage": "dpo", "step": step, "a/b": 1.0, "a b": 2.0, "once": 3.0 if step else None} for step in (0, 1)]
    [charts] = curves(rows).values()
    plans = [Chart(file_name("calibration", name), name, "V", "", [Line(name, [(0, 1)])]) for name in ("a_b", "a-b")]
    taken = set[str]()
    page = figures(tmp_path, taken, charts) + figures(tmp_path, taken, plans)
    written = {str(path.relative_to(tmp_path)): path.read_text() for path in (tmp_path / "figures").glob("*.csv")}
    assert len(written) == page.count("<svg") == 4
    assert set(written) == set(re.findall(r'href="(figures/[^"]+csv)"', page))
    assert sorted(text.splitlines()[1] for name, text in written.items() if "calibration" in name) == [
        "a-b,0,1,,",
        "a_b,0,1,,",
    ]
