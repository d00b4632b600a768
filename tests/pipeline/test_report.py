"""RUN/report.html: of hostile content, and of a real run."""

import re
from html.parser import HTMLParser

import pytest
from report_sample import HOSTILE, ROWS, TASK, sample_tree

from treeagent.config import RunConfig, dump_config
from treeagent.pipeline.report.page import Content, render


@pytest.fixture(scope="module")
def page() -> str:
    content = Content(
        rows=[{**row, "errors": 7, "error": HOSTILE} for row in ROWS],
        config=dump_config(RunConfig()),
        provenance={"seed": "0", "treeagent": "<0.1>"},
        alarms=[("alarms-2", "plateau of 3 < 4")],
        tree=sample_tree(),
    )
    return render(content).decode()


class Balance(HTMLParser):
    """Fails if a closing tag does not match the innermost open element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_loads_nothing(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not {"script", "link", "img", "iframe"} & set(parser.seen)
    shown = re.compile(r"<pre>.*?</pre>", re.DOTALL)  # the settings, some of which are addresses
    assert "://" not in shown.sub("", page) and "@import" not in page and "url(" not in page


def test_text_is_escaped_and_the_hidden_answer_stays_hidden(page: str) -> None:
    assert HOSTILE not in page and "&lt;script&gt;" in page
    assert "<b>red</b>" not in page and "&lt;0.1&gt;" in page
    assert str(TASK.data["answer"]) not in page
