"""A tiny Llama whose next token depends on all that it has read, and the plain forward pass to compare with."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.generators.base import Failure, Generator, Sample
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer

torch.set_num_threads(1)  # with more threads, tiny tensors spend more time waiting than computing

CONFIG = ScratchConfig(vocabulary=320, layers=2, width=32, heads=2, context=256)
TEXTS = (
    "Thought: look for a red lamp\nAction: search[red lamp]",
    "Action: click[buy now]",
    "page 1 of 3\n[B12] a lamp $9",
)


@lru_cache(maxsize=1)
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, CONFIG)


def sharpened(model: PreTrainedModel) -> PreTrainedModel:
    """Scale weights up until predictions are far from uniform. With small weights a wrong mask would go unnoticed."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(0.35 / parameter.std())
    model.eval()
    return model


def make_model(seed: int = 0) -> PreTrainedModel:
    return sharpened(random_model(tokenizer(), CONFIG, seed))


def head(width: int = CONFIG.width) -> ValueHead:
    torch.manual_seed(0)
    made = ValueHead(width)
    torch.nn.init.normal_(made.output.weight)
    return made


def make_grouped_model() -> PreTrainedModel:
    """Four query heads share one key-value head of an unusual width; embeddings are untied."""
    torch.manual_seed(3)
    shape = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=12,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return sharpened(LlamaForCausalLM(shape))


@lru_cache(maxsize=1)
def shared_model() -> PreTrainedModel:
    """One model for all tests that do not change its weights."""
    return make_model()


@torch.no_grad()
def plain_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], sample: Sequence[int], temperature: float = 1.0
) -> Tensor:
    """log π of each sampled token, from one forward pass over prompt and sample."""
    ids = torch.tensor([[*prompt, *sample]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    if temperature > 0:
        logits = logits / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(sample)[:, None]).squeeze(1)


@torch.no_grad()
def plain_hidden(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
    """The model's own hidden states of the middle and the last layer at the last token: (2 · width)."""
    output = model.model(input_ids=torch.tensor([list(prompt)]), output_hidden_states=True)
    middle = output.hidden_states[model.config.num_hidden_layers // 2]
    return torch.cat([middle[0, -1], output.last_hidden_state[0, -1]])


def next_logprobs(generator: Generator, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> Tensor:
    """Log-probability of each of ``token_ids`` as the next token of each prompt: [prompts, tokens]."""
    rows = list[list[float]]()
    for samples in generator.score(prompts, [[(token,) for token in token_ids]] * len(prompts)):
        assert not isinstance(samples, Failure)
        rows.append([sample.logprobs[0] for sample in samples])
    return torch.tensor(rows)


def make_read(head: LogprobHead, generator: Generator, tokens: range) -> None:
    """Make a new head choose its tokens, and standardise them, by what follows single tokens."""
    logprobs = next_logprobs(generator, [(token,) for token in tokens], range(len(tokenizer())))
    head.choose(logprobs)
    head.standardise(logprobs[:, list(head.token_ids)])


class FirstLetter(LocalGenerator):
    """Answers a critic: prefers what is listed first, and records the prompts of the questions."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.asked: list[tuple[int, ...]] = []

    def score(
        self,
        prompts: Sequence[tuple[int, ...]],
        candidates: Sequence[Sequence[tuple[int, ...]]],
        temperature: float = 1.0,
        trees: Sequence[str] = (),
    ) -> list[list[Sample]]:
        self.asked += [prompt for prompt, letters in zip(prompts, candidates, strict=True) if letters]
        return [[Sample(ids, (-float(place),)) for place, ids in enumerate(each)] for each in candidates]

    def refusal(self, prompt: tuple[int, ...]) -> str:
        return ""
