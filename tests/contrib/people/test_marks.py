import signal
import subprocess
import sys
from pathlib import Path

from treeagent.contrib.people.marks import (
    Mark,
    Verdict,
    append_mark,
    effective_marks,
    new_mark,
    read_marks,
)

A, B, C = "Action: a[1]", "Action: b[2]", "Action: c"


def compared(who: str, better: str | None, *shown: str, **fields: object) -> Mark:
    verdict: Verdict = "tie" if better is None else "better"
    choice = None if better is None else shown.index(better)
    return new_mark(who, verdict, state="s", shown=shown, choice=choice, **fields)


def judged(who: str, verdict: Verdict, **fields: object) -> Mark:
    return new_mark(who, verdict, state="end", shown=(A,), **fields)


def test_marks_come_back_as_they_were_added_and_each_id_once(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    assert read_marks(path) == []
    marks = [compared("ada", A, B, A, note="“π”\n\r\x85\u2028 <b>"), judged("ben", "failed"), judged("ada", "skip")]
    assert all(append_mark(path, mark) for mark in marks)
    assert not append_mark(path, marks[1])
    assert read_marks(path) == marks


WRITER = """
import sys
from pathlib import Path
from treeagent.contrib.people.marks import append_mark, new_mark
while True:
    mark = new_mark(sys.argv[2], "solved", state="end", shown=("a",), note="x" * 5000)
    append_mark(Path(sys.argv[1]), mark)
    print(mark.id, flush=True)
"""


def test_two_writers_killed_again_and_again_lose_no_mark_that_was_stored(tmp_path: Path) -> None:
    path, stored = tmp_path / "marks.jsonl", list[str]()
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, str(path)]
        writers = [subprocess.Popen([*command, who], stdout=subprocess.PIPE, text=True) for who in ("ada", "ben")]
        for writer in writers:
            assert writer.stdout is not None
            stored.append(writer.stdout.readline().strip())
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        stored += [
            line.strip() for writer in writers for line in writer.communicate()[0].splitlines() if len(line) == 32
        ]
    found = [mark.id for mark in read_marks(path)]
    assert len(found) == len(set(found)) and set(stored) <= set(found)
    append_mark(path, judged("ada", "failed"))
    assert len(read_marks(path)) == len(found) + 1


def test_a_later_mark_of_one_reviewer_replaces_the_earlier_until_it_is_withdrawn() -> None:
    first, second, other = compared("ada", A, A, B), compared("ada", B, B, A), compared("ben", A, A, B)
    assert effective_marks([first, second, other]) == [second, other]
    withdrawal = new_mark("cleo", "withdraw", withdraws=second.id)
    assert effective_marks([first, second, other, withdrawal]) == [first, other]
    unsafe = new_mark("ada", "unsafe", state="s", shown=(A, B), choice=0)
    assert effective_marks([first, unsafe]) == [first, unsafe]
