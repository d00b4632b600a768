"""RUN/report.html of a real run: its sections, and the files of its figures."""

import csv
import re
import shutil
from pathlib import Path

from treeagent.report.gather import gather
from treeagent.report.page import report
from treeagent.run.folder import Run
from treeagent.search.record import from_record, to_records
from treeagent.store import read_as, shard_place, shards, write_shard


def test_every_figure_of_the_page_is_a_file_with_its_data(finished_run: Path) -> None:
    page = (finished_run / "report.html").read_text()
    links = re.findall(r'href="(figures/[^"]+)"', page)
    assert len(links) == len(set(links)) == 2 * page.count("<svg")
    for link in links:
        assert (finished_run / link).is_file()
    for name in ("anytime-tokens", "anytime-steps", "collecting-tokens", "advantages", "calibration-ends"):
        assert f"figures/{name}.csv" in links


def test_the_curves_end_at_what_the_evaluation_found(finished_run: Path) -> None:
    run = Run.open(finished_run)
    rows = {f"{row['policy']} {row['mode']}": row for row in run.result_rows()}
    with (finished_run / "figures" / "anytime-tokens.csv").open() as file:
        last = {row["series"]: row for row in csv.DictReader(file)}
    searched = [name for name, row in rows.items() if row["mode"] != "greedy"]
    assert searched
    for name in searched:
        assert float(last[f"{name}, found"]["generated tokens a task"]) > 0
        assert float(last[f"{name}, found"]["generated tokens a task"]) <= rows[name]["generated_tokens"]
        found = next(line for line in gather(run).anytime[0].lines if line.label == f"{name}, found")
        assert found.points[-1][1] == rows[name]["found"]


def test_trees_of_an_older_version_give_no_curve_and_no_error(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    for path in shards(run / "trees"):
        name, index = shard_place(path)
        trees = list(read_as(from_record, run / "trees", name, index))
        for tree in trees:
            tree.spent = []
        write_shard(run / "trees", name, index, to_records(trees))
    page = report(Run.open(run)).read_text()
    assert "What a search reaches with less" not in page and "Coverage and judgement" in page
