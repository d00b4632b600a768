"""Weights that are shared out among the processes of an update (FSDP2, ``fully_shard``). Each process holds a part of
every weight and gathers the weights of a layer only while it computes the layer.

Accelerate shares the weights out when a training begins. From then on all processes must take part in a forward pass
and in everything else that needs whole weights.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import parse_flag_from_env
from peft import PeftModel
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

T = TypeVar("T")


def sharing() -> bool:
    """Whether this process was started to share weights with others."""
    return bool(parse_flag_from_env("ACCELERATE_USE_FSDP"))


def trains_on_cpu(model: PreTrainedModel | PeftModel) -> bool:
    """Whether training runs on a CPU: where the model is, or where the processes are if weights are shared out."""
    return (PartialState().device if sharing() else model.device).type == "cpu"


def allow_cpu(state: PartialState) -> None:
    """Let accelerate share weights out among processes of a CPU, as it does among processes that have devices."""
    if sharing() and state.distributed_type is DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which this process may hold a part; all processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shared_as(tensor: Tensor, other: Tensor) -> Tensor:
    """This process's part of a whole tensor, cut as ``other`` is."""
    if not isinstance(other, DTensor) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def gathered(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole weights for the first process to save, empty in the others; all processes must call this."""
    leads, kept = PartialState().is_main_process, dict[str, Tensor]()
    for name, weight in weights.items():  # one at a time: no GPU holds them all
        gathered_weight = whole(weight)
        if leads:
            kept[name] = gathered_weight.cpu()
    return kept


def whole_weights(model: PreTrainedModel | PeftModel) -> dict[str, Tensor] | None:
    """What a checkpoint of ``model`` holds, for the first process to save, empty in the others; all processes must call
    this. None where weights are not shared out."""
    if not isinstance(model, FSDPModule):
        return None
    adapter_alone = isinstance(model, PeftModel)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=adapter_alone)
    weights: dict[str, Any] = get_model_state_dict(model, options=options)
    for tied in () if adapter_alone else model.all_tied_weights_keys:
        weights.pop(tied, None)  # by now a copy, which nothing would read
    return weights


def led(model: nn.Module, work: Callable[[], T], *, leads: bool) -> T | None:
    """What ``work`` returns in the process that leads; None in the others.

    The others take part in its forward passes, each on a token of its own: which weights are gathered, and in which
    order, depends on the layers alone.
    """
    if not isinstance(model, FSDPModule):
        return work() if leads else None
    device = next(model.parameters()).device

    def told(another: bool) -> bool:
        flag = torch.tensor(another, device=device)
        distributed.broadcast(flag, 0)
        return bool(flag)

    done: T | None = None
    if leads:
        # It runs before the hook that gathers weights.
        hook = model.register_forward_pre_hook(lambda *forward: told(True) and None, prepend=True)
        try:
            done = work()
        finally:
            hook.remove()
        told(False)  # not if ``work`` failed: the others may be waiting within a layer, and end with this process
    else:
        with torch.no_grad():
            while told(False):
                model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # the last layers stay whole for a backward pass, which does not come
    return done
