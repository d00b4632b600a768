"""Sharding of weights among the processes of an update (FSDP2, ``fully_shard``). Each process holds a shard of every
weight, and gathers the weights of a layer only while it computes that layer.

Accelerate shards the weights when a training begins. From then on, all processes must take part in every forward pass
and in everything else that needs whole weights.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import parse_flag_from_env
from peft import PeftModel
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

T = TypeVar("T")


def sharing() -> bool:
    """Whether this process was started to hold shards of the weights."""
    return bool(parse_flag_from_env("ACCELERATE_USE_FSDP"))


def allow_cpu(state: PartialState) -> None:
    """Make accelerate shard weights among processes on a CPU, too, as it does among processes with GPUs."""
    if sharing() and state.distributed_type is DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU


def whole_weights(model: PreTrainedModel | PeftModel) -> dict[str, Tensor] | None:
    """The weights that a checkpoint of ``model`` holds: whole in the first process, which saves them, and empty in the
    others. None if weights are not sharded. All processes must call this."""
    if not isinstance(model, FSDPModule):
        return None
    adapter_alone = isinstance(model, PeftModel)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=adapter_alone)
    weights: dict[str, Any] = get_model_state_dict(model, options=options)
    for tied in () if adapter_alone else model.all_tied_weights_keys:
        weights.pop(tied, None)  # sharding has made it a separate copy, which nothing would read
    return weights


def run_on_leader(model: nn.Module, work: Callable[[], T], *, leads: bool) -> T | None:
    """Run ``work`` in the leading process and return its result; None in the others.

    The other processes take part in its forward passes, each with a single dummy token: the weights that are gathered,
    and their order, depend only on the layers.
    """
    if not isinstance(model, FSDPModule):
        return work() if leads else None
    device = next(model.parameters()).device

    def broadcast_flag(value: bool) -> bool:
        flag = torch.tensor(value, device=device)
        distributed.broadcast(flag, 0)
        return bool(flag)

    done: T | None = None
    if leads:
        # This hook runs before the one that gathers weights.
        hook = model.register_forward_pre_hook(lambda *forward: broadcast_flag(True) and None, prepend=True)
        try:
            done = work()
        finally:
            hook.remove()
        # Not if ``work`` failed: the others may then wait inside a layer, and end with this process.
        broadcast_flag(False)
    else:
        with torch.no_grad():
            while broadcast_flag(False):
                model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # the last layers stay gathered for a backward pass, but none follows
    return done
