"""An update from stored trees: which trees it refuses, and how many processes it uses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command import CONFIG
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.config import RunConfig, load_config
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.metrics import Event
from treeagent.pipeline.trees import write_trees
from treeagent.pipeline.update import TrainJob, policy_training_rows, read_ends, refuse_foreign, train_policy
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task, UserError
from treeagent.views.values import ValueTargetConfig, value_rows

SCRATCH = ScratchConfig(vocabulary=300, width=16, heads=2, layers=1)
TASK = Task("shop-train-0", "Buy a red kettle.")


def tokenizer(text: str) -> PreTrainedTokenizerBase:
    return train_tokenizer([text], SCRATCH)


def checkpoint(tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
    return Checkpoint(random_model(tokenizer, SCRATCH, 0), tokenizer)


def searched(tokenizer: PreTrainedTokenizerBase) -> Tree:
    """A tree of one action, in the tokens of a policy with this tokenizer."""
    chat, messages = ChatFormat(tokenizer), (Message("user", TASK.prompt),)
    root = Node(State(TASK, messages), context_ids=chat.prompt_ids(messages))
    root.edges = [Edge(Action("go", "go", token_ids=chat.encode_action("go")), prior=1.0)]
    return Tree(TASK, 0, root)


def job(config: RunConfig, folder: Path) -> TrainJob:
    return TrainJob(config, folder / "base", "grpo", folder / "trees", ("collect",), folder / "grpo")


def test_trees_of_another_tokenizer_or_template_are_refused(tmp_path: Path) -> None:
    tree = searched(tokenizer("Buy a red kettle. " * 20))
    with pytest.raises(UserError, match=r"writes task shop-train-0 in .*trees in other tokens"):
        refuse_foreign(tree, ChatFormat(tokenizer("nothing of the kind")), job(RunConfig(), tmp_path))
    other = tokenizer("Buy a red kettle. " * 20)
    other.chat_template = str(other.chat_template).replace("<|assistant|>", "<|assistant|> ")
    with pytest.raises(UserError, match="tokenizer or chat template of"):
        refuse_foreign(tree, ChatFormat(other), job(RunConfig(), tmp_path))


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_end_that_a_search_without_a_head_did_not_read_is_a_value_target(end: str) -> None:
    own = tokenizer("Buy a red kettle. " * 20)
    tree, chat = searched(own), ChatFormat(own)
    [edge] = tree.root.edges
    turn = Message("assistant", "go", edge.action.token_ids)
    state = State(TASK, (*tree.root.state.messages, turn, Message("user", "It is late.")))
    edge.visits, edge.child = 1, Node(state, terminated=end == "terminated", truncated=end == "truncated")
    for each in (tree, Tree(TASK, 0, Node(State(TASK, ()), truncated=True))):  # the second was not reset
        read_ends(each, chat)
    [row] = value_rows(tree, ValueTargetConfig())
    assert row.token_ids == chat.prompt_ids(state.messages)
    assert row.value_positions == (len(tree.root.context_ids) - 1, len(row.token_ids) - 1)
    assert row.value_targets == (0.0, 0.0)


SMALL = [
    *("training.save_every=1", "update.rft.max_steps=3", "update.rft.batch_size=2"),
    *("update.validation_tasks=1", "environment.max_steps=1", "policy.max_new_tokens=2"),
]
"""Settings of a short update."""


def solved_trees(own: Checkpoint, config: RunConfig) -> list[Tree]:
    """Trees of two tasks, each solved by one action."""
    chat, trees = make_chat(own, config), list[Tree]()
    for number in range(2):
        task = Task(f"shop-train-{number}", f"Buy {number} kettles.")
        messages = (Message("user", task.prompt),)
        ids = chat.encode_action("go")
        end = State(task, (*messages, Message("assistant", "go", ids), Message("user", "done")))
        root = Node(State(task, messages), context_ids=chat.prompt_ids(messages))
        action = Action("go", "go", token_ids=ids, logprobs=(-1.0,) * len(ids))
        root.edges = [Edge(action, 1.0, 1, 1.0, 1.0, Node(end, terminated=True))]
        trees.append(Tree(task, 0, root))
    return trees


def test_an_interrupted_update_resumes_with_equal_weights(tmp_path: Path) -> None:
    config = load_config(CONFIG, SMALL)
    own = checkpoint(tokenizer("Buy a red kettle. " * 20))
    save_checkpoint(own, tmp_path / "base")
    trees = solved_trees(own, config)
    write_trees(tmp_path, "collect", 0, trees)

    def train(out: str, interrupt_at: int = 0) -> dict[str, Any]:
        def emit(event: Event) -> None:
            if interrupt_at and event.done == interrupt_at:
                raise KeyboardInterrupt

        train_policy(TrainJob(config, tmp_path / "base", "rft", tmp_path, ("collect",), tmp_path / out), emit)
        return load_file(tmp_path / out / "model.safetensors")

    with pytest.raises(KeyboardInterrupt):
        train("cut", interrupt_at=2)
    weights, whole = train("cut"), train("whole")
    assert all(torch.equal(weights[name], whole[name]) for name in whole)


def test_trees_that_no_head_can_be_fitted_on_are_refused_before_the_policy_is_trained(tmp_path: Path) -> None:
    config, told = load_config(CONFIG, [*SMALL, "update.imitation.min_return=-1"]), list[Event]()
    own = checkpoint(tokenizer("Buy a red kettle. " * 20))
    save_checkpoint(own, tmp_path / "base")
    trees = solved_trees(own, config)
    trees[1].root.edges[0].reward = trees[1].root.edges[0].value_sum = -1.0
    write_trees(tmp_path, "collect", 0, trees)
    job = TrainJob(config, tmp_path / "base", "rft", tmp_path, ("collect",), tmp_path / "out")
    with pytest.raises(UserError, match=r"value target -1 lies outside .* set environment.returns"):
        train_policy(job, told.append)
    assert not told and not (tmp_path / "out").exists()


def test_dpo_also_holds_up_the_good_path_of_a_tree(tmp_path: Path) -> None:
    config = load_config(CONFIG, ["update.pairs.rule=all"])
    own = checkpoint(tokenizer("Buy a red kettle. " * 20))
    tree, chat = solved_trees(own, config)[0], make_chat(own, config)
    for call in ("stop", "wait"):
        action = Action(
            call, call, token_ids=chat.encode_action(call), logprobs=(-1.0,) * len(chat.encode_action(call))
        )
        tree.root.edges.append(Edge(action, 1.0, 1, 0.0, 0.0, Node(tree.root.state, terminated=True)))
    write_trees(tmp_path, "collect", 0, [tree])
    rows = policy_training_rows(TrainJob(config, tmp_path, "dpo", tmp_path, ("collect",), tmp_path / "out"), chat)
    assert [row.margin for row in rows] == [1.0, 1.0, 0.0]
