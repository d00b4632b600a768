"""Packing of prefixes in TRL's own trainers."""

import runpy
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tiny import make_model, make_tokenizer, weights
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from treeagent.learners.packed import pack_prefixes

# TRL 1.16 still reads the old name of the setting, which transformers 5.23 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.(is_)?gradient_checkpointing. is deprecated:FutureWarning")


def test_trls_own_supervised_trainer_has_the_same_losses_and_gradients_packed() -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "packed_trl.py"))
    paths = example["tree_paths"](depth=3, prompt=20, step=6)
    by_rows, packed = (torch.tensor(example["train"](paths, packed)[0]) for packed in (False, True))
    assert torch.allclose(packed, by_rows, rtol=0, atol=2e-4)  # losses and gradient norms; TRL rounds what it logs


def test_trls_own_grpo_trainer_generates_and_learns_the_same_packed(tmp_path: Path) -> None:
    """Prompts are padded on the left, completions on the right; generation is left alone."""

    def lengths(completions: list[str], **_: object) -> list[float | None]:
        return [float(len(text)) for text in completions]

    def trained(packed: bool) -> tuple[Tensor, int]:
        torch.manual_seed(0)
        model, forwarded = make_model(), list[int]()
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lengths,
            args=GRPOConfig(
                output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=8, num_generations=4,
                max_completion_length=4, learning_rate=1e-2, report_to="none", disable_tqdm=True, save_strategy="no",
                use_cpu=True, bf16=False, gradient_checkpointing=False, beta=0.0,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["w5 w6 w7 w8 w9 w10 w11 w12 w13", "w20 w21 w22"] * 4}),
            processing_class=make_tokenizer(),
        )  # fmt: skip
        model.model.layers[0].register_forward_pre_hook(
            lambda layer, states: forwarded.append(states[0].shape[:2].numel()) if torch.is_grad_enabled() else None
        )
        with pack_prefixes(model) if packed else nullcontext():
            trainer.train()
        return weights(model), sum(forwarded)

    (one, by_rows), (other, packed) = trained(False), trained(True)
    assert torch.allclose(one, other, rtol=0, atol=1e-5) and not torch.equal(one, weights(make_model()))
    assert packed < by_rows
