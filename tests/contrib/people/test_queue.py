from pathlib import Path

from review_sample import sample_run

from treeagent.contrib.people.queue import load, review_queue
from treeagent.search.node import Edge
from treeagent.types import Action


def tried(visits: int, value: float) -> Edge:
    return Edge(Action("", ""), 0.5, visits, visits * value)


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
