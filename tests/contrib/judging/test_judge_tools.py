"""A judge that calls the environment's read-only tools before it judges."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from judge_server import judge_server

from treeagent.config import load_config
from treeagent.contrib.judging.assess import assessor, judge_tools
from treeagent.contrib.judging.config import JudgeConfig, RewardsConfig
from treeagent.contrib.judging.rescore import assess_trees
from treeagent.envs import Env, EnvDynamics, make_env
from treeagent.envs.pool import EnvPool
from treeagent.pipeline.build import scored
from treeagent.search import Limits, SearchConfig, make_search
from treeagent.search.node import Tree, finished_paths
from treeagent.types import Action, Proposal, State, UserError


class Answers:
    """A policy that submits an answer at once."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal(actions=(Action("answer[SELECT 1]", "answer[SELECT 1]"),))] * len(states)


def rewards(url: str, tools: tuple[str, ...] = ("schema",), most: int = 2) -> RewardsConfig:
    items = ("Does a table of orders exist?",)
    judge = JudgeConfig(model="judge", items=items, url=url, votes=1, hacked=False, tools=tools, most_tool_calls=most)
    return RewardsConfig(weights={"judge": 1.0}, judge=judge)


def searched(env: Env, settings: RewardsConfig, folder: Path, pool: EnvPool | None = None) -> Tree:
    config = replace(load_config(None), rewards=settings)
    played = EnvDynamics(pool or env, max_steps=4)
    by = scored(played, played, config, ends=assessor(settings, folder, "collect", env))
    search = make_search(Answers(), by, SearchConfig(Limits(simulations=2), step_seconds=0.5))
    [tree] = asyncio.run(search.run(env.tasks("train", 1), [0]))
    assert not tree.error, tree.error
    return tree


def looking(prompt: str) -> str:
    """The judge calls a tool first, and then judges by its result."""
    seen = prompt.rpartition("CALL schema[]\n")[2] if "\n\nCALL schema[]\n" in prompt else ""
    return f"1: {'yes' if '(' in seen and '> refused' not in seen else 'no'}" if seen else "CALL schema[]"


def test_a_judge_looks_where_the_episode_ended_and_a_stored_episode_is_replayed_for_it(tmp_path: Path) -> None:
    env = make_env("sql")
    with judge_server(looking) as server:
        settings = rewards(server.url)
        tree = searched(env, settings, tmp_path)
        [end] = [path[-1] for path in finished_paths(tree)]
        assert end.components["judge"] == end.reward == 1.0
        assert len(server.asked) == 2 and len(server.asked[1]["messages"]) == 4
        ends = assessor(settings, tmp_path, "rescore", env)
        assert ends is not None and ends.judge is not None
        end.components = {"outcome": 0.0}
        asyncio.run(assess_trees([tree], ends, {}, EnvDynamics(env, max_steps=4)))
        assert end.components["judge"] == 1.0 and len(server.asked) == 2  # its verdict was cached
        assert ends.judge.ledger.figures()["judge/tool_calls"] == 1


def test_a_judge_that_has_looked_may_take_longer_than_a_step(tmp_path: Path) -> None:
    def slowly(prompt: str) -> str:
        time.sleep(0.7)
        return looking(prompt)

    env = make_env("sql")
    with judge_server(slowly) as server, EnvPool(env, lambda: make_env("sql"), 2) as pool:
        tree = searched(env, rewards(server.url), tmp_path, pool)
        [end] = [path[-1] for path in finished_paths(tree)]
        assert end.components["judge"] == 1.0


@pytest.mark.parametrize("call", ["answer[SELECT 1]", "drop[orders]", "query"])
def test_a_call_that_the_judge_may_not_make_is_refused_and_calls_are_bounded(tmp_path: Path, call: str) -> None:
    with judge_server(lambda prompt: f"CALL {call}") as server:
        tree = searched(make_env("sql"), rewards(server.url, ("query",)), tmp_path)
        [end] = [path[-1] for path in finished_paths(tree)]
        assert "judge" not in end.components and end.reward is None
        assert len(server.asked) == 3  # two calls, then a reply without a verdict
        assert "> refused" in server.asked[-1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [("<think>\nCALL schema[]\nis not needed.\n</think>\n1: yes", 1.0), ("<think>\nCALL schema[]\nmay he", None)],
)
def test_a_call_within_a_thought_is_not_made(tmp_path: Path, reply: str, verdict: float | None) -> None:
    with judge_server(lambda prompt: reply) as server:
        tree = searched(make_env("sql"), rewards(server.url), tmp_path)
        [end] = [path[-1] for path in finished_paths(tree)]
        assert end.components.get("judge") == verdict
        assert len(server.asked) == 1


@pytest.mark.parametrize("tools", [("answer",), ("nothing",)])
def test_only_read_only_tools_of_the_environment_may_be_named(tools: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"rewards\.judge\.tools.*schema"):
        judge_tools(rewards("http://nowhere", tools), make_env("sql"))


def test_an_environment_that_cannot_go_back_is_refused() -> None:
    env = make_env("sql")
    env.snapshot_kind = "none"
    with pytest.raises(UserError, match="cannot go back"):
        judge_tools(rewards("http://nowhere"), env)
