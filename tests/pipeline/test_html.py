import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_sample import HOSTILE, ROWS, TASK, long_tree, sample_tree

from treeagent.config import RunConfig, dump_config
from treeagent.pipeline.report.chart import Chart, Line, write_chart
from treeagent.pipeline.report.curves import series
from treeagent.pipeline.report.gather import Alarm, Content
from treeagent.pipeline.report.html import write_report

METRICS = [
    {
        "stage": stage,
        "step": step,
        "loss": 1 / (step + 1),
        "grad_norm": 1.0,
        "a$b_c": step,
        "kl": None,
        "e": 0.0,
        "f": 1,
    }
    for stage in ("sft", "dpo <i>")
    for step in range(50)
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(
        path,
        Content(
            rows=ROWS,
            metrics=METRICS,
            config=dump_config(RunConfig()),
            provenance={"seed": "0", "treeagent": "<0.1>"},
            alarms=[Alarm("alarms-2", "plateau of 3 < 4")],
            tree=sample_tree(),
        ),
    )
    return path.read_text()


class Balance(HTMLParser):
    """Fails if a closing tag does not match the innermost open element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in ("meta", "br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_loads_nothing(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not {"script", "link", "img", "iframe"} & set(parser.seen)
    shown = re.compile(r"<pre>.*?</pre>", re.DOTALL)  # the settings, some of which are addresses
    assert "://" not in shown.sub("", page) and "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []


def test_a_long_path_of_the_tree_ends_with_the_number_of_its_other_steps(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, Content(rows=[], metrics=[], config="", provenance={}, tree=long_tree(1200)))
    parser, text = Balance(), path.read_text()
    parser.feed(text)
    assert parser.open == []
    assert "go 99<" in text and "go 100<" not in text and "1,100 more steps" in text


def test_ids_are_unique_and_every_reference_is_met(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert len(parser.ids) == len(set(parser.ids))
    assert set(re.findall(r"(?:url\(#|href=\"#)([\w-]+)", page)) <= set(parser.ids)


def test_everything_is_on_the_page(page: str) -> None:
    assert "dpo with mcts solves 83.5 % of 200 held-out tasks" in page
    for words in ("search[red kettle]", "open(item=3)", "imagined", "untried", "invalid", "simulations = 16"):
        assert words in page
    assert "I should look first." in page and "Thank you." in page
    assert "plateau of 3 &lt; 4 <small>(alarms-2)</small>" in page
    assert page.index("plateau of 3") < page.index("dpo with mcts solves")
    assert page.count("<svg") == 2 * 5


def test_errors_are_on_the_page_where_there_are_some(page: str, tmp_path: Path) -> None:
    assert "errors" not in page
    rows = [{**row, "errors": 7, "error": HOSTILE} for row in ROWS]
    write_report(tmp_path / "report.html", Content(rows=rows, metrics=[], config="", provenance={}))
    told = (tmp_path / "report.html").read_text()
    assert "<td>7</td>" in told
    assert "dpo with mcts: 7 of 200 episodes failed, the first: &lt;script&gt;" in told and HOSTILE not in told


def test_the_value_signal_and_what_was_taken_are_on_the_page_where_they_are_known(page: str, tmp_path: Path) -> None:
    assert "How well V tells" not in page and "search found" not in page
    row = {"depth": 1, "states": 3120, "found": 900, "auc": 0.75, "separation": None, "siblings": HOSTILE, "pairs": 0}
    assert "pass@N" not in page
    rows = [{**ROWS[1], "found": 0.75, "taken": 0.8, "pass_at_n": True}]
    path = tmp_path / "report.html"
    write_report(path, Content(rows=rows, metrics=[], config="", provenance={}, signal=("collect-2", [row])))
    told = path.read_text()
    assert "How well V tells, collect-2" in told and HOSTILE not in told
    assert "<td>1</td><td>3,120</td><td>900</td><td>0.75</td><td>–</td>" in told
    assert ">mcts *</td>" in told and "* pass@N: only a success ends" in told
    assert "Coverage and judgement" not in page
    # 150 of 200 tasks, and 120 of them
    assert "<td>75.0 %<" in told and "<td>80.0 %<" in told


def test_text_is_escaped_and_the_hidden_answer_stays_hidden(page: str) -> None:
    assert HOSTILE not in page and "&lt;script&gt;" in page
    assert "<b>red</b>" not in page and "&lt;0.1&gt;" in page
    assert str(TASK.data["answer"]) not in page


def test_colours_are_the_pages(page: str) -> None:
    assert "#01020" not in page and "var(--accent)" in page and "prefers-color-scheme:dark" in page


def test_the_page_is_the_same_every_time(tmp_path: Path) -> None:
    pages = []
    for name in ("one", "two"):
        write_report(tmp_path / name, Content(rows=[], metrics=METRICS[:3], config="", provenance={}))
        pages.append((tmp_path / name).read_text())
    assert pages[0] == pages[1]
    assert "Nothing has been evaluated yet." in pages[0] and "Warnings" not in pages[0]


def test_what_is_no_number_is_no_curve() -> None:
    rows = [{"stage": "a", "step": 1, "x": None, "y": 2}, {"stage": "a", "step": 2, "y": 3.5}]
    assert series(rows) == {"a": {"y": [(1, 2.0), (2, 3.5)]}}


def test_a_curve_with_a_hostile_name_is_escaped(tmp_path: Path) -> None:
    chart = Chart("curve", HOSTILE, HOSTILE, HOSTILE, [Line(HOSTILE, [(0, 1.0), (1, 2.0)])])
    assert "<script" not in write_chart(tmp_path, chart) + (tmp_path / "curve.svg").read_text()
