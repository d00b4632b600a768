"""A language model and rows that are so small that a training step takes milliseconds."""

import random
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from treeagent.views.advantages import AdvantageRow
from treeagent.views.pairs import Continuation, PreferencePair
from treeagent.views.policy import Candidate, PolicyRow
from treeagent.views.tokens import TokenRow

VOCABULARY = 64
HIDDEN = 32


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{number}": number for number in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def make_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def make_unpackable() -> MistralForCausalLM:
    """A model with the weights of ``make_model``, and with sliding windows, so that it cannot be packed. The windows
    are longer than the rows, so it computes the same function."""
    config = make_model().config
    model = MistralForCausalLM(
        MistralConfig(
            **{name: getattr(config, name) for name in ("vocab_size", "hidden_size", "intermediate_size")},
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=2,
            rms_norm_eps=config.rms_norm_eps,
            sliding_window=512,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )
    model.load_state_dict(make_model().state_dict())
    return model


def make_experts() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        moe_intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
    )
    return Qwen3MoeForCausalLM(config)


def weights(*modules: nn.Module) -> torch.Tensor:
    """All parameters in one vector, also if they are sharded."""
    each = (parameter.detach() for module in modules for parameter in module.parameters())
    return torch.cat([(weight.full_tensor() if isinstance(weight, DTensor) else weight).flatten() for weight in each])


@torch.no_grad()
def logprobs(model: nn.Module, token_ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """log π of each token after the first, in nats: (tokens - 1). Computed by a plain forward pass."""
    ids = torch.tensor([list(token_ids)])
    logits = model(input_ids=ids).logits[0, :-1] / temperature
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).squeeze(1)


def tokens(shuffler: random.Random, count: int) -> tuple[int, ...]:
    return tuple(shuffler.randrange(3, VOCABULARY) for _ in range(count))


def token_rows(count: int, seed: int = 0) -> list[TokenRow]:
    """Rows of prompt, action, observation, action. A value target is at the end of the prompt and of the
    observation."""
    shuffler = random.Random(seed)
    rows = []
    for number in range(count):
        prompt, step, seen = shuffler.randrange(3, 9), shuffler.randrange(2, 6), shuffler.randrange(2, 9)
        mask = (False,) * prompt + (True,) * step + (False,) * seen + (True,) * step
        target = float(number % 2)
        places = (prompt - 1, prompt + step + seen - 1)
        rows.append(TokenRow(f"task-{number // 2}", tokens(shuffler, len(mask)), mask, places, (target, target)))
    return rows


def pairs(model: nn.Module, count: int, shift: float = 0.0, temperature: float = 1.0) -> list[PreferencePair]:
    """Pairs with the model's own log-probabilities as the stored ones; the sum of the chosen ones is lower by
    ``shift``."""
    shuffler = random.Random(1)

    def action(context: tuple[int, ...], lowered: float) -> Continuation:
        ids = tokens(shuffler, shuffler.randrange(2, 7))
        behaviour = logprobs(model, (*context, *ids), temperature)[len(context) - 1 :].tolist()
        return Continuation("a", ids, (True,) * len(ids), tuple(logprob - lowered / len(ids) for logprob in behaviour))

    made = []
    for number in range(count):
        context = tokens(shuffler, shuffler.randrange(3, 12))
        made.append(PreferencePair(f"task-{number}", context, action(context, shift), action(context, 0.0), 0.5))
    return made


def advantage_rows(
    model: nn.Module, count: int, advantage: float | None = None, stale: float = 0.0
) -> list[AdvantageRow]:
    """Rows with an observation in the middle. Advantages are random unless one is given, and ``stale`` is the standard
    deviation of log μ around log π."""
    shuffler = random.Random(2)
    rows = []
    for number in range(count):
        prompt = tokens(shuffler, shuffler.randrange(2, 9))
        step, seen = shuffler.randrange(2, 6), shuffler.randrange(1, 6)
        mask = (True,) * step + (False,) * seen + (True,) * step
        completion = tokens(shuffler, len(mask))
        behaviour = logprobs(model, (*prompt, *completion))[len(prompt) - 1 :].tolist()
        rows.append(
            AdvantageRow(
                f"task-{number}",
                prompt,
                completion,
                mask,
                tuple((shuffler.gauss(0, 1) if advantage is None else advantage) if kept else 0.0 for kept in mask),
                tuple(
                    b + stale * shuffler.gauss(0, 1) if kept else 0.0 for b, kept in zip(behaviour, mask, strict=True)
                ),
            )
        )
    return rows


def policy_rows(count: int) -> list[PolicyRow]:
    """States of two tasks, each with two to four candidates whose targets sum to 1."""
    shuffler = random.Random(4)
    rows = []
    for number in range(count):
        weights = [shuffler.random() for _ in range(shuffler.randrange(2, 5))]
        lengths = [shuffler.randrange(1, 6) for _ in weights]
        candidates = tuple(
            Candidate(tokens(shuffler, length), (-1.0,) * length, weight / sum(weights))
            for length, weight in zip(lengths, weights, strict=True)
        )
        rows.append(PolicyRow(f"task-{number % 2}", tokens(shuffler, shuffler.randrange(3, 9)), candidates))
    return rows
