"""A policy, its tokenizer and value head as one folder: a stock Hugging Face checkpoint, the head in a subfolder."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from treeagent.generators.quiet import no_progress_bars
from treeagent.value_head import ValueHead


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What acts and what learns."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    head: ValueHead | None = None


def save_checkpoint(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write the whole folder under another name, then move it into place: it exists whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with no_progress_bars():
        checkpoint.model.save_pretrained(partial)
    checkpoint.tokenizer.save_pretrained(partial)
    if checkpoint.head is not None:
        checkpoint.head.save(partial)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    return folder


def load_checkpoint(name: str | Path) -> Checkpoint:
    """A local folder or a hub name; the head is None where the checkpoint has none."""
    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    head = ValueHead.load(Path(name), model.config.hidden_size) if (Path(name) / "value_head").is_dir() else None
    return Checkpoint(model, tokenizer, head)
