"""Train a plain TRL trainer on tree-shaped rows, with every common prefix computed once.

    python examples/packed_trl.py

The rows are the paths of a small search tree: they share the prompt and the first steps. ``pack_prefixes`` is the only
thing that treeagent adds to ``trl.SFTTrainer``. Losses and gradients are equal, and fewer tokens go through the model.
"""

import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from treeagent.learners.packed import pack_prefixes

VOCABULARY = 500


def tree_paths(depth: int = 5, width: int = 2, prompt: int = 100, step: int = 24) -> list[list[int]]:
    """The token ids of every path of a tree with ``width`` actions of ``step`` tokens at every state."""
    shuffler = random.Random(0)

    def words(count: int) -> list[int]:
        return [shuffler.randrange(3, VOCABULARY) for _ in range(count)]

    paths = [words(prompt)]
    for _ in range(depth):
        paths = [[*path, *words(step)] for path in paths for _ in range(width)]
    return paths


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{number}": number for number in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def train(paths: Sequence[Sequence[int]], packed: bool, steps: int = 2) -> tuple[list[tuple[float, float]], float]:
    """The loss and the norm of the gradient of each step of TRL's own trainer, and the seconds that training took."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=len(paths),
                logging_steps=1,
                max_length=None,
                report_to="none",
                disable_tqdm=True,
                save_strategy="no",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
            ),
            train_dataset=Dataset.from_dict({"input_ids": paths}),
            processing_class=make_tokenizer(),
        )
        start = time.perf_counter()
        with pack_prefixes(model) if packed else nullcontext():
            trainer.train()
        seconds = time.perf_counter() - start
    return [(row["loss"], row["grad_norm"]) for row in trainer.state.log_history if "loss" in row], seconds


def main() -> None:
    paths = tree_paths()
    by_rows, slow = train(paths, packed=False)
    packed, fast = train(paths, packed=True)
    for (loss, norm), (packed_loss, packed_norm) in zip(by_rows, packed, strict=True):
        print(f"loss by rows {loss:.4f}, packed {packed_loss:.4f}; gradient {norm:.4f}, packed {packed_norm:.4f}")
    print(f"{len(paths)} paths: {slow:.1f} s by rows, {fast:.1f} s packed, {slow / fast:.1f} times as fast")


if __name__ == "__main__":
    main()
