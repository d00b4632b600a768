"""``treeagent gguf``: import a model from a GGUF file (llama.cpp's format) as a standard Hugging Face checkpoint."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from treeagent.agent.checkpoint import no_progress_bars
from treeagent.store import replace_folder
from treeagent.types import UserError

app = typer.Typer()


@app.command()
def gguf(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model in llama.cpp's format (.gguf).")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.", show_default=False)],
) -> None:
    """Import a GGUF file as a standard Hugging Face checkpoint.

    Example: treeagent gguf SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    """
    if out.exists():
        raise UserError(f"{out} exists: choose a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    typer.echo(f"checkpoint in {import_gguf(file, out)}")


def import_gguf(file: Path, out: Path) -> Path:
    """Write the model, its tokenizer and its chat template to the folder ``out``, atomically. The weights become
    float32, in which quantised ones are exact."""
    if find_spec("gguf") is None:
        raise UserError("gguf is missing: pip install 'treeagent[gguf]'")
    with no_progress_bars():
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        except Exception as error:  # a damaged file may raise any exception in the code that reads it
            cause = " ".join((str(error) or type(error).__name__).split()).rstrip(".")
            raise UserError(
                f"{file} cannot be read ({cause}): give a GGUF file, download it again, or take one of another "
                "quantisation, such as Q8_0"
            ) from error
        # transformers does not save a model that was quantised, so its weights move to a plain model.
        config: Any = model.config
        del config.quantization_config
        config.dtype = torch.float32
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
