"""A policy, its tokenizer and value head as one folder: a stock Hugging Face checkpoint, the head in a subfolder.

Of a model with an adapter the folder holds the adapter alone, in PEFT's format, and the place of its base.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil
import torch
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from treeagent.agent.gguf import stock
from treeagent.agent.value_head import FOLDER, ValueHead
from treeagent.generators.config import DType
from treeagent.generators.quiet import no_old_names, no_progress_bars
from treeagent.store import regular, replace_folder
from treeagent.types import UserError

_ADAPTER = "adapter_config.json"
"""PEFT's name for what tells an adapter's folder from a whole model's."""
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
"""Values of a ``device_map`` that leave it to accelerate where the weights go."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A policy's model, its tokenizer and, if there is one, its value head."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    head: ValueHead | None = None


def save_checkpoint(checkpoint: Checkpoint, folder: Path, weights: dict[str, Tensor] | None = None) -> Path:
    """Write the whole folder under another name, then move it into place: it exists whole or not at all.

    Args:
        weights: the model's, or its adapter's, by name, where this process holds a part of them.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with no_progress_bars():
        if isinstance(checkpoint.model, PeftModel):
            _save_adapter(checkpoint.model, partial, folder, weights)
        else:
            checkpoint.model.save_pretrained(partial, state_dict=weights)
    checkpoint.tokenizer.save_pretrained(partial)
    if checkpoint.head is not None:
        checkpoint.head.save(partial)
    replace_folder(partial, folder)
    return folder


def load_checkpoint(name: str | Path, dtype: DType = "auto", device_map: str | None = None) -> Checkpoint:
    """A local folder, a hub name or a GGUF file; the head is None where the checkpoint has none.

    Raises:
        UserError: there is no model of that name that can be loaded; or its weights are larger than this machine's
            memory; or the checkpoint is an adapter, and its base is not where it was or is of another architecture.
    """
    base, adapter = base_and_adapter(name)
    with no_progress_bars(), _refused(base):
        if device_map in (None, "cpu"):
            _require_memory(base, dtype)
        whole = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, device_map=device_map, trust_remote_code=False)
    with _refused(name):
        model = whole if adapter is None else _with_saved_adapter(whole, adapter)
        head = ValueHead.load(Path(name)) if has_head(name) else None
    return Checkpoint(model, load_tokenizer(name), head)


def _require_memory(base: str, dtype: DType) -> None:
    """Check that the weights fit into this machine's memory, before they are downloaded or read."""
    weights, own = _weights(base)
    number = own if dtype == "auto" else getattr(torch, dtype)
    needed, memory = weights * number.itemsize, psutil.virtual_memory().total
    if needed > memory:
        form = str(number).removeprefix("torch.")
        raise UserError(
            f"the weights of {base} take {needed / 2**30:.1f} GiB as {form}, but this machine has "
            f"{memory / 2**30:.1f} GiB of memory: use a smaller model, policy.dtype=bfloat16, a GPU by "
            "policy.device_map=cuda, or a server by policy.generator=remote"
        )


def count_weights(name: str | Path) -> tuple[int, torch.dtype]:
    """How many weights a checkpoint has, without its adapter, and their number format. Reads its configuration alone.

    Raises:
        UserError: as ``load_checkpoint``.
    """
    base, _ = base_and_adapter(name)
    with no_progress_bars(), _refused(base):
        return _weights(base)


