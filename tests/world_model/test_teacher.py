"""A teacher's reasoning: its prompts, which answers are kept, and what a world model learns from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from shop_steps import shop_steps

from treeagent.generators.base import Failure
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import train_tokenizer
from treeagent.types import Message, UserError
from treeagent.world_model import teacher
from treeagent.world_model.fit import answer_rows
from treeagent.world_model.teacher import Explanations, explain, question
from treeagent.world_model.trace import trace
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Answer, Wording

LOOK = Experience("t", (Message("user", "find the lamp"), Message("user", "a dark room")), "look", "a lamp", depth=0)
OPENING = Experience("t", (Message("user", "find the lamp"),), "reset", "a dark room")
TAKE = Experience(
    "t",
    (*LOOK.history, Message("assistant", "look"), Message("user", "a lamp")),
    "take lamp",
    "taken",
    reward=1.0,
    terminated=True,
)
WORDING = Wording(instructions="")


@dataclass
class Master:
    """Gives the same answer to everything, and records its prompts."""

    says: str = "the lamp is what the task asks for"
    error: str = ""
    asked: list[tuple[Message, ...]] = field(default_factory=list[tuple[Message, ...]])
    dies_at: int = 1 << 30

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str | Failure]:
        if len(self.asked) + len(prompts) > self.dies_at:
            raise UserError("the server is gone")
        self.asked += prompts
        return [Failure(self.error) if self.error else self.says for _ in prompts]


def ask(master: Master, steps: Sequence[Experience], path: Path, name: str = "m") -> Explanations:
    return explain(steps, master, WORDING, path / "teacher.sqlite", name)


def test_a_teacher_is_shown_what_came_before_and_what_happened() -> None:
    system, user = question(Wording(instructions="Explain."), TAKE)
    assert system == Message("system", "Explain.")
    assert user.content == (
        "a dark room\nAction: look\na lamp\nTask: find the lamp\nAction: take lamp\n\n"
        "The environment answered.\nOutcome: terminated, reward 1\nObservation: taken"
    )
    (_, short) = question(Wording(instructions="Explain.", observations=1), TAKE)
    assert "a dark room" not in short.content  # no more than the world model will see


def test_every_step_but_an_opening_is_explained_once_and_for_all(tmp_path: Path) -> None:
    master, done = Master(), list[int]()
    path = tmp_path / "teacher.sqlite"
    explanations = explain([OPENING, LOOK, TAKE], master, WORDING, path, "m", on_done=done.append)
    assert explanations == Explanations({one.digest(): master.says for one in (LOOK, TAKE)})
    assert (len(master.asked), sum(done)) == (2, 2)
    assert ask(master, [OPENING, LOOK, TAKE], tmp_path) == explanations
    assert len(master.asked) == 2  # all answers were stored
    ask(master, [LOOK], tmp_path, "another")
    assert len(master.asked) == 3  # another teacher has no stored answers


@pytest.mark.parametrize(
    "said",
    [
        "Why: it is\n the lamp\n",
        "  it is the   lamp",
        "<think>hm. Why: no\n</think>\nit is the lamp",
        "<think>\n</think>Why: it is the lamp",
    ],
)
def test_a_line_is_what_stays_of_an_answer(tmp_path: Path, said: str) -> None:
    explanations = ask(Master(said), [LOOK], tmp_path)
    assert explanations.reasons == {LOOK.digest(): "it is the lamp"}
    assert Wording().read(Wording().target(LOOK, explanations.reasons[LOOK.digest()])) == Answer(
        "a lamp", why="it is the lamp"
    )


@pytest.mark.parametrize(
    ("master", "why"),
    [
        (Master(error="no answer within 3 s"), "no answer within 3 s"),
        (Master("<think>so many thoughts</think> "), "the answer '<think>so many thoughts</think> ' has no line"),
        (Master("<think>cut off"), "the answer '<think>cut off' has no line"),
        (Master("Why:"), "the answer 'Why:' has no line"),
    ],
)
def test_a_step_without_a_line_is_counted_and_asked_for_again(tmp_path: Path, master: Master, why: str) -> None:
    explanations = ask(master, [LOOK, TAKE], tmp_path)
    assert explanations == Explanations({}, 2, why)
    assert not ask(Master(), [LOOK, TAKE], tmp_path).unexplained


def test_what_was_paid_for_outlives_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "_BATCH", 2)
    steps = [one for one in shop_steps(3) if not one.opens][:5]
    master = Master(dies_at=4)
    with pytest.raises(UserError, match="the server is gone"):
        ask(master, steps, tmp_path)
    again = Master()
    assert set(ask(again, steps, tmp_path).reasons) == {one.digest() for one in steps}
    assert (len(master.asked), len(again.asked)) == (4, 1)


def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "teacher.sqlite").write_bytes(b"no database" * 500)
    with pytest.raises(
        UserError, match=r"the reasons in .*teacher.sqlite cannot be used .*: free some space, or remove"
    ):
        ask(Master(), [LOOK], tmp_path)


def test_a_world_model_learns_the_teachers_line_or_else_the_rules() -> None:
    shape = ScratchConfig(vocabulary=400)
    chat = ChatFormat(train_tokenizer([WORDING.target(LOOK), WORDING.target(TAKE, "so it is")], shape))
    rows = answer_rows([LOOK, TAKE], chat, WORDING, reasons={TAKE.digest(): "so it is"})
    ruled, taught = (chat.decode(row.token_ids[row.mask.index(True) :]) for row in rows)
    assert ruled.startswith(f"Why: {trace(LOOK)}\nOutcome: continues, reward 0")
    assert taught.startswith("Why: so it is\nOutcome: terminated, reward 1")
    assert "so it is" not in Wording(reasoning=False).target(TAKE, "so it is")
