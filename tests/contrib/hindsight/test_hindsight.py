"""Hindsight divergence against transformers' log-probabilities of whole sequences."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
import torch
from command import treeagent

from treeagent.agent.checkpoint import Checkpoint
from treeagent.agent.policy import LLMPolicy
from treeagent.config import load_config
from treeagent.contrib.hindsight.divergence import divergences
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.pipeline.build import make_policy
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task

TASK = Task("kettle-1", "Buy a kettle.")
NOTES = {True: "Known in hindsight: in this episode the agent solves the task.\n\n", False: ""}
NOTES[False] = NOTES[True].replace("solves", "fails at")
CONFIG = load_config(None, ["policy.temperature=0.5"])
SCRATCH = ScratchConfig(vocabulary=400, layers=1, width=32, heads=2, context=256)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    tokenizer = train_tokenizer([f"{TASK.prompt} look buy Known in hindsight: {NOTES[False]}"] * 9, SCRATCH)
    return Checkpoint(random_model(tokenizer, SCRATCH, 0), tokenizer)


@pytest.fixture
def policy(checkpoint: Checkpoint) -> LLMPolicy:
    return make_policy(checkpoint, CONFIG)


def grown(chat: ChatFormat) -> Tree:
    """ "look", followed by "buy" with success and "sell" with failure; beside it "wait", which never ends."""
    messages = (Message("user", TASK.prompt),)
    tree = Tree(TASK, 0, Node(State(TASK, messages), context_ids=chat.prompt_ids(messages)))

    def act(node: Node, text: str, reward: float | None = None) -> Node:
        ids = chat.encode_action(text)
        told = (*node.state.messages, Message("assistant", text, ids), Message("user", f"{text}: done"))
        child = Node(State(TASK, told), context_ids=chat.context_ids(told), terminated=reward is not None)
        action = Action(text, text, token_ids=ids, logprobs=(-0.1,) * len(ids))
        node.edges.append(Edge(action, 0.5, 1, reward or 0.0, reward or 0.0, child))
        return child

    look = act(tree.root, "look")
    act(tree.root, "wait")
    act(look, "buy", 1.0)
    act(look, "sell", 0.0)
    return tree


def logprob(checkpoint: Checkpoint, prompt: Sequence[int], ids: Sequence[int]) -> float:
    with torch.no_grad():
        logits = checkpoint.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    told = (logits.float() / 0.5).log_softmax(-1)
    return float(told[torch.arange(len(ids)), torch.tensor(ids)].sum())


def test_divergence_is_the_change_of_the_log_probability_by_knowing_the_outcome(
    checkpoint: Checkpoint, policy: LLMPolicy
) -> None:
    tree = grown(policy.chat)
    look, wait = tree.root.edges
    assert look.child is not None
    buy, sell = look.child.edges
    found = divergences(tree, policy)
    assert id(wait) not in found
    start = tree.root.context_ids
    begun = {known: policy.chat.prompt_ids((Message("user", note + TASK.prompt),)) for known, note in NOTES.items()}
    assert all(len(told) > len(start) for told in begun.values())
    behind = look.action.token_ids + look.child.context_ids
    for edge, known in ((buy, True), (sell, False)):
        ids = edge.action.token_ids
        changed = logprob(checkpoint, begun[known] + behind, ids) - logprob(checkpoint, start + behind, ids)
        assert found[id(edge)] == pytest.approx(abs(changed), abs=1e-4) and abs(changed) > 1e-3
    # Both ends follow the first step, so it gets the mean of their divergences.
    ids, plain = look.action.token_ids, logprob(checkpoint, start, look.action.token_ids)
    both = [abs(logprob(checkpoint, begun[known], ids) - plain) for known in NOTES]
    assert found[id(look)] == pytest.approx(sum(both) / 2, abs=1e-4)


def test_the_command_writes_the_divergence_of_every_step(finished_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    done = treeagent("hindsight", run)
    assert done.returncode == 0 and " nats " in done.stdout, done.stderr
    rows = [orjson.loads(line) for line in (run / "hindsight.jsonl").read_bytes().splitlines()]
    assert rows and all(row["divergence"] >= 0 for row in rows)
