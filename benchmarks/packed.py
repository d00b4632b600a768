"""What training on shared prefixes gains: a forward and backward pass over the rows of trees, one by one and packed.

    .venv/bin/python -m benchmarks.packed

The model is a Llama with 10 million random weights on one thread. Repetitions alternate between the two, so that other
load on the machine affects both alike. Seconds are CPU seconds. Memory is what a step adds to a process that already
holds the model and its gradient.
"""

import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer import utils as trl_utils
from trl.trainer.utils import add_fused_lm_head

from benchmarks.command import Figures, add_rounds, memory, options_digest, record_of, repeating
from treeagent.learners.common import pad
from treeagent.learners.packed import pack_prefixes

QUESTION = "How long does a training step take on rows with a common beginning, one by one and packed?"
VOCABULARY = 2048


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of rows. Only the last tokens of each row are trained."""

    name: str
    ids: list[list[int]]
    trained: list[int]
    """Number of trained tokens at the end of each row."""


def siblings(name: str, trees: int, prefix: int, count: int, action: int) -> Rows:
    """The rows of trees that have ``count`` actions at the root and nothing below."""
    shuffler = random.Random(0)
    ids = []
    for _ in range(trees):
        prompt = words(shuffler, prefix)
        ids += [[*prompt, *words(shuffler, action)] for _ in range(count)]
    return Rows(name, ids, [action] * len(ids))


def grown_rows(name: str, trees: int, prompt: int, depth: int, width: int, action: int, observation: int) -> Rows:
    """The rows of trees as search grows them along one path: ``width`` actions at each of ``depth`` states, one row per
    action."""
    shuffler = random.Random(0)
    ids = []
    for _ in range(trees):
        path = words(shuffler, prompt)
        for _ in range(depth):
            actions = [words(shuffler, action) for _ in range(width)]
            ids += [[*path, *each] for each in actions]
            path = [*path, *actions[0], *words(shuffler, observation)]
    return Rows(name, ids, [action] * len(ids))


def words(shuffler: random.Random, count: int) -> list[int]:
    return [shuffler.randrange(VOCABULARY) for _ in range(count)]


CASES = (
    siblings("8 siblings of 64 behind 512", trees=1, prefix=512, count=8, action=64),
    siblings("8 siblings of 8 behind 130, 4 trees", trees=4, prefix=130, count=8, action=8),
    siblings("8 siblings of 64 behind 1,436", trees=1, prefix=1436, count=8, action=64),
    siblings("2 siblings of 512 behind 7,680", trees=1, prefix=7680, count=2, action=512),
    grown_rows("as the quickstart grows them", trees=2, prompt=18, depth=6, width=2, action=8, observation=14),
)


def make_model() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=320,
            intermediate_size=864,
            num_hidden_layers=7,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=8192,
        )
    )
    add_fused_lm_head(model)
    return model


def train(model: LlamaForCausalLM, rows: Rows, packed: bool) -> Tensor:
    """The gradient of the mean cross-entropy of the trained tokens, as one vector."""
    model.zero_grad()
    ids = pad(rows.ids, torch.long)
    lengths = torch.tensor([len(row) for row in rows.ids])[:, None]
    columns = torch.arange(1, ids.shape[1])
    trained = (columns < lengths) & (columns >= lengths - torch.tensor(rows.trained)[:, None])
    labels = torch.full_like(ids, -100)
    labels[:, 1:][trained] = ids[:, 1:][trained]
    labelled_only = patch.object(trl_utils, "_use_triton", lambda device: True)
    with pack_prefixes(model) if packed else nullcontext(), labelled_only:
        outputs = model(
            input_ids=ids,
            attention_mask=(torch.arange(ids.shape[1]) < lengths).long(),
            labels=labels,
            use_cache=False,
            fused_lm_head=True,
        )
    (-outputs.log_probs.sum() / trained.sum()).backward()
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


def measure(rows: Rows, number: int) -> dict[str, float]:
    """The figures of one repetition."""
    model = make_model()
    if number == 0:  # also a warm-up for both
        separate, together = train(model, rows, packed=False), train(model, rows, packed=True)
    seconds: dict[bool, float] = {}
    for packed in (False, True):
        start = time.process_time()
        train(model, rows, packed)
        seconds[packed] = time.process_time() - start
    found = {"ms one by one": 1e3 * seconds[False], "ms packed": 1e3 * seconds[True]}
    found["ratio"] = seconds[False] / seconds[True]
    if number == 0:  # the same in every repetition
        found |= {"MiB one by one": peak(rows, False), "MiB packed": peak(rows, True)}
        found["difference of gradients"] = float((together - separate).norm() / separate.norm())
    return found


def peak(rows: Rows, packed: bool) -> float:
    """Peak MiB that a forward and backward pass add. Each has a fresh process, because a process's peak never falls."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_peak, rows, packed).result()


def _peak(rows: Rows, packed: bool) -> float:
    model = make_model()
    train(model, Rows("", [[1, 2]], [1]), packed)
    before = memory("VmHWM")
    train(model, rows, packed)
    return memory("VmHWM") - before


def main() -> None:
    arguments = repeating(__doc__, "packed", rounds=7).parse_args()
    with record_of(arguments, QUESTION) as record:
        for rows in CASES:
            add_rounds(record, arguments.rounds, options_digest(arguments), [rows.name], partial(repetition, rows))


def repetition(rows: Rows, number: int) -> Figures:
    return {rows.name: measure(rows, number)}


if __name__ == "__main__":
    main()
