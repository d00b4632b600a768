from pathlib import Path
from statistics import NormalDist

import pytest
from review_sample import close_tree, sample_run

from treeagent.contrib.people.queue import load, order_in_doubt, pair_items, review_queue
from treeagent.search.node import Edge
from treeagent.types import Action


def tried(visits: int, value: float) -> Edge:
    return Edge(Action("", ""), 0.5, visits, visits * value)


def test_doubt_by_hand() -> None:
    """Equal Q give 1/2. With Q 1/2 and 1/4 of 4 visits each: σ √(1/4 + 1/4) = 0.354, so z = 0.25 / 0.354 = 0.707."""
    assert order_in_doubt(tried(3, 0.5), tried(9, 0.5)) == 0.5
    doubt = order_in_doubt(tried(4, 0.5), tried(4, 0.25))
    assert doubt == pytest.approx(NormalDist().cdf(-(0.5**0.5))) and doubt == pytest.approx(0.2398, abs=1e-4)
    assert order_in_doubt(tried(4, 0.5), tried(4, 0.25), (0.0, 2.0)) > doubt
    assert order_in_doubt(tried(8, 0.5), tried(8, 0.25)) < doubt < order_in_doubt(tried(4, 0.5), tried(4, 0.4))


def test_what_was_found_and_not_taken_comes_first() -> None:
    """Below "left" search visited "lose" most, although "win" succeeds: 1 + Φ(-1 / (σ √(1/3 + 1))) 4/8."""
    first, second = pair_items(close_tree("t"), "collect", 0, 0)
    assert first.doubt > 1 and [text.split()[-1] for text in first.texts] == ["lose", "win"]
    assert first.doubt == pytest.approx(1 + NormalDist().cdf(-1 / (0.5 * (4 / 3) ** 0.5)) / 2)
    assert second.doubt == pytest.approx(0.2398, abs=1e-4)
    assert (first.rank, second.rank, first.path, second.path) == (0, 1, (0,), ())


def test_the_queue_of_a_run(tmp_path: Path) -> None:
    """One of two episodes of task e0 succeeded: doubt 2 · 1/2 · 1/2, and the failed one comes first. The two episodes
    of e1 are equal."""
    run = sample_run(tmp_path / "run")
    items = review_queue(run)
    assert [(item.kind, item.task_id, item.rank) for item in items] == [
        *[
            ("pair", task, 0)
            for task in sorted(("t0", "t1"), key=lambda task: [i.id for i in items if i.task_id == task])
        ],
        ("episode", "e0", 0),
        ("episode", "e1", 0),
        ("episode", "e0", 1),
        *[("pair", task, 1) for task in [item.task_id for item in items[5:7]]],
    ]
    assert sorted(item.task_id for item in items[5:7]) == ["t0", "t1"]
    assert [(item.doubt, item.texts[-1].split()[-1]) for item in items[2:5]] == [(0.5, "0"), (0.0, "1"), (0.5, "1")]
    assert [load(run, item).task.id for item in items] == [item.task_id for item in items]
