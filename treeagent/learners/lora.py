"""Low-rank adapters (LoRA). They are trained instead of a model's own weights, and are small enough to keep one for
every round."""

import peft
import torch
from peft import PeftModel

from treeagent.agent.checkpoint import no_old_names
from treeagent.generators.config import LORA_SCALE, LoraConfig
from treeagent.learners.packed import Model
from treeagent.types import UserError


def with_adapter(model: Model, config: LoraConfig | None, seed: int) -> Model:
    """The model with an adapter, whose weights alone are trained; without a ``config``, the model itself. A model that
    has an adapter keeps it, if it fits ``config``."""
    if config is None:
        return model
    if isinstance(model, PeftModel):
        if (rank := model.active_peft_config.r) != config.rank:
            raise UserError(
                f"the checkpoint's adapter has rank {rank}, but lora asks for {config.rank}: restore this setting, or "
                "make it part of its base (treeagent export) to begin another"
            )
        return model
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=LORA_SCALE * config.rank,  # type: ignore[arg-type]  # PEFT takes any number
        target_modules="all-linear",
    )
    with torch.random.fork_rng(devices=[]), no_old_names():
        torch.manual_seed(seed)
        return peft.get_peft_model(model, settings)
