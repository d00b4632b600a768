"""A small language model from scratch: a byte-pair tokenizer trained on texts, and a Qwen3 with random weights."""

from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from treeagent.generators.config import ScratchConfig

STOP, PAD = "<|end|>", "<|pad|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
PIECES = r"\s?[A-Za-z]+\d*[:\[]?|\s?\d+|\s?[^\w\s]+|\s"
"""Byte pairs are merged only within one of these pieces: a word or identifier with an opening mark (``Thought:``,
``click[``), a number, or a run of punctuation."""
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], config: ScratchConfig) -> PreTrainedTokenizerFast:
    """Train a byte-level byte-pair tokenizer on texts, and give it a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=[PAD, STOP, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=PAD,
        additional_special_tokens=list(ROLES),
        model_max_length=config.context,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def random_model(tokenizer: PreTrainedTokenizerBase, config: ScratchConfig, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 model with random weights that depend only on ``seed``."""
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.width,
        intermediate_size=config.width * 8 // 3 // 16 * 16,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        head_dim=config.width // config.heads,
        max_position_embeddings=config.context,
        tie_word_embeddings=True,
        # Gives activations of unit variance from the first step; a narrow model learns half as fast with the usual 0.02
        initializer_range=config.width**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(shape)
