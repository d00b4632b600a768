"""An update that ends while a search is growing its trees, and whose policy proposed which candidates."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from toy_doors import Doors

from treeagent.envs.base import StepResult
from treeagent.generators.chat import ChatFormat
from treeagent.learners.common import Model
from treeagent.search.node import Tree
from treeagent.store import write_atomic
from treeagent.types import ToolCall

SETTINGS = (
    f"environment.name={__name__}:Midway",
    "environment.max_steps=8",
    "policy.actions=score",
    "policy.max_new_tokens=4",
    "search.limits={simulations=12}",
    "adapt.lag=1",
    "adapt.refresh=true",
)


class Midway(Doors):
    """Doors with a list of all actions, during whose first step an update ends. Set ``newest`` and ``opened`` first."""

    newest: ClassVar[Path]
    opened: ClassVar[int] = 0

    def legal_actions(self) -> list[str]:
        return ["l", "r"]

    def step(self, action: str | ToolCall) -> StepResult:
        Midway.opened += 1
        if Midway.opened == 1:
            write_atomic(self.newest, b"./checkpoints/new")
        return super().step(action)


def proposers(tree: Tree, chat: ChatFormat, models: Sequence[Model], tolerance: float) -> list[list[bool]]:
    """For every candidate of a tree: whether each model gives it the log-probabilities that are stored with it."""
    found = list[list[bool]]()
    for node in tree.nodes():
        prompt = chat.prompt_ids(node.state.messages)
        for action in (edge.action for edge in node.edges):
            ids, matches = torch.tensor(action.token_ids), list[bool]()
            for model in models:
                with torch.no_grad():
                    logits = model(torch.tensor([[*prompt, *action.token_ids]])).logits[0, len(prompt) - 1 : -1]
                logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
                matches.append(bool((logprobs - torch.tensor(action.logprobs)).abs().max() < tolerance))
            found.append(matches)
    return found
