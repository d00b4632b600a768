from pathlib import Path
from statistics import NormalDist

import pytest
from review_sample import sample_run

from treeagent.contrib.people.queue import load, review_queue


def test_the_queue_of_a_run(tmp_path: Path) -> None:
    """One of two episodes of task e0 succeeded: doubt 2 · 1/2 · 1/2, and the failed one comes first. The two episodes
    of e1 are equal. Of the pairs, t0 and t1 have equal ones: Q 1/2 and 1/4 with 4 visits each differ by 1/√2 σ."""
    run = sample_run(tmp_path / "run")
    items = review_queue(run)
    kinds = [(item.kind, item.task_id[0], item.rank) for item in items]
    first, second = [("pair", "t", 0)] * 2, [("pair", "t", 1)] * 2
    assert kinds == [("episode", "e", 0), *first, ("episode", "e", 0), ("episode", "e", 1), *second]
    assert [item.doubt for item in items[:5]] == pytest.approx([0.5, *[NormalDist().cdf(-(0.5**0.5))] * 2, 0.0, 0.5])
    assert [items[place].texts[-1].split()[-1] for place in (0, 3, 4)] == ["0", "1", "1"]
    assert [load(run, item).task.id for item in items] == [item.task_id for item in items]
