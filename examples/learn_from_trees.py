"""Learn from stored trees with plain TRL: train a model with DPOTrainer on preference pairs from a run's trees.

    python examples/learn_from_trees.py RUN OUT [MODEL]

RUN is the folder of a run with searched trees, OUT the folder for the trained model. MODEL is the folder or hub name of
a model. It should be the policy that searched the trees, such as RUN/checkpoints/base, because the pairs hold its token
ids. Without MODEL, a tiny random model is made, which shows that the script works.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import read_trees
from treeagent.views import PairConfig, preference_pairs


class PairTrainer(DPOTrainer):
    """TRL's DPOTrainer on the token ids that the policy sampled. Tokenising the text again could give other ids."""

    def _prepare_dataset(self, dataset: Dataset, *args: Any) -> Dataset:
        return dataset


def tiny_model(vocabulary: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    tokenizer = Tokenizer(WordLevel({"<pad>": 0}, unk_token="<pad>"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<pad>")
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, pad_token_id=0, **sizes)), fast


def main(run: str, out: str, name: str = "", *, max_steps: int = 100) -> None:
    source = Run.open(Path(run))
    trees = list(read_trees(source.trees, source.collections()))
    pairs = [pair for tree in trees for pair in preference_pairs(tree, PairConfig(min_margin=0.1))]
    print(f"{len(trees)} trees give {len(pairs)} preference pairs")
    if not pairs:
        raise SystemExit("without pairs there is nothing to learn: collect more trees, or lower min_margin")
    rows = [
        {
            "prompt_ids": list(pair.context_ids),
            "chosen_ids": list(pair.chosen.token_ids),
            "rejected_ids": list(pair.rejected.token_ids),
        }
        for pair in pairs
    ]
    if name:
        model: Any = AutoModelForCausalLM.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
    else:
        model, tokenizer = tiny_model(1 + max(token for row in rows for ids in row.values() for token in ids))
    settings = DPOConfig(
        out,
        max_steps=max_steps,
        per_device_train_batch_size=8,
        learning_rate=1e-4,
        bf16=torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
    )
    trainer = PairTrainer(
        model,
        ref_model=copy.deepcopy(model),
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main(*sys.argv[1:])
