"""The audit of a reward model, by hand. A model that was trained on length is detected and gets no weight."""

from itertools import product

import pytest

from treeagent.contrib.judging.audit import BestOf, ScoredEnd, audit, best_of, cap
from treeagent.world_model.fidelity import wilson_interval


def end(task: str, score: float, paid: float, turns: int = 1) -> ScoredEnd:
    return ScoredEnd(task, score, paid, paid >= 1, turns)


def test_figures_by_hand() -> None:
    found = [
        end("a", 0.9, 1.0, 2),
        end("a", 0.4, 0.0, 8),  # the longer end is worse, and the model says so
        end("a", 0.95, 0.0, 6),  # the longer end is worse, and the model is wrong
        end("b", 0.2, 0.5, 4),
        end("b", 0.2, 0.0, 3),  # the model is undecided
        end("c", 0.7, 1.0, 1),
    ]
    told = audit(found, siblings=[(0.9, 0.1), (0.3, 0.4), (0.5, 0.5)])
    assert (told.tasks, told.ends, told.mixed_tasks) == (3, 6, 2)
    assert told.pairs == 3 and told.pair_accuracy == pytest.approx((1 + 0 + 0.5) / 3)
    assert told.longer_worse == 2 and told.longer_worse_accuracy == pytest.approx(0.5)
    # Successes score 0.9 and 0.7, failures 0.4, 0.95, 0.2 and 0.2: each success is above three of four.
    assert told.auc == pytest.approx(6 / 8)
    assert told.siblings == 3 and told.sibling_auc == pytest.approx(0.5)
    # Bins: {0.9, 0.95} paid 1 and 0; {0.4}; {0.2, 0.2} paid 0.5 and 0; {0.7}.
    gaps = 2 * abs(0.925 - 0.5) + abs(0.4 - 0) + 2 * abs(0.2 - 0.25) + abs(0.7 - 1)
    assert told.calibration_error == pytest.approx(gaps / 6)
    # The same in a range from -1 to 1 has the same error, as a share of the range.
    wide = [ScoredEnd(each.task_id, 2 * each.score - 1, 2 * each.paid - 1, each.success, 1) for each in found]
    assert audit(wide, returns=(-1.0, 1.0)).calibration_error == pytest.approx(gaps / 6)


def test_correlation_with_length_by_hand() -> None:
    told = audit([end("a", 0.1, 1.0, 10), end("b", 0.2, 0.0, 20), end("c", 0.6, 0.0, 30)])
    # Deviations (-0.2, -0.1, 0.3) and (-10, 0, 10): 5 / (sqrt(0.14) sqrt(200)).
    assert told.length_correlation == pytest.approx(5 / (0.14 * 200) ** 0.5)
    assert told.paid_length_correlation == pytest.approx(-10 / ((2 / 3) * 200) ** 0.5)
    alike = audit([end("a", 0.5, 1.0, 3), end("b", 0.5, 1.0, 3)])
    assert alike.length_correlation is None and alike.cap == 0 and alike.best_of == ()


def test_the_best_of_n_is_the_mean_over_all_draws() -> None:
    ends = [end("a", 0.3, 1.0), end("a", 0.8, 0.0), end("a", 0.8, 1.0), end("a", 0.1, 0.0)]
    for n in (1, 2, 4):
        score = paid = possible = 0.0
        draws = list(product(ends, repeat=n))
        for draw in draws:
            top = max(each.score for each in draw)
            tied = [each for each in draw if each.score == top]
            score, paid = score + top, paid + sum(each.paid for each in tied) / len(tied)
            possible += max(each.paid for each in draw)
        expected = BestOf(n, score / len(draws), paid / len(draws), possible / len(draws))
        found = best_of([ends], n)
        assert (found.score, found.paid, found.possible) == pytest.approx(
            (expected.score, expected.paid, expected.possible)
        )


def test_the_cap_is_the_least_share_of_the_possible_gain() -> None:
    curve = [BestOf(1, 0.5, 0.2, 0.2), BestOf(2, 0.6, 0.5, 0.6), BestOf(4, 0.8, 0.4, 0.7)]
    assert cap(curve, 50) == pytest.approx(wilson_interval(0.4 * 50, 50)[0])  # (0.4 - 0.2) / (0.7 - 0.2) at n = 4
    worse = [BestOf(1, 0.5, 0.2, 0.2), BestOf(2, 0.6, 0.5, 0.6), BestOf(4, 0.8, 0.1, 0.7)]
    assert cap(worse, 50) == 0 and cap(curve[:1], 50) == 0 and cap([], 0) == 0
    perfect = [BestOf(1, 0.5, 0.2, 0.2), BestOf(2, 0.6, 0.6, 0.6)]
    assert cap(perfect, 2) < 0.4 < 0.9 < cap(perfect, 100)  # a small audit allows little


def test_a_model_of_length_is_found_out_although_its_pairs_look_fair() -> None:
    """In each task most ends are paid by length, but the longest end is padding."""
    found = [
        end(f"task-{number}", turns / 10, float(3 <= turns < 9), turns)
        for number in range(40)
        for turns in range(1, 10)
    ]
    told = audit(found)
    assert told.pair_accuracy is not None and told.pair_accuracy > 0.55
    assert told.length_correlation == pytest.approx(1.0)
    assert told.longer_worse_accuracy == 0.0
    promised, paid = [point.score for point in told.best_of], [point.paid for point in told.best_of]
    assert promised == sorted(promised)
    assert paid[-1] < paid[0] < max(paid)  # choosing by it helps at first, and harms later
    assert told.cap == 0.0
