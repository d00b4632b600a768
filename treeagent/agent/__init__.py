"""The agent: a language model as policy, value function and critic, and the checkpoint that holds them.

Names load on first use, since most of them import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, load_tokenizer, merge, save_checkpoint
    from treeagent.agent.critic import LMCritic
    from treeagent.agent.policy import ChatPolicy, HeadValue, LLMPolicy
    from treeagent.agent.think_act import SplitDynamics, SplitPolicy
    from treeagent.agent.value_head import ValueHead

__all__ = [
    "ChatPolicy",
    "Checkpoint",
    "HeadValue",
    "LLMPolicy",
    "LMCritic",
    "SplitDynamics",
    "SplitPolicy",
    "ValueHead",
    "load_checkpoint",
    "load_tokenizer",
    "merge",
    "save_checkpoint",
]

_MODULES = {
    "checkpoint": ("Checkpoint", "load_checkpoint", "load_tokenizer", "merge", "save_checkpoint"),
    "critic": ("LMCritic",),
    "policy": ("ChatPolicy", "HeadValue", "LLMPolicy"),
    "think_act": ("SplitDynamics", "SplitPolicy"),
    "value_head": ("ValueHead",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