def _weights(base: str) -> tuple[int, torch.dtype]:
    config = AutoConfig.from_pretrained(base, trust_remote_code=False)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.float32)
    return sum(each.numel() for each in empty.parameters()), empty.dtype


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """A checkpoint's, without its weights. Its own code never runs; left unset, transformers would ask at the
    terminal whether it may."""
    name = stock(name)
    with _refused(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    return tokenizer


@contextmanager
def _refused(name: str | Path) -> Iterator[None]:
    for path in Path(name).rglob("*"):  # none where it is a hub name
        if not path.is_dir():
            regular(path)
    try:
        yield
    except UserError:  # it has its own sentence
        raise
    # torch asserts that there is a GPU; SafetensorError is none of the others
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AssertionError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UserError(
            f"{name} cannot be loaded: {reason}: give the folder of a checkpoint or a model's name, and a "
            "device_map that this machine has"
        ) from error


def has_head(name: str | Path) -> bool:
    """Whether a checkpoint has a value head."""
    return (Path(name) / FOLDER).is_dir()


def base_and_adapter(name: str | Path) -> tuple[str, Path | None]:
    """The whole model that a checkpoint loads, a folder or hub name, and the adapter's folder where there is one."""
    name = stock(name)
    adapted = (Path(name) / _ADAPTER).is_file()
    return (_base(Path(name)), Path(name)) if adapted else (str(name), None)


def merge(name: Path, out: Path) -> None:
    """Write a checkpoint whose adapter has become part of the weights: a stock model, its head beside it.

    Raises:
        UserError: the checkpoint has no adapter, or ``out`` exists.
    """
    if not (name / _ADAPTER).is_file():
        raise UserError(f"{name} holds no adapter ({_ADAPTER}): it is a whole model as it is")
    if out.exists():
        raise UserError(f"{out} exists: choose a new folder for the merged model")
    checkpoint = load_checkpoint(name)
    assert isinstance(checkpoint.model, PeftModel)
    merged = checkpoint.model.merge_and_unload(safe_merge=True)
    save_checkpoint(Checkpoint(merged, checkpoint.tokenizer, checkpoint.head), out)


def _save_adapter(model: PeftModel, partial: Path, folder: Path, weights: dict[str, Tensor] | None) -> None:
    """``partial`` is to become ``folder``."""
    base = str(model.get_base_model().name_or_path)
    if Path(base).is_dir():
        path = Path(base).resolve()
        # A base beside its adapter moves with it.
        base = os.path.join("..", path.name) if path.parent == folder.parent.resolve() else str(path)
    model.active_peft_config.base_model_name_or_path = base
    # The vocabulary is never changed.
    model.save_pretrained(str(partial), save_embedding_layers=False, state_dict=weights)
    (partial / "README.md").unlink()  # a model card without a word on the model


def _base(folder: Path) -> str:
    """The base of an adapter: a folder or a hub name."""
    with _refused(folder):
        base = str(json.loads((folder / _ADAPTER).read_text())["base_model_name_or_path"])
    path = Path(os.path.normpath(folder / base)) if base.startswith("..") else Path(base)
    if path.is_dir():
        return str(path)
    if base.startswith("..") or path.is_absolute():
        raise UserError(
            f"the adapter in {folder} belongs to the model in {path}, where there is none: put it back, or write its "
            f"new place into {folder / _ADAPTER} (base_model_name_or_path)"
        )
    return base


def _with_saved_adapter(model: PreTrainedModel, folder: Path) -> PeftModel:
    config = PeftConfig.from_pretrained(str(folder))
    config.inference_mode = False  # it is to be trained on
    config.base_model_name_or_path = None  # PEFT would warn that it is another than the model's
    saved = load_file(folder / "adapter_model.safetensors")
    with no_old_names():
        adapted = get_peft_model(model, config)
    wanted = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    if {key: each.shape for key, each in saved.items()} != {key: each.shape for key, each in wanted.items()}:
        raise UserError(
            f"the adapter in {folder} does not fit the {type(model).__name__} in {model.name_or_path}: it was made "
            "for a model of other layers or sizes; restore that one"
        )
    set_peft_model_state_dict(adapted, saved)
    return cast(PeftModel, adapted)


def require_device(key: str, device: str | None) -> None:
    """Check that torch can use the device, if one is named.

    Raises:
        UserError: it cannot; the sentence names the setting ``key``.
    """
    if device is None or device in _SPREAD:
        return
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(
            f"{key} is {device!r}, which torch cannot use here: {reason}: set it to 'cpu', to a device that "
            f"this machine has, or to one of {', '.join(_SPREAD)}"
        ) from error
