"""The form of prompts and answers, and the reasoning traces written by rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shop_steps import PAGE, RESULTS, experience

from treeagent.types import Message
from treeagent.world_model.trace import trace
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Answer, Wording

BARE = Wording(instructions="")
lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).map(str.strip).filter(bool)


def test_an_answer_by_hand() -> None:
    text = "Why: names 2 . new\nOutcome: invalid, terminated, reward 0.667\nObservation: a\n\nOutcome: b"
    answer = Answer("a\n\nOutcome: b", 0.667, True, True, "names 2 . new")
    assert BARE.read(text) == answer
    assert BARE.write(answer) == text


@given(
    st.builds(
        Answer,
        st.builds(str.__add__, st.lists(lines).map("\n".join), st.sampled_from(["", "\n", " ", "\n\n"])),
        st.integers(-2000, 2000).map(lambda thousandths: thousandths / 1000),
        st.booleans(),
        st.booleans(),
        lines,
    )
)
def test_any_answer_is_read_as_it_was_written(answer: Answer) -> None:
    assert BARE.read(BARE.write(answer)) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Outcome: continues, reward 0\nObservation: a",  # no line of reasoning
        "Why: a\nOutcome: continues, reward nan\nObservation: a",
        "Why: a\nOutcome: truncated, reward 0\nObservation: a",
        "Why: a\nObservation: a\nOutcome: continues, reward 0",
    ],
)
def test_an_answer_of_another_form_is_refused_with_a_reason(text: str) -> None:
    assert isinstance(BARE.read(text), str)


def test_a_prompt_ends_with_the_action_and_begins_with_the_least_similar_step() -> None:
    one = experience("search[lamp]", RESULTS, "click[1]", answer=PAGE)
    near, far = experience("click[1]", answer=PAGE), experience("click[2]", answer="no 2", invalid=True)
    (user,) = BARE.prompt(one.history, one.action, [near, far])
    assert user.role == "user"
    assert user.content == (
        "A similar step.\nBefore: search page\nAction: click[2]\n"
        "Outcome: invalid, continues, reward 0\nObservation: no 2\n\n"
        f"A similar step.\nBefore: search page\nAction: click[1]\nOutcome: continues, reward 0\nObservation: {PAGE}\n\n"
        f"search page\nAction: search[lamp]\n{RESULTS}\nTask: find a red lamp under $10\nAction: click[1]"
    )


def test_traces_by_hand() -> None:
    searched = ("search[red lamp]", RESULTS)
    opened = (*searched, "click[1]", PAGE)
    chosen = (*opened, "click[red]", "chosen: red")
    assert trace(Experience("t", (Message("user", "a lamp\nunder $10"),), "reset", "find it")) == "begins"
    assert trace(experience("search[red lamp]")) == "names nothing shown . new , shows red lamp"
    account = "find missing a missing red shown lamp shown under missing , $9 below $10"
    opening = experience(*searched, "click[1]", answer=PAGE)
    assert trace(opening) == f"names 1 red lamp $9 . new . {account}"
    back = experience(*opened, "click[< prev]", answer=RESULTS)
    assert trace(back) == f"names nothing shown . again 1 red lamp $9 . {account}"
    more = experience(*searched, "click[next >]", answer="1 red lamp $9\n4 old lamp $3")
    assert trace(more) == f"names next > . keeps 1 , adds 1 . {account}"
    assert trace(experience(*chosen, "click[blue]", answer="chosen: blue")) == "names nothing shown . new , shows blue"
    bought = experience(*chosen, "click[buy now]", answer="order placed", reward=0.75, terminated=True)
    assert trace(bought) == (
        "names nothing shown . new . find missing a missing red done lamp shown under missing , $9 below $10"
    )
