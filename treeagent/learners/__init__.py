"""Training on the rows of trees: supervised fine-tuning, policy distillation, DPO, GRPO, value heads.

Each learner takes the rows of one view of ``treeagent.views`` and changes a model in place:

    train_sft(model, tokenizer, imitation rows, SFTConfig())
    train_distil(model, tokenizer, policy rows, DistilConfig())
    train_dpo(model, tokenizer, preference pairs, DPOConfig())
    train_grpo(model, tokenizer, advantage rows, GRPOConfig())
    fit_value(model, head, value rows, ValueConfig())

Rows are a sequence of a view's dataclasses, or a ``datasets.Dataset`` with their fields as columns.
``pack_prefixes(model)`` makes any trainer compute the common prefixes of the rows of a batch once.

Importing this package does not load torch or TRL; a learner loads them when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from treeagent.generators.config import LoraConfig
from treeagent.learners.config import DistilConfig, DPOConfig, GRPOConfig, SFTConfig, ValueConfig

if TYPE_CHECKING:
    from treeagent.learners.common import Hooks, TrainResult
    from treeagent.learners.distil import train_distil
    from treeagent.learners.dpo import train_dpo
    from treeagent.learners.grpo import train_grpo
    from treeagent.learners.lora import with_adapter
    from treeagent.learners.packed import pack_prefixes
    from treeagent.learners.sft import train_sft
    from treeagent.learners.value import ValueResult, fit_value

__all__ = [
    "DPOConfig",
    "DistilConfig",
    "GRPOConfig",
    "Hooks",
    "LoraConfig",
    "SFTConfig",
    "TrainResult",
    "ValueConfig",
    "ValueResult",
    "fit_value",
    "pack_prefixes",
    "train_distil",
    "train_dpo",
    "train_grpo",
    "train_sft",
    "with_adapter",
]

_MODULES = {
    "common": ("Hooks", "TrainResult"),
    "distil": ("train_distil",),
    "dpo": ("train_dpo",),
    "grpo": ("train_grpo",),
    "lora": ("with_adapter",),
    "packed": ("pack_prefixes",),
    "sft": ("train_sft",),
    "value": ("ValueResult", "fit_value"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
