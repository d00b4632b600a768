"""Decodes single tokens with the tokenizer of a run."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from treeagent.pipeline.folder import Run
from treeagent.visible import visible


def vocabulary(run: Run, used: Iterable[int]) -> dict[str, str]:
    """The text of each token in ``used``, by its id; empty if no tokenizer is on this machine. A token that holds only
    part of a character is shown as U+FFFD.

    All policies of a run share one tokenizer. It is read from a checkpoint of the run, or else from the model that the
    run starts from.
    """
    file = next(_tokenizers(run), None)
    if file is None:
        return {}
    from tokenizers import Tokenizer  # installed with transformers; needs no torch

    tokenizer = Tokenizer.from_file(str(file))
    return {
        str(token): visible(tokenizer.decode([token], skip_special_tokens=False), lines=True) for token in sorted(used)
    }


def _tokenizers(run: Run) -> Iterator[Path]:
    folders = sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else []
    recorded = [path for purpose in ("start", *run.stages()) if (path := run.recorded_checkpoint(purpose)) is not None]
    model = run.config.policy.model
    for folder in (*folders, *recorded, *([Path(model)] if model else [])):
        if (file := folder / "tokenizer.json").is_file():
            yield file
    if model and "/" in model:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, "tokenizer.json")
        if isinstance(cached, str):
            yield Path(cached)
