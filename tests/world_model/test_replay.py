"""The replay buffer: nearest neighbours, deduplication, and durability."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shop_steps import PAGE, OpenBuffer, experience

from treeagent.types import Message, UserError
from treeagent.world_model import replay
from treeagent.world_model.replay import Vectors
from treeagent.world_model.transition import Experience


def compass(texts: Sequence[str]) -> Vectors:
    """Encode texts that begin with two numbers as these numbers."""
    rows = [[float(number) for number in text.split()[:2]] if text[:1].isdigit() else [0.0, 0.0] for text in texts]
    return np.array(rows, np.float32).reshape(-1, 2)


def at(east: float, north: float, action: str = "0 0") -> Experience:
    return Experience("t", (Message("user", "task"), Message("user", f"{east} {north}")), action, "o")


def names(found: Sequence[Sequence[Experience]]) -> list[list[str]]:
    return [[one.seen for one in row] for row in found]


def test_nearest_by_hand(open_buffer: OpenBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosines to (1, 0) are 1, 0.8, 0.6 and 0."""
    monkeypatch.setattr(replay, "encode", compass)
    buffer = open_buffer()
    assert buffer.add([at(0, 1), at(0.6, 0.8), at(1, 0), at(0.8, 0.6)]) == 4
    query = at(1, 0)
    place = (query.history, query.action)
    assert names(buffer.nearest([place], 3)) == [["1 0", "0.8 0.6", "0.6 0.8"]]
    assert len(buffer.nearest([place], 9)[0]) == 4
    assert buffer.nearest([place], 0) == [[]]
    assert buffer.nearest([], 3) == []
    other = at(0, 1)
    assert names(buffer.nearest([place, (other.history, other.action)], 1)) == [["1 0"], ["0 1"]]


def test_the_same_step_is_kept_once_whoever_adds_it(open_buffer: OpenBuffer) -> None:
    buffer = open_buffer()
    one = experience("search[lamp]")
    assert buffer.add([one, replace(one, task_id="x"), replace(one, origin="imagined"), experience("click[1]")]) == 2
    assert buffer.add([one]) == 0
    assert open_buffer().add([one]) == 0
    assert len(buffer) == 2


ADDER = """
import sys
from pathlib import Path
from treeagent.types import Message
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import Experience

buffer, number = ReplayBuffer(Path(sys.argv[1]), create=True), 0
while True:
    history = (Message("user", "task"),)
    buffer.add(Experience("t", history, "search[a]", f"{number} {place}") for place in range(20))
    number += 1
    print(number * 20, flush=True)
"""
"""A program that adds batches of 20 steps until it is killed, and prints how many it has added. It imports little."""


def test_what_was_added_survives_a_kill(open_buffer: OpenBuffer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ADDER, str(tmp_path / "b.sqlite")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as adder:
        assert adder.stdout is not None
        told = max(int(adder.stdout.readline()) for _ in range(5))
        beside = open_buffer()
        assert len(beside) >= told  # read while the other process writes
        adder.kill()
        told = max([told, *map(int, adder.stdout.read().split())])
    after = open_buffer()
    assert len(after) >= told
    assert len(after) % 20 == 0  # a batch is stored whole or not at all
    assert after.add([experience("click[1]", answer=PAGE)]) == 1
    assert len(list(after.experiences())) == len(after)
    assert after.nearest([(experience("click[1]").history, "click[1]")], 1)[0][0].action == "click[1]"


@pytest.mark.parametrize("content", [b"no database" * 200, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_refused(open_buffer: OpenBuffer, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.sqlite").write_bytes(content)
    with pytest.raises(UserError, match=r"b\.sqlite cannot be used \(.*\): restore it, or fit the world model anew"):
        open_buffer()
