"""How far an update has moved a policy, by hand and against what a generator says of its own samples."""

from collections.abc import Sequence
from math import exp, log

import pytest
from hand_trees import hand_tree
from transformers import LlamaConfig, LlamaForCausalLM

from treeagent.generators.base import Failure
from treeagent.generators.local import LocalGenerator
from treeagent.search.node import Tree
from treeagent.stages.improvement import change, scorer

Pairs = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]


def unmoved(pairs: Pairs) -> list[float]:
    return [-sum(said) / 100 for _, said in pairs]


def test_a_policy_that_stays_neither_gains_nor_drifts() -> None:
    moved = change([hand_tree()], unmoved)
    assert moved is not None
    assert (moved.gain, moved.drift, moved.states) == (0.0, 0.0, 2)


def test_gain_and_drift_by_hand() -> None:
    """At the root Q is 3/4, 1/4 and 0, at A's state 1 and 1/2; D was never tried, and B's state offers no choice."""
    asked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def after(pairs: Pairs) -> list[float]:
        asked.extend(pairs)
        shares = {(10, 11): 0.5, (12,): 0.25, (13,): 0.25, (30,): 0.75, (31, 32): 0.25}
        return [log(shares[said]) - 5 for _, said in pairs]  # as much less likely, all of them

    moved = change([hand_tree()], after)
    assert moved is not None
    a, b, c = (exp(-0.21) / (total := exp(-0.21) + exp(-0.12) + exp(-0.13)), exp(-0.12) / total, exp(-0.13) / total)
    first = exp(-0.30) / (exp(-0.30) + exp(-0.63))
    gains = [(0.5 - a) * 0.75 + (0.25 - b) * 0.25, (0.75 - first) * 1 + (first - 0.75) * 0.5]
    drifts = [(0.5 - a + b - 0.25 + c - 0.25) / 2, 0.75 - first]
    assert moved.gain == pytest.approx(sum(gains) / 2)
    assert moved.drift == pytest.approx(sum(drifts) / 2)
    assert ((1, 2, 10, 11, 20, 21), (30,)) in asked and ((1, 2), (13,)) in asked


def test_no_more_states_are_looked_at_than_asked() -> None:
    moved = change([hand_tree()] * 7, unmoved, most=3)
    assert moved is not None and moved.states == 3


def test_where_nothing_was_tried_there_is_nothing_to_tell() -> None:
    alone = hand_tree()
    alone.root.edges = alone.root.edges[1:2]
    assert change([Tree(alone.task, 0, alone.root)], unmoved) is None


def test_scores_are_what_the_generator_says_of_its_samples() -> None:
    shape = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).eval()
    prompts = [(1, 2, 3), (4, 5, 6, 7, 8)]
    drawn = LocalGenerator(model).sample(prompts, 3, [0, 1], stop_id=-1, max_new_tokens=5, temperature=0.7)
    said = [
        (prompt, sample)
        for prompt, samples in zip(prompts, drawn, strict=True)
        if not isinstance(samples, Failure)
        for sample in samples
    ]
    scores = scorer(model, 0.7)([(prompt, sample.token_ids) for prompt, sample in said])
    assert scores == pytest.approx([sum(sample.logprobs) for _, sample in said], abs=1e-4)
    assert max(scores) < -1.0
