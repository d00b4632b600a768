"""Ratings of policies from pairwise comparisons: by rewards, and by a judge that reads both orders."""

import asyncio
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import treeagent
from judge_server import JudgeServer, judge_server

from treeagent.contrib.judging.assess import judge_of
from treeagent.contrib.judging.config import JudgeConfig, RewardsConfig
from treeagent.contrib.judging.judge import Judge
from treeagent.contrib.judging.ratings import Array, Rating, bradley_terry, rate
from treeagent.contrib.judging.report_ratings import Episode, episodes_of, rate_policies, shared_tasks
from treeagent.pipeline.folder import Run
from treeagent.pipeline.report.compare import compared
from treeagent.types import Message, Task

TASK = Task("task", "Find the lamp.")


def episode(said: str, *, task: Task = TASK, solved: bool = False, paid: float = 0.0) -> Episode:
    return Episode(task, (Message("user", "Find the lamp."), Message("assistant", said)), solved, paid)


def wins(ratings: list[float]) -> Array:
    """P(row beats column) by the definition of Elo's scale."""
    column = np.array(ratings)[:, None]
    return np.asarray(1 / (1 + 10 ** ((column.T - column) / 400)), dtype=np.float64)


def values(found: list[Rating | None]) -> list[float]:
    return [math.nan if each is None else each.value for each in found]


def test_known_utilities_are_recovered() -> None:
    truth = [700.0, 1000.0, 1100.0, 1200.0]
    assert bradley_terry(1000 * wins(truth)) == pytest.approx(truth, abs=0.01)
    # Three of four games are won: 400 log10(3) apart, half of it on either side of the mean.
    assert bradley_terry(np.array([[0.0, 3.0], [1.0, 0.0]])) == pytest.approx(
        [1000 + 200 * math.log10(3), 1000 - 200 * math.log10(3)], abs=1e-3
    )
    # All tasks agree, so only the added tie moves the ratings.
    found = rate(np.repeat(wins(truth)[None], 1000, axis=0))
    assert values(found) == pytest.approx(truth, abs=1.5)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    truth, generator, held = [900.0, 1000.0, 1100.0], np.random.default_rng(0), 0
    for _ in range(30):
        drawn = (generator.random((100, 3, 3)) < wins(truth)).astype(float)
        upper = np.triu(drawn, 1)
        scores = upper + np.tril(1 - np.swapaxes(drawn, 1, 2), -1)
        for found, true in zip(rate(scores), truth, strict=True):
            assert found is not None and found.low is not None and found.high is not None
            assert found.low < found.value < found.high
            held += found.low <= true <= found.high
    assert 0.85 <= held / 90 <= 1.0


def test_who_won_everything_has_a_finite_rating_and_who_met_nobody_has_none() -> None:
    scores = np.full((9, 3, 3), math.nan)
    scores[:, 0, 1], scores[:, 1, 0] = 1.0, 0.0
    first, second, alone = rate(scores)
    assert alone is None and first is not None and second is not None
    # Nine wins and a tie count as 9.5 of 10.
    assert first.value - second.value == pytest.approx(400 * math.log10(19), abs=1e-3)
    assert first.comparisons == second.comparisons == 9
    assert first.low is first.high is second.low is second.high is None  # all tasks say the same
    assert rate(np.full((9, 2, 2), math.nan)) == [None, None]


def judge(server: JudgeServer, folder: Path, **settings: Any) -> Judge:
    config = JudgeConfig(**{"model": "judge", "items": ("Is it the lamp?",), "url": server.url} | settings)
    made = judge_of(RewardsConfig(judge=config), folder, "compare")
    assert made is not None
    return made


def prefers_good(prompt: str) -> str:
    """A judge that says yes if only the second episode is good."""
    first, _, second = prompt.partition("The second episode:")
    return f"1: {'yes' if 'good' in second and 'good' not in first else 'no'}"


@pytest.mark.parametrize("votes", [1, 3])
@pytest.mark.parametrize(
    ("reply", "said"), [(lambda prompt: "1: yes", 0.5), (lambda prompt: "1: no", 0.5), (prefers_good, 1.0)]
)
def test_a_liking_for_a_place_or_for_yes_cancels(
    tmp_path: Path, reply: Callable[[str], str], said: float, votes: int
) -> None:
    good, bad = (episode(text).messages for text in ("good", "bad"))
    with judge_server(reply) as server:
        made = judge(server, tmp_path, votes=votes)
        assert asyncio.run(made.prefer(TASK, good, bad)) == said
        assert len(server.asked) == max(votes, 2)
        assert asyncio.run(made.prefer(TASK, bad, good)) == 1 - said
        assert asyncio.run(made.prefer(TASK, good, good)) == 0.5
        assert made.ledger.figures()["judge/compared"] == 2


