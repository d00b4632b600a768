"""The viewer's page without a browser: packed data by hand, the page's security policy, and data packed only once."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import treeagent
from report_sample import TASK, sample_tree
from viewer_sample import BREAKS, hostile_tree, large_tree, write_run

from treeagent.config import RunConfig
from treeagent.contrib.viewer.pack import FLAGS, criticality, pack


def named(row: dict[str, Any]) -> set[str]:
    return {name for place, name in enumerate(FLAGS) if row.get("flags", 0) >> place & 1}


def opened(page: str) -> dict[str, Any]:
    """The data elements of a page, by name."""
    found = re.findall(r'<script type="application/gzip" id="([\w-]+)">([\w+/=]+)</script>', page)
    return {name: json.loads(gzip.decompress(base64.b64decode(packed))) for name, packed in found}


def test_criticality_is_q_minus_the_mean_of_the_tried_siblings_by_visits() -> None:
    tree = sample_tree()
    search, other = tree.root.edges  # Q is 4/5 with 5 visits, and 1/4 with 1 visit
    bad, buy, untried = search.child.edges if search.child else []
    drops = criticality(tree)
    assert drops[id(search)] == pytest.approx(0.8 - 0.25) and drops[id(other)] == pytest.approx(0.25 - 0.8)
    assert drops[id(buy)] == pytest.approx(1.0) and drops[id(bad)] == pytest.approx(-1.0)
    assert id(untried) not in drops
    search.visits += 3
    search.value_sum += 3.0
    tree.root.edges.append(bad)
    # The siblings of the imagined step have 8 visits that sum to 7, and one that sums to 0.
    assert criticality(tree)[id(other)] == pytest.approx(0.25 - 7 / 9)


def test_a_packed_tree_has_every_step_with_its_figures_and_flags() -> None:
    packed = pack(sample_tree(), RunConfig(), "training")
    rows = packed.rows["steps"]
    assert [row["parent"] for row in rows] == [0, 1, 1, 1, 0]
    search, bad, buy, back, imagined = rows
    assert (search["visits"], search["sum"], search["prior"], search["value"]) == (5, 4.0, 0.7, 0.6)
    assert search["drop"] == 0.55 and search["advantage"] == pytest.approx(0.8 - 1.05 / 2, abs=1e-4)
    assert search["thought"] == "I should look first." and search["said"].startswith("3 found <script>")
    assert {"tried", "chosen", "preferred"} <= named(search) and {"tried", "imagined"} <= named(imagined)
    assert named(bad) >= {"tried", "refused", "rejected"} and "rejected" in named(imagined)
    assert named(buy) >= {"tried", "terminated", "chosen", "success", "preferred"} and buy["reward"] == 1.0
    assert "tried" not in named(back) and "visits" not in back
    summary = packed.summary
    assert (summary["solved"], summary["found"], summary["best"], summary["steps"]) == (True, True, 1.0, 5)
    assert str(TASK.data["answer"]) not in json.dumps(packed.rows) + json.dumps(summary)


def test_the_page_allows_its_own_script_and_style_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [hostile_tree(), large_tree(50)])
    done = treeagent("view", run)
    assert done.returncode == 0, done.stderr
    page = (run / "view.html").read_text()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#x27;", "'").split("; "))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    assert rules.pop("img-src") == "data:" and set(rules) == {"script-src", "style-src"}
    assert all(re.fullmatch(r"'sha256-[\w+/]+='", rule) for rule in rules.values())
    assert BREAKS not in page and "src=" not in page and "http://www.w3.org" not in page.split("<script>")[0]
    data = opened(page)
    assert [each["task"] for each in data["index"]["trees"]] == [f"task {BREAKS}", "large-50-0"]
    texts = json.dumps(data, ensure_ascii=False)
    assert not re.search("[\x00\x07\x1b\u202e\u2066]", texts) and "\\\\u202e" in texts
    again = treeagent("view", run, "--out", tmp_path / "again.html")
    assert again.returncode == 0 and (tmp_path / "again.html").read_text() == page
