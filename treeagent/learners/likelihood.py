"""Log-probabilities of given tokens under a model."""

import math
import random
from collections.abc import Sequence
from itertools import compress

import torch

from treeagent.generators.attention import logit_columns
from treeagent.learners.batches import padded
from treeagent.learners.common import Model
from treeagent.views.tokens import TokenRow

_BATCH = 16
"""Rows of one forward pass."""


@torch.no_grad()
def token_logprobs(
    model: Model, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float = 1.0
) -> list[list[float]]:
    """For each pair (prompt, completion), the log-probability in nats of each token of the completion, given all tokens
    before it."""
    model.eval()
    found: list[list[float]] = [[] for _ in pairs]
    order = sorted(range(len(pairs)), key=lambda index: sum(map(len, pairs[index])))
    for start in range(0, len(order), _BATCH):
        indices = order[start : start + _BATCH]
        batch = [pairs[index] for index in indices]
        rows = [(*prompt, *completion) for prompt, completion in batch]
        ids, mask = (each.to(model.device) for each in padded(rows).values())
        # Logits take much memory with a large vocabulary, so compute them only from the first completion token on.
        first = min(len(prompt) for prompt, _ in batch)
        columns = logit_columns(model, first - 1, ids.shape[1] - 1)
        kept = model(input_ids=ids, attention_mask=mask, logits_to_keep=columns).logits
        logits = kept.float() / temperature
        chosen = logits.log_softmax(-1).gather(-1, ids[:, first:, None])[..., 0].cpu()
        for row, (index, (prompt, completion)) in enumerate(zip(indices, batch, strict=True)):
            begin = len(prompt) - first
            found[index] = chosen[row, begin : begin + len(completion)].tolist()
    return found


def hard_rows(model: Model, rows: Sequence[TokenRow], count: int, seed: int) -> list[TokenRow]:
    """Draw ``count`` rows with replacement, in proportion to 1 - p, where p is the lowest probability among the row's
    tokens to imitate. If p is above 1/2, greedy decoding writes all of these tokens.

    Args:
        rows: rows with the tokens to imitate at their end.
    """
    starts = [row.mask.index(True) for row in rows]
    pairs = [(row.token_ids[:start], row.token_ids[start:]) for row, start in zip(rows, starts, strict=True)]
    scored = zip(rows, starts, token_logprobs(model, pairs), strict=True)
    lowest = [min(compress(logprobs, row.mask[start:])) for row, start, logprobs in scored]
    weights = [1 - math.exp(logprob) for logprob in lowest]
    return random.Random(seed).choices(rows, weights if any(weights) else None, k=count)
