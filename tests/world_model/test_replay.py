"""The replay buffer: nearest neighbours, deduplication, and durability."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shop_steps import PAGE, RESULTS, OpenBuffer, experience, shop_steps

from treeagent.types import Message, UserError
from treeagent.world_model import replay
from treeagent.world_model.encoder import Vectors, encode
from treeagent.world_model.replay import ReplayBuffer, embed
from treeagent.world_model.transition import Experience

SPAWN = multiprocessing.get_context("spawn")


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


def test_rows_added_later_are_found(open_buffer: OpenBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "encode", compass)
    buffer, other = (open_buffer() for _ in range(2))
    place = (at(1, 0).history, "0 0")
    buffer.add([at(0, 1)])
    assert names(buffer.nearest([place], 1)) == [["0 1"]]
    other.add([at(0.8, 0.6)])
    assert names(buffer.nearest([place], 1)) == [["0.8 0.6"]]
    buffer.add([at(1, 0)])
    assert names(buffer.nearest([place], 2)) == names(other.nearest([place], 2)) == [["1 0", "0.8 0.6"]]


def test_the_same_step_is_kept_once_whoever_adds_it(open_buffer: OpenBuffer) -> None:
    buffer = open_buffer()
    one = experience("search[lamp]")
    assert buffer.add([one, replace(one, task_id="x"), replace(one, origin="imagined"), experience("click[1]")]) == 2
    assert buffer.add([one]) == 0
    assert open_buffer().add([one]) == 0
    assert len(buffer) == 2


def test_rows_come_back_equal(open_buffer: OpenBuffer) -> None:
    steps = shop_steps(30)
    imagined = [replace(one, observation=one.observation + "!", origin="imagined") for one in steps[:5]]
    buffer = open_buffer()
    assert buffer.add(iter([*steps, *imagined])) == len(steps) + 5
    assert list(buffer.experiences()) == [*steps, *imagined]


@pytest.mark.parametrize("block", [7, 8192])
def test_nearest_is_exact_in_one_block_or_many(
    block: int, open_buffer: OpenBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_BLOCK", block)
    steps = shop_steps(60)
    buffer = open_buffer()
    for start in range(0, len(steps), 37):
        buffer.add(steps[start : start + 37])
        buffer.nearest([(steps[0].history, steps[0].action)], 1)
    places = [(one.history, one.action) for one in steps[::7]]
    vectors = embed([(one.history, one.action) for one in steps])
    for place, found in zip(places, buffer.nearest(places, 4), strict=True):
        cosines = vectors @ embed([place])[0]
        near = embed([(one.history, one.action) for one in found])
        got = near @ embed([place])[0]
        assert got == pytest.approx(np.sort(cosines)[-4:][::-1], abs=2e-3)  # stored in half precision
        assert got[0] == pytest.approx(1.0, abs=2e-3)


def test_what_opened_the_same_line_is_near() -> None:
    """Near: another label in another list that opens the same thing. Less near: the same label that opens something
    else."""
    other_list = "1 old lamp $3\n2 red lamp $9\n3 green chair $30"
    opens, alike, unlike = embed(
        [
            (experience("search[a]", RESULTS, "click[1]").history, "click[1]"),
            (experience("search[a]", other_list, "click[2]").history, "click[2]"),
            (experience("search[a]", other_list, "click[1]").history, "click[1]"),
        ],
    )
    assert opens @ alike > opens @ unlike


@given(st.lists(st.text(max_size=30), max_size=5))
def test_lexical_rows_have_length_one_and_depend_on_their_text_alone(texts: list[str]) -> None:
    rows = encode(texts, 64)
    assert rows.shape == (len(texts), 64)
    for row, text in zip(rows, texts, strict=True):
        assert np.array_equal(row, encode([text], 64)[0])
        assert np.linalg.norm(row) == pytest.approx(1.0 if row.any() else 0.0)


def test_like_texts_are_nearer_than_others() -> None:
    one, like, other = encode(["red lamp $9", "a red lamp for $8", "order placed"])
    assert one @ like > one @ other


def test_an_empty_buffer_is_refused(open_buffer: OpenBuffer) -> None:
    buffer = open_buffer()
    buffer.add([])
    with pytest.raises(UserError, match=r"b\.sqlite is empty: add real transitions"):
        buffer.nearest([(experience("search[a]").history, "search[a]")], 2)


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


def test_what_only_reads_makes_no_file(open_buffer: OpenBuffer, tmp_path: Path) -> None:
    """Otherwise an audit would find an empty memory and regard every step as not learnt."""
    with pytest.raises(UserError, match=r"b\.sqlite does not exist: restore it, or fit the world model anew"):
        open_buffer(create=False)
    assert not list(tmp_path.iterdir())
    assert open_buffer().add([experience("search[a]")]) == len(open_buffer(create=False)) == 1


@pytest.mark.parametrize("content", [b"no database" * 200, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_refused(open_buffer: OpenBuffer, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.sqlite").write_bytes(content)
    with pytest.raises(UserError, match=r"b\.sqlite cannot be used \(.*\): restore it, or fit the world model anew"):
        open_buffer()


def read_as_nobody(path: Path, told: Connection) -> None:
    if os.geteuid() == 0:  # root may write everywhere
        os.setuid(65534)
    told.send([one.action for one in ReplayBuffer(path).experiences()])


@pytest.mark.slow
def test_a_file_in_a_folder_that_nobody_can_write_is_read() -> None:
    with TemporaryDirectory() as name:  # only its owner may enter the parent folder of tmp_path
        folder = Path(name)
        memory = ReplayBuffer(folder / "b.sqlite", create=True)
        memory.add([experience("search[a]")])
        memory.close()
        folder.chmod(0o555)
        reader, writer = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=read_as_nobody, args=(folder / "b.sqlite", writer))
        process.start()
        process.join()
        assert reader.poll() and reader.recv() == ["search[a]"]
        assert [path.name for path in folder.iterdir()] == ["b.sqlite"]
        folder.chmod(0o755)
        reader.close()
        writer.close()
