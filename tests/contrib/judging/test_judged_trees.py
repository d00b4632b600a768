"""Trees whose ends are scored by a judge: during search, and afterwards."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from judge_server import judge_server, says
from paid_lake import PAY, PaidLake

from treeagent.cli.data import rescore
from treeagent.config import load_config
from treeagent.contrib.judging.assess import assessor
from treeagent.contrib.judging.config import JudgeConfig, RewardsConfig
from treeagent.contrib.judging.reweigh import rescored
from treeagent.envs import EnvDynamics
from treeagent.pipeline.build import scored
from treeagent.pipeline.folder import Run
from treeagent.pipeline.index import write_trees
from treeagent.search import Limits, SearchConfig, make_search, to_record
from treeagent.search.node import Tree, finished_paths, outcome, path_return, succeeds
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import Action, Proposal, State

ITEMS = ("Is the agent at the goal?",)
WEIGHTS = {"outcome": 1.0, "process": 1.0, "judge": 0.5}


class ToAndFro:
    """Walks right and left, and never reaches the goal."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        walk = (Action("right", "right"), Action("left", "left"))
        return [Proposal(actions=walk)] * len(states)


def paid_lake(rewards: RewardsConfig, folder: Path, discount: float = 1.0) -> Tree:
    """A tree of the first training task, which pays for every step on the ice."""
    env = PaidLake()
    config = replace(load_config(None, ["environment.max_steps=4", "search.step_seconds=9"]), rewards=rewards)
    played = EnvDynamics(env, max_steps=4)
    ends = assessor(rewards, folder, "collect")
    by = scored(played, played, config, ends=ends)
    settings = SearchConfig(Limits(simulations=40), discount=discount)
    [tree] = asyncio.run(make_search(ToAndFro(), by, settings).run(env.tasks("train", 1), [0]))
    assert not tree.error, tree.error
    return tree


def rewards(url: str, **weights: float) -> RewardsConfig:
    return RewardsConfig(weights=weights or WEIGHTS, judge=JudgeConfig(model="judge", items=ITEMS, url=url, votes=1))


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir(exist_ok=True)
    return parent / name


def returns(tree: Tree) -> list[float]:
    return [path_return(path, tree.discount) for path in finished_paths(tree)]


def test_an_end_is_paid_what_the_judge_says_and_nothing_where_the_reward_was_hacked(tmp_path: Path) -> None:
    alone = paid_lake(RewardsConfig(weights={"outcome": 1.0, "process": 1.0}), tmp_path)
    assert max(returns(alone)) == pytest.approx(4 * PAY)
    with judge_server(says(True)) as server:
        fair = paid_lake(rewards(server.url), folder(tmp_path, "fair"))
    assert max(returns(fair)) == pytest.approx(4 * PAY + 0.5)
    with judge_server(says(False, hacked=True)) as server:
        for discount in (1.0, 0.9):
            hacked = paid_lake(rewards(server.url), folder(tmp_path, "hacked"), discount)
            ends = [path for path in finished_paths(hacked) if path[-1].hacked]
            assert ends and not any(map(succeeds, ends))
            assert returns(hacked) == pytest.approx([0.0] * len(returns(hacked)))
            assert all(outcome(path) == 0 for path in ends)
            # Rescoring with the same weights changes nothing, and without the hack flag the pay comes back.
            [again] = rescored([hacked], rewards(server.url), {})
            assert to_record(again) == to_record(hacked)


def test_an_end_without_a_verdict_has_no_reward_rather_than_0(tmp_path: Path) -> None:
    with judge_server(lambda prompt: "no idea") as server:
        tree = paid_lake(rewards(server.url), tmp_path)
        lasts = [path[-1] for path in finished_paths(tree)]
        assert lasts and all(edge.reward is None and edge.outcome == 0.0 for edge in lasts)
        assert not any("judge" in edge.components for edge in lasts)
        # With weights that leave out the judge, or bring it to 0 as a schedule may, the known rewards are paid again.
        [known] = rescored([tree], rewards(server.url, process=1.0), {})
        [silenced] = rescored([tree], rewards(server.url, process=1.0, judge=0.0), {})
    assert to_record(silenced) == to_record(known)
    assert max(returns(known)) == pytest.approx(4 * PAY)
    assert max(edge.value for edge in known.root.edges) == pytest.approx(4 * PAY, abs=0.2)


def test_stored_trees_are_judged_into_a_view_and_what_was_said_is_not_asked_again(tmp_path: Path) -> None:
    stored = paid_lake(RewardsConfig(), tmp_path)
    with Run.create(tmp_path / "run", load_config(None), resume=False) as run:
        write_trees(run.trees, "collect", 0, [stored])
    with judge_server(says(True)) as server:
        settings = [
            f"rewards.judge={{model='judge', items=['{ITEMS[0]}'], url='{server.url}', votes=1}}",
            "rewards.weights={judge=1.0}",
        ]
        rescore(tmp_path / "run", tmp_path / "view", settings)
        [tree] = read_as(from_record, tmp_path / "view" / "trees", "collect")
        ends = [path[-1] for path in finished_paths(tree)]
        assert ends and all(edge.reward == edge.components["judge"] == 1.0 for edge in ends)
        assert all(edge.components["hacked"] == 0.0 for edge in ends)
        facts = Run.open(tmp_path / "view").facts("rescore")
        assert facts["judge/fair"] == len(ends) and facts["judge/calls"] == len(server.asked) and not facts["alarms"]
        # A view of the view uses its ledger and needs no server.
        paid = len(server.asked)
        server.fault = lambda body: 500
        rescore(tmp_path / "view", tmp_path / "other", ["rewards.weights={judge=0.5}"], trust=True)
        assert len(server.asked) == paid
    facts = Run.open(tmp_path / "other").facts("rescore")
    assert facts["judge/calls"] == 0 and "judge/no_verdict" not in facts
