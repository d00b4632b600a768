"""A policy, its tokenizer and its value head in one folder: a standard Hugging Face checkpoint, with the head in a
subfolder. For a model with an adapter, the folder holds only the adapter, in PEFT's format, and its base's place."""

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import peft
import torch
from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from treeagent.agent.value_head import FOLDER, ValueHead
from treeagent.generators.config import LORA_SCALE, DType, LoraConfig
from treeagent.store import StoreError, regular, replace_folder
from treeagent.types import UserError

_ADAPTER = "adapter_config.json"
"""PEFT's name of the file that only the folder of an adapter has."""
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
"""Values of ``device_map`` with which accelerate chooses the devices of the weights."""


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch off transformers' progress bars, which no argument prevents."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def no_old_names() -> Iterator[None]:
    """Suppress warnings about names that transformers 5.23 deprecates and that PEFT and TRL still use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".(is_)?gradient_checkpointing. is deprecated", FutureWarning)
        yield


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A policy's model, its tokenizer and, if there is one, its value head."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    head: ValueHead | None = None


def save_checkpoint(checkpoint: Checkpoint, folder: Path, weights: dict[str, Tensor] | None = None) -> Path:
    """Write a checkpoint atomically. ``weights`` are those of the model or its adapter by name, if the model in this
    process holds only shards of them."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with refusals_named(folder), no_progress_bars():
        if isinstance(model := checkpoint.model, PeftModel):
            base = str(model.get_base_model().name_or_path)
            if Path(base).is_dir():
                path = Path(base).resolve()
                # A base model next to its adapter is recorded by a relative path, so that both can be moved together.
                base = os.path.join("..", path.name) if path.parent == folder.parent.resolve() else str(path)
            model.active_peft_config.base_model_name_or_path = base
            model.save_pretrained(str(partial), save_embedding_layers=False, state_dict=weights)
            (partial / "README.md").unlink()  # an empty template of a model card
        else:
            model.save_pretrained(partial, state_dict=weights)
        checkpoint.tokenizer.save_pretrained(partial)
        if checkpoint.head is not None:
            checkpoint.head.save(partial)
        replace_folder(partial, folder)
    return folder


@contextmanager
def refusals_named(folder: Path) -> Iterator[None]:
    """Context in which libraries write to ``folder``; what they raise on a full disk becomes a ``StoreError``."""
    try:
        yield
    except StoreError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        torch_wrote = any(part in str(error) for part in ("inline_container", "PytorchStreamWriter", "iostream"))
        if isinstance(error, RuntimeError) and not torch_wrote:  # torch has no class of its own for a failed write
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise StoreError(
            f"cannot write {folder}: {reason}: check its permissions and the free space, then continue with --resume"
        ) from error


def load_checkpoint(
    name: str | Path, dtype: DType = "auto", device_map: str | None = None, *, merged: bool = False
) -> Checkpoint:
    """Load a checkpoint from a folder or a hub name. A ``merged`` adapter samples faster, but cannot be trained."""
    base, adapter = base_and_adapter(name)
    with no_progress_bars(), _refused(base):
        base_model = AutoModelForCausalLM.from_pretrained(
            base, dtype=dtype, device_map=device_map, trust_remote_code=False
        )
        if (stated := base_model.generation_config) is not None:  # transformers would not save all that it loads
            kept = ("bos_token_id", "eos_token_id", "pad_token_id")
            base_model.generation_config = GenerationConfig(**{name: getattr(stated, name) for name in kept})
    with _refused(name):
        model = base_model if adapter is None else _with_saved_adapter(base_model, adapter)
        if merged and isinstance(model, PeftModel):
            model = model.merge_and_unload()
        head = ValueHead.load(Path(name)) if has_head(name) else None
    tokenizer, rows = load_tokenizer(name), len(cast(Tensor, base_model.get_input_embeddings().weight))
    if (tokens := max(tokenizer.get_vocab().values()) + 1) > rows:
        raise UserError(
            f"the tokenizer of {name} has {tokens:,} tokens, but its model has embeddings of {rows:,}: resize the "
            "model to its tokenizer (resize_token_embeddings), or take the tokenizer that it was trained with"
        )
    return Checkpoint(model, tokenizer, head)


