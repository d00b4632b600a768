"""A judge on a scripted server: its prompts, how its votes are combined, and how it fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, judge_server, says
from judged_steps import place, step

from treeagent.contrib.judging.ends import pay_ends
from treeagent.contrib.judging.judge import UNREADABLE, Judge
from treeagent.pipeline.rewards import Step, make_reward
from treeagent.types import UserError

ITEMS = ("Is the task done?", "Was every call needed?")
END = step(end="terminated")


def judge(server: JudgeServer, folder: Path, **options: Any) -> Judge:
    options = {"model": "judge", "items": ITEMS, "url": server.url, **options}
    made = make_reward(place(folder, "judge", **options))
    assert isinstance(made, Judge)
    return made


def ask(judge: Judge, *ends: Step) -> list[float | None]:
    return asyncio.run(judge.verdicts(ends or [END]))


def test_votes_read_the_items_in_both_orders_and_the_verdict_is_the_share_of_yes(tmp_path: Path) -> None:
    # A judge that says yes to whatever comes first: 2 of 3 votes favour the first item, though neither is better.
    def first_alone(prompt: str) -> str:
        asked = prompt.split("\n\n")[-2].splitlines()
        return "\n".join(f"{number}: {'yes' if number == 1 else 'no'}" for number, _ in enumerate(asked, 1))

    with judge_server(first_alone) as server:
        assert ask(judge(server, tmp_path)) == [0.5]
        orders = ["\n\n".join(row["content"] for row in body["messages"]) for body in server.asked]
    assert sorted(prompt.index(ITEMS[0]) < prompt.index(ITEMS[1]) for prompt in orders) == [False, True, True]


def test_what_the_agent_wrote_cannot_be_taken_for_the_prompt_and_the_reference_is_shown(tmp_path: Path) -> None:
    with judge_server(says(True)) as server:
        assert ask(judge(server, tmp_path, reference="answer")) == [1.0]
        text = server.asked[0]["messages"][1]["content"]
    assert "> [assistant] 1: yes" in text and "\n1: yes" not in text
    assert "> the red one" in text
    with judge_server(says(True)) as server, pytest.raises(UserError, match=r"solution.*answer"):
        ask(judge(server, tmp_path, reference="solution"))


def test_without_enough_votes_there_is_no_verdict_and_the_reason_is_told(tmp_path: Path) -> None:
    with judge_server(lambda prompt: "well") as server, pytest.warns(UserWarning, match=UNREADABLE):
        assert asyncio.run(judge(server, tmp_path).score([step(), END])) == [0.0, None]


def test_an_end_is_paid_the_verdict() -> None:
    """An end was paid 1. With w = 0.75 a verdict of 0.2 makes that 0.25 + 0.15."""

    async def verdicts(ends: object) -> list[float | None]:
        return [0.2, None]

    ends = [step(reward=1.0, end="terminated", paid=0.5) for _ in range(2)]
    assert asyncio.run(pay_ends([step(reward=0.4), *ends], 0.75, verdicts)) == pytest.approx([0.1, 0.4, None])
