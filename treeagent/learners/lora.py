"""Low-rank adapters (LoRA). They are trained instead of a model's own weights, and are small enough to keep one for
every round."""

import peft
import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from treeagent.agent.checkpoint import no_old_names
from treeagent.generators.config import LORA_SCALE, LoraConfig
from treeagent.learners.packed import Model
from treeagent.types import UserError


def with_adapter(model: Model, config: LoraConfig | None, seed: int) -> Model:
    """The model with an adapter, whose weights alone are trained; without a ``config``, the model itself. A model that
    has an adapter keeps it, if it fits ``config``."""
    if config is None:
        return model
    name, targets = type(model).__name__, config.targets
    if isinstance(model, PeftModel):
        own = model.active_peft_config
        if own.r != config.rank or (targets != "all-linear" and set(targets) != own.target_modules):
            raise UserError(
                f"the checkpoint's adapter has rank {own.r} on {sorted(own.target_modules)}, but lora asks for rank "
                f"{config.rank} on {targets}: restore these settings, or make it part of its base (treeagent export) "
                "to begin another"
            )
        return model
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=LORA_SCALE * config.rank,  # type: ignore[arg-type]  # PEFT takes any number
        target_modules=targets if isinstance(targets, str) else list(targets),
    )
    with torch.random.fork_rng(devices=[]), no_old_names():
        torch.manual_seed(seed)
        try:
            adapted = peft.get_peft_model(model, settings)
        except ValueError as error:  # no layer has this name, or LoRA cannot adapt such a layer
            raise UserError(f"lora.targets {targets} do not fit {name}: {error}") from error
    embedding, head = adapted.get_input_embeddings(), adapted.get_output_embeddings()
    shared = isinstance(embedding, BaseTunerLayer) and head is not None and head.weight is embedding.weight
    if shared or isinstance(head, BaseTunerLayer):
        part = "an input embedding that is also " if shared else ""
        raise UserError(f"lora.targets {targets} name {part}the language-model head of {name}: leave it out")
    # The last part of a name is the same in every layer, so an adapter of any depth can be compared with the settings.
    adapter_config = adapted.active_peft_config
    adapter_config.target_modules = {target.rpartition(".")[2] for target in adapter_config.target_modules}
    return adapted
