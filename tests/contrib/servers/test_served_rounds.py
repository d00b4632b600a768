"""Rounds of training on servers that receive each round's weights while the run continues."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import CONFIG, treeagent
from openai_server import BRING, OpenAIServer, serving
from toy_llama import CONFIG as SIZES
from toy_llama import tokenizer

from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import read_trees
from treeagent.search.node import Tree

ROUNDS = [
    *("environment.name=toy_doors:Doors", "environment.options={}", "environment.max_steps=2", "workers=1"),
    *("warm_start.episodes=40", "warm_start.tasks=40", "warm_start.noise=0.5", "warm_start.training.max_steps=20"),
    *("collect.tasks=4", "collect.batch=2", "search.limits={simulations=4}", "policy.max_new_tokens=12"),
    *("adapt.rounds=2", 'adapt.methods=["rft"]', "update.rft.max_steps=1", "update.validation_tasks=2"),
    *("evaluate.tasks=2", 'evaluate.modes=["greedy"]', "update.value_reads=logprobs"),
]


def made() -> OpenAIServer:
    shape = replace(SIZES, context=1024)
    network = random_model(tokenizer(), shape, 0).eval()
    return OpenAIServer(LocalGenerator(network), ChatFormat(tokenizer()), "another", shape.context)


def shapes(trees: list[Tree]) -> list[list[tuple[tuple[int, ...], ...]]]:
    assert [tree.error for tree in trees] == [""] * len(trees)
    return [[tuple(edge.action.token_ids for edge in path) for path, _ in tree.walk()] for tree in trees]


@pytest.mark.slow
def test_servers_get_the_weights_of_every_round(tmp_path: Path) -> None:
    """The run equals one that samples in this process, and for the evaluation the servers get each policy again."""
    local, served = tmp_path / "local", tmp_path / "served"
    done = treeagent("train", "--config", CONFIG, "--out", local, *ROUNDS)
    assert done.returncode == 0, done.stderr
    with serving(made()) as one, serving(made()) as other:
        remote = [
            "policy.generator=pool",
            f"policy.options.urls={json.dumps([one.url, other.url])}",
            f"policy.options.reload={json.dumps([*BRING, '{url}', '{checkpoint}'])}",
            "workers=1",
        ]
        done = treeagent("train", "--config", CONFIG, "--out", served, *ROUNDS, *remote)
        assert done.returncode == 0, done.stderr
    searching, evaluated = ["warm", "round-1-rft"], ["warm", "round-1-rft", "round-2-rft"]
    for server in (one, other):
        assert [Path(folder).name for folder in server.loaded] == [*searching, *evaluated]
    names = [f"collect-{number}" for number in (1, 2)]
    trees = [[list(read_trees(run / "trees", [name])) for name in names] for run in (served, local)]
    assert [shapes(each) for each in trees[0]] == [shapes(each) for each in trees[1]]
    rows = Run.open(served).result_rows()
    assert [(row["policy"], row["errors"]) for row in rows] == [(name, 0) for name in evaluated]