def test_a_pair_without_a_verdict_is_left_out_and_counted(tmp_path: Path) -> None:
    tasks = [Task(f"task-{number}", "Find the lamp.") for number in range(6)]
    # The judge cannot read the last two tasks, one of them in one order only.
    texts = {task.id: "odd" if place > 3 else "good" for place, task in enumerate(tasks)}

    def reply(prompt: str) -> str:
        shy = "odd" in prompt and ("4" in prompt or "odd" in prompt.partition("The second episode:")[0])
        return "I would rather not say." if shy else prefers_good(prompt)

    ours = {task.id: episode(f"{texts[task.id]} {task.id[-1]}", task=task) for task in tasks}
    theirs = {task.id: episode("bad", task=task) for task in tasks}
    with judge_server(reply) as server:
        found = rate_policies({("a", "base", "greedy"): theirs, ("b", "dpo", "greedy"): ours}, judge(server, tmp_path))
    assert found is not None and "2 of 6" in found.note and "2 times" in found.note
    assert "18 calls and 1,890 tokens" in found.note  # three votes on each of six tasks, 105 tokens each
    [(name, best), (_, worst)] = found.rows
    assert name == ("b", "dpo", "greedy") and best is not None and worst is not None
    assert best.value - worst.value == pytest.approx(400 * math.log10(4.5 / 0.5), abs=1e-3)  # four wins and a tie
    assert best.comparisons == 4


def test_without_a_judge_a_success_counts_and_then_the_pay() -> None:
    one = {"1": episode("a", solved=True), "2": episode("b", paid=0.5), "3": episode("c"), "4": episode("d", paid=2.0)}
    other = {"1": episode("a", paid=2.0), "2": episode("b", paid=0.2), "3": episode("c"), "5": episode("d")}
    found = rate_policies({("a", "base", "greedy"): other, ("b", "base", "greedy"): one})
    assert found is not None and found.rows[0][0][0] == "b"
    assert found.rows[0][1] is not None and found.rows[0][1].comparisons == 3  # two wins, a tie, and the added tie
    assert found.rows[0][1].value == pytest.approx(1000 + 200 * math.log10(3 / 1), abs=1e-3)
    assert rate_policies({("a", "base", "greedy"): other}) is None
    assert rate_policies({("a", "base", "greedy"): {"5": one["4"]}, ("b", "base", "greedy"): {"4": one["4"]}}) is None


def test_episodes_are_paired_only_if_their_tasks_are_the_same() -> None:
    first = {key: episode("a", task=replace(TASK, data={"lamp": key})) for key in ("1", "2", "3")}
    other = {"3": first["3"], "2": episode("a", task=replace(TASK, data={"lamp": "another"})), "1": first["1"]}
    assert shared_tasks([first, other]) == ["1", "3"]
    assert rate_policies({("a", "base", "greedy"): {"2": first["2"]}, ("b", "base", "greedy"): other}) is None


def test_a_report_rates_the_policies_of_a_run_by_a_judge(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "a=b"
    shutil.copytree(finished_run, run)
    [told] = compared([Run.open(run)])
    one, other = (episodes_of(told.run, row) for row in told.rows[:2])
    assert one.keys() == other.keys() and len(one) == 4 and all(len(each.messages) > 1 for each in one.values())
    with judge_server(lambda prompt: "1: no") as server:
        judged = f"rewards.judge={{model='judge', items=['Was it bought?'], url='{server.url}', votes=2}}"
        done = treeagent("report", run, judged)
        assert done.returncode == 0, done.stderr
        assert server.asked and "1000" in done.stdout and "4 tasks" in " ".join(done.stdout.split())
        assert "<h2>Ratings</h2>" in (run / "comparison.html").read_text()
        assert treeagent("report", run, "--out", tmp_path / "paid.html").returncode == 0
        assert "what their episodes were paid" in (tmp_path / "paid.html").read_text()
    for arguments, named in (([run, "search.leaves=3"], "rewards.judge"), ([judged], "folder")):
        refused = treeagent("report", *arguments)
        assert refused.returncode == 2 and named in refused.stderr
