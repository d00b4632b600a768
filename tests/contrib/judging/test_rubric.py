"""Scores of tool calls by hand, and how they reach the reward."""

import asyncio
from pathlib import Path

import pytest
from judged_steps import place

from treeagent.contrib.judging.rubric import RubricEnv, call_scores
from treeagent.envs.base import ToolSpec
from treeagent.envs.dynamics import EnvDynamics
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.pipeline.rewards import RewardedDynamics, make_reward
from treeagent.types import Action, ToolCall

LOOK = ToolSpec(
    "look", "", {"properties": {"place": {"type": "string"}, "depth": {"type": "integer"}}, "required": ["place"]}
)
SAY = ToolSpec("say", "", {"properties": {"text": {"type": "string"}}, "required": ["text"]}, answers=True)
TOOLS = (LOOK, SAY)
RIGHT = [ToolCall("look", {"place": "the hall", "depth": 2})]


@pytest.mark.parametrize(
    ("call", "reference", "scores"),
    [
        (ToolCall("look", {"place": "The  Hall", "depth": 2}), RIGHT, {"when": 1, "which": 1, "how": 1, "right": 1}),
        (
            ToolCall("look", {"place": "attic", "depth": 2}),
            RIGHT,
            {"when": 1, "which": 1, "how": 0.5, "wrong_arguments": 0.5},
        ),
        (ToolCall("say", {"text": "done"}), RIGHT, {"when": 0, "missed": 1}),
        (ToolCall("look", {"place": "x"}), [ToolCall("say", {"text": "y"})], {"when": 0, "needless": 1}),
        (ToolCall("look", {"place": "x"}), None, {}),
        (ToolCall("look", {"depth": "two"}), RIGHT, {"malformed": 1}),
        ("hm", RIGHT, {"malformed": 1}),
    ],
)
def test_a_call_is_scored_on_the_axes_that_apply(
    call: str | ToolCall, reference: list[ToolCall] | None, scores: dict[str, float]
) -> None:
    assert call_scores(call, TOOLS, reference) == pytest.approx(scores)


def test_the_demonstrators_call_is_right_and_is_paid(tmp_path: Path) -> None:
    env = RubricEnv(ShopEnv(ShopOptions(products=100)))
    [task] = env.tasks("train", 1)
    weights = {"outcome": 1.0, "right": 0.25, "malformed": -0.5}
    reward = make_reward(place(tmp_path, "weighted", weights=weights))
    dynamics = RewardedDynamics(EnvDynamics(env, max_steps=9), reward)

    async def play() -> list[float | None]:
        state = await dynamics.reset(task)
        [right] = env.right_calls(env.tools()) or []
        steps = [await dynamics.step(state, Action("x", each)) for each in (right, "nonsense")]
        return [each.reward for each in steps]

    paid = asyncio.run(play())
    assert paid[0] in (0.25, 1.25) and paid[1] == -0.5
