"""Import a model from a GGUF file (llama.cpp's format) as a standard Hugging Face checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers import __version__ as version
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

from treeagent.agent.checkpoint import no_progress_bars
from treeagent.generators.config import DType
from treeagent.store import regular, replace_folder
from treeagent.types import UserError

_BYTES = 4
"""Bytes of a weight in memory; weights are read as float32."""


def import_gguf(file: Path, out: Path, dtype: DType = "float32") -> Path:
    """Write the model, its tokenizer and its chat template to the folder ``out``, atomically.

    Args:
        dtype: number format of the written weights. "auto" means float32, in which quantised weights are exact.
    """
    _require_readable(file)
    with no_progress_bars():
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        except Exception as error:  # a damaged file may raise any exception in the code that reads it
            raise _refused(file, str(error) or type(error).__name__) from error
        # transformers does not save a model that was quantised, so its weights move to a plain model.
        config: Any = model.config
        del config.quantization_config
        config.dtype = torch.float32 if dtype == "auto" else getattr(torch, dtype)
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(config)
        tokenizer = _without_others(tokenizer, int(config.get_text_config().vocab_size))
        weights = {name: weight.to(config.dtype) for name, weight in model.state_dict().items()}
        plain.load_state_dict(weights, assign=True)
        partial = out.with_name(f".{out.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        plain.save_pretrained(partial, state_dict=weights)
        tokenizer.save_pretrained(partial)
    replace_folder(partial, out)
    return out


def _without_others(tokenizer: PreTrainedTokenizerBase, rows: int) -> PreTrainedTokenizerBase:
    """The tokenizer without tokens beyond the model's ``rows``, such as an unknown token that transformers adds."""
    if len(tokenizer) <= rows:
        return tokenizer
    spec = json.loads(cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer.to_str())
    spec["added_tokens"] = [each for each in spec["added_tokens"] if each["id"] < rows]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        model_max_length=tokenizer.model_max_length,
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
    )
    made.chat_template = tokenizer.chat_template
    return made


def _require_readable(file: Path) -> None:
    """Check a file by its header. Raises UserError as ``import_gguf``."""
    try:
        with regular(file).open("rb") as opened:
            magic = opened.read(4)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): give the path of a GGUF file") from error
    if magic != b"GGUF":
        raise UserError(f"{file} is no GGUF file: its first bytes are {magic!r}, not b'GGUF'; give another file")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UserError(f"gguf is missing ({error}): pip install 'treeagent[gguf]'") from error
    try:
        reader = GGUFReader(file)
        architecture = str(reader.fields["general.architecture"].contents())
        weights = sum(int(tensor.n_elements) for tensor in reader.tensors)
    except Exception as error:  # as in ``import_gguf``: a damaged file may raise any exception
        raise _refused(file, f"{type(error).__name__} {error}") from error
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        raise UserError(
            f"{file} holds a model of architecture {architecture!r}, which transformers {version} does not read from "
            "GGUF files: give the folder or the hub name of the model itself"
        )
    memory = psutil.virtual_memory().total
    if weights * _BYTES > memory:
        raise UserError(
            f"the {weights:,} weights of {file} take {weights * _BYTES / 2**30:.1f} GiB as float32, but this machine "
            f"has {memory / 2**30:.1f} GiB of memory: use a smaller model, or give the model's hub name and "
            "policy.dtype=bfloat16"
        )


def _refused(file: Path, reason: str) -> UserError:
    cause = " ".join(reason.split()).rstrip(".")
    return UserError(
        f"{file} cannot be read ({cause}): download it again, or take a file of another quantisation, such as Q8_0"
    )