def count_weights(name: str | Path) -> tuple[int, torch.dtype]:
    """The number of weights of a checkpoint's base model and their format, by its configuration alone."""
    base, _ = base_and_adapter(name)
    with no_progress_bars(), _refused(base):
        config = AutoConfig.from_pretrained(base, trust_remote_code=False)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.float32)
    return sum(each.numel() for each in empty.parameters()), empty.dtype


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint. Code in the checkpoint never runs."""
    if (folder := Path(name)).is_dir() and not [*folder.glob("*token*"), *folder.glob("*vocab*")]:
        raise UserError(f"{name} has no tokenizer: copy tokenizer.json and tokenizer_config.json of its model into it")
    with _refused(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    return tokenizer


@contextmanager
def _refused(name: str | Path) -> Iterator[None]:
    for path in Path(name).rglob("*"):  # nothing if ``name`` is a hub name
        if not path.is_dir():
            regular(path)
    try:
        yield
    except UserError:  # it already has a message for the user
        raise
    # torch raises AssertionError if there is no GPU; SafetensorError is not a subclass of the others
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
    """The base model of a checkpoint (a folder or a hub name), and the folder of its adapter, if it has one."""
    adapted = (Path(name) / _ADAPTER).is_file()
    return (_base(Path(name)), Path(name)) if adapted else (str(name), None)


def merge(name: Path, out: Path) -> None:
    """Merge the adapter of a checkpoint into its weights, and write the result as a standard checkpoint."""
    if not (name / _ADAPTER).is_file():
        raise UserError(f"{name} holds no adapter ({_ADAPTER}): it is a whole model as it is")
    if out.exists():
        raise UserError(f"{out} exists: choose a new folder for the merged model")
    checkpoint = load_checkpoint(name)
    assert isinstance(checkpoint.model, PeftModel)
    merged = checkpoint.model.merge_and_unload(safe_merge=True)
    save_checkpoint(Checkpoint(merged, checkpoint.tokenizer, checkpoint.head), out)


def _base(folder: Path) -> str:
    """The base model of an adapter: a folder or a hub name."""
    with _refused(folder):
        base = str(json.loads((folder / _ADAPTER).read_text())["base_model_name_or_path"])
    # The folder may be a link to a checkpoint of another run, whose base is in that run.
    path = Path(os.path.normpath(folder.resolve() / base)) if base.startswith("..") else Path(base)
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
    config.inference_mode = False  # training continues the adapter
    config.base_model_name_or_path = None  # PEFT would warn that it differs from the model's name
    saved = load_file(folder / "adapter_model.safetensors")
    with no_old_names():
        adapted = get_peft_model(model, config)
    loaded: Any = set_peft_model_state_dict(adapted, saved)
    if loaded.unexpected_keys:
        raise UserError(f"the adapter in {folder} was made for a model of other layers: restore that model")
    return cast(PeftModel, adapted)


def with_adapter(
    model: PreTrainedModel | PeftModel, config: LoraConfig | None, seed: int
) -> PreTrainedModel | PeftModel:
    """The model with an adapter (LoRA), whose weights alone are trained; without a ``config``, the model itself. One
    that has an adapter keeps it, if it fits ``config``."""
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
        return cast(PeftModel, get_peft_model(model, settings))


def require_device(key: str, device: str | None) -> None:
    """Check that torch can use the device, if one is named."""
    if device is None or device in _SPREAD:
        return
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(
            f"{key} is {device!r}, which torch cannot use here: {reason}: set it to a device that this machine has, "
            f"such as 'cpu', or to one of {', '.join(_SPREAD)}"
        ) from error
