"""Bradley-Terry reward models: known utilities are recovered, and the audit catches a model that learnt length."""

import math
from typing import Any

import pytest
from tiny import make_model, make_tokenizer
from transformers import PreTrainedModel

from treeagent.agent.checkpoint import Checkpoint
from treeagent.contrib.judging.audit import ScoredEnd, audit, best_of, cap, value_of
from treeagent.contrib.judging.scorer import FitOptions, calibrate, make_scorer, scores, train_scorer


def pair(chosen: tuple[int, ...], rejected: tuple[int, ...], margin: float = 0.0) -> dict[str, Any]:
    return {"chosen_ids": chosen, "rejected_ids": rejected, "margin": margin}


def trained(pairs: list[dict[str, Any]], **options: Any) -> PreTrainedModel:
    tokenizer = make_tokenizer()
    scorer = make_scorer(Checkpoint(make_model(), tokenizer), 0)
    return train_scorer(scorer, tokenizer, pairs, FitOptions(**options))[0]


def test_known_utilities_are_found_again_and_centred() -> None:
    utilities = [-math.log(3), 0.0, math.log(3)]
    rows = [(3, 10 + number) for number in range(3)]
    pairs = []
    for worse, better, wins, played in [(0, 1, 3, 4), (1, 2, 3, 4), (0, 2, 9, 10)]:  # exactly σ of the differences
        pairs += [pair(rows[better], rows[worse])] * wins + [pair(rows[worse], rows[better])] * (played - wins)
    scorer = trained(pairs, epochs=100, batch_size=len(pairs), learning_rate=3e-3)
    assert scores(scorer, rows) == pytest.approx(utilities, abs=0.1)  # without a constant offset, too
    assert scores(scorer, [rows[0], (*rows[0], 20, 21)])[:1] == pytest.approx(scores(scorer, rows[:1]))  # padding


def test_calibration_keeps_the_order_and_finds_the_chances() -> None:
    found = [-3.0] * 100 + [5.0] * 100  # a quarter of the lower half and three quarters of the higher half succeed
    slope, shift = calibrate(found, [1.0] * 25 + [0.0] * 75 + [1.0] * 75 + [0.0] * 25)
    chances = [value_of(score, slope, shift, (0.0, 1.0)) for score in (-3.0, 5.0)]
    assert chances == pytest.approx([0.25, 0.75], abs=0.005)
    assert calibrate([0.1, 0.2], [1.0, 0.0])[0] > 0  # the order stays, even if it is wrong


def test_a_model_that_was_trained_on_length_gets_no_weight() -> None:
    """In the training pairs longer ends are better. In held-out tasks the longest end is padding that is not paid."""

    def counting(first: int, length: int) -> tuple[int, ...]:
        return (first, *range(10, 10 + length))

    longer = [
        pair(counting(number, length + 4), counting(number, length)) for length in (3, 7, 11) for number in (3, 4)
    ]
    scorer = trained(longer, epochs=60, batch_size=6, learning_rate=3e-3)
    rows = [(f"task-{number}", counting(5 + number, turns)) for number in range(5) for turns in (4, 8, 12, 15)]
    found = scores(scorer, [row for _, row in rows])
    told = audit(
        [
            ScoredEnd(task, 1 / (1 + math.exp(-score)), float(len(row) in (9, 13)))
            for (task, row), score in zip(rows, found, strict=True)
        ]
    )
    assert told.best_of[-1].paid < told.best_of[0].paid and told.cap == 0.0


def test_best_of_n_by_hand() -> None:
    """Of two ends, the better one by score is the highest of two draws with probability 3/4. It is paid 1, the other
    0."""
    tasks = [[ScoredEnd("a", 0.9, 1.0), ScoredEnd("a", 0.1, 0.0)]]
    one, two = (best_of(tasks, number) for number in (1, 2))
    assert (one.paid, two.paid, two.possible, two.score) == pytest.approx((0.5, 0.75, 0.75, 0.7))
    assert 0 < cap([one, two], 10) < 1 and cap([two, one], 10) == 0.0
