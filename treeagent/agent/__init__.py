"""The agent: a language model as policy and value function, and the checkpoint in which they are stored."""

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, load_tokenizer, merge, save_checkpoint
from treeagent.agent.policy import HeadValue, LLMPolicy
from treeagent.agent.think_act import SplitDynamics, SplitPolicy
from treeagent.agent.value_head import ValueHead

__all__ = [
    "Checkpoint",
    "HeadValue",
    "LLMPolicy",
    "SplitDynamics",
    "SplitPolicy",
    "ValueHead",
    "load_checkpoint",
    "load_tokenizer",
    "merge",
    "save_checkpoint",
]
