"""RUN/report.html of a real run: its sections, and the files of its figures."""

import csv
import re
import shutil
from pathlib import Path

import orjson
from command import treeagent

from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.pipeline.index import write_trees
from treeagent.pipeline.report.gather import gather
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_place, shards
from treeagent.world_model.fidelity import wilson_interval


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
        write_trees(run / "trees", name, index, trees)
    content = gather(Run.open(run))
    assert not content.anytime and not content.collecting and content.rows


def copy_of(run: Path, folder: Path, solved: str) -> Path:
    """A copy of a run with a new name and another ``solved`` in its first row of results."""
    shutil.copytree(run, folder)
    rows = Run.open(folder).result_rows()
    low, high = wilson_interval(solved.count("1"), len(solved))
    changed = {"success": solved.count("1") / len(solved), "success_low": low, "success_high": high}
    rows[0] |= {"solved": solved, **changed}
    (folder / "results.json").write_bytes(orjson.dumps(rows))
    return folder


def test_runs_are_compared_task_by_task(finished_run: Path, tmp_path: Path) -> None:
    one, two = copy_of(finished_run, tmp_path / "one", "0001"), copy_of(finished_run, tmp_path / "two", "1101")
    config = (two / "config.toml").read_text()
    (two / "config.toml").write_text(config.replace("seed = 0", "seed = 3"))
    page = tmp_path / "pages" / "both.html"
    page.parent.mkdir()
    done = treeagent("report", one, two, "--out", page)
    assert done.returncode == 0, done.stderr
    told = page.read_text()
    # Of four tasks two are won and none is lost: as in test_suite.py, the interval is 0.3333 ± 0.4990.
    assert "<td>+50.0 [-16.6, +83.2]</td><td>4</td>" in told
    assert '<td class="word">seed</td><td class="word">0</td><td class="word">3</td>' in told
    links = re.findall(r'href="(figures/[^"]+)"', told)
    assert "figures/both-tokens.csv" in links and all((page.parent / link).is_file() for link in links)
    with (page.parent / "figures" / "both-tokens.csv").open() as file:
        series = {row["series"] for row in csv.DictReader(file)}
    assert {"one base mcts, taken", "two base mcts, taken", "two base greedy"} <= series
    before = {path: path.read_text() for path in (page.parent / "figures").iterdir()}
    assert treeagent("report", one, finished_run, "--out", page.with_name("others.html")).returncode == 0
    assert before == {path: path.read_text() for path in before}


def test_a_report_is_written_anew(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "report.html").unlink()
    shutil.rmtree(run / "figures")
    assert treeagent("report", run).returncode == 0
    assert (run / "report.html").is_file() and (run / "figures" / "anytime-tokens.svg").is_file()


def test_what_cannot_be_reported_is_refused(finished_run: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    Run.create(empty, RunConfig(), resume=False).close()
    for arguments, named in (
        ([tmp_path / "none"], "none"),
        ([empty], "empty"),
        ([finished_run, empty], "empty"),
        ([finished_run, finished_run.parent / "." / finished_run.name], "twice"),
    ):
        done = treeagent("report", *arguments)
        assert done.returncode == 2 and named in done.stderr, done.stderr
