"""Search behind the proxy: it drives an agent of openai's client, and refuses one that cannot be rewound."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from safe import DIGITS, LENGTH, agent
from toy_llama import tokenizer

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.config import load_config
from treeagent.contrib.doors import searched
from treeagent.contrib.doors.search import Program
from treeagent.envs.base import Env
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model
from treeagent.pipeline.trees import stored_trees
from treeagent.search.node import Tree, solved
from treeagent.types import Task, UserError
from treeagent.views.advantages import AdvantageConfig, advantages
from treeagent.views.pairs import PairConfig, preference_pairs


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = random_model(tokenizer(), ScratchConfig(vocabulary=320, layers=1, width=16, heads=2, context=64), 0)
    return save_checkpoint(Checkpoint(model, tokenizer()), tmp_path_factory.mktemp("safe") / "policy")


def trees(checkpoint: Path, out: Path, program: Program, *more: str) -> list[Tree]:
    settings = ["environment.name=safe:Safe", "policy.generator=safe:Guesses", "policy.format=tools", "workers=1"]
    limits = ["collect.tasks=12", "environment.max_steps=8", *more]
    searched(checkpoint, load_config(None, [*settings, *limits]), out, program)
    return list(stored_trees(out / "trees"))


def turns(grown: Sequence[Tree]) -> int:
    return sum(tree.budget.generated_tokens for tree in grown) // len(grown)


def test_search_opens_more_safes_than_independent_plays_of_as_many_turns(checkpoint: Path, tmp_path: Path) -> None:
    limits = "search.limits={generated_tokens=1400}"  # about 21 turns
    found = trees(checkpoint, tmp_path / "search", agent, limits)
    played = trees(checkpoint, tmp_path / "plays", agent, limits, "search.method=best_of_n")
    assert not any(tree.error for tree in found)
    assert sum(map(solved, found)) > sum(map(solved, played)) + 2
    assert turns(found) < 1.1 * turns(played)
    for tree in found:
        assert [message.role for message in tree.root.state.messages] == ["system", "user"]
        for path, node in tree.walk():
            assert len(path) <= LENGTH and len(node.edges) <= DIGITS
            assert node.terminated == (bool(path) and (not node.edges and node.state.messages[-1].role == "assistant"))
    assert advantages(found, AdvantageConfig("grpo"))
    assert any(list(preference_pairs(tree, PairConfig("trajectory"))) for tree in found)


def test_an_agent_with_a_state_of_its_own_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    def clock(base_url: str, world: Env, task: Task) -> None:
        agent(base_url, world, task, f" It is {random.random()}.")

    with pytest.raises(UserError, match="keeps state beside its messages"):
        trees(checkpoint, tmp_path / "run", clock)
    with pytest.raises(UserError, match="before its agent asks"):
        trees(checkpoint, tmp_path / "other", lambda base_url, world, task: None)
