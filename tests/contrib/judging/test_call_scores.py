"""The table of a call's errors, by hand."""

import pytest

from treeagent.contrib.judging.rubric import Reference, call_scores, matching
from treeagent.contrib.worlds.sokoban import SokobanEnv
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import text_tool
from treeagent.types import Action, Task, ToolCall

ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        "required": ["x", "y"],
        "additionalProperties": False,
    },
)
TOOLS = (ADD, text_tool("find", "Find.", "name"), text_tool("answer", "Answer.", "text", answers=True))
ADDING = [ToolCall("add", {"x": 1, "y": 2}), ToolCall("find", {"name": "mira"})]
ANSWERING = [ToolCall("answer", {"text": "red"})]


@pytest.mark.parametrize(
    ("call", "reference", "scores"),
    [
        ("add[1, 2]", ADDING, {"when": 1, "which": 1, "how": 1, "right": 1}),
        ("find[ Mira ]", ADDING, {"when": 1, "which": 1, "how": 1, "right": 1}),
        ("add[1, 3]", ADDING, {"when": 1, "which": 1, "how": 0.5, "wrong_arguments": 0.5}),
        ("find[tom]", ADDING, {"when": 1, "which": 1, "how": 0, "wrong_arguments": 1}),
        ("find[mira]", ADDING[:1], {"when": 1, "which": 0, "wrong_tool": 1}),
        ("answer[red]", ADDING, {"when": 0, "missed": 1}),
        ("find[mira]", ANSWERING, {"when": 0, "needless": 1}),
        ("answer[blue]", ANSWERING, {"when": 1, "which": 1, "how": 0, "wrong_arguments": 1}),
        ("find[mira]", None, {"which": 1, "how": 1}),
        ("what is it", ADDING, {"malformed": 1, "format": -0.1}),
        (ToolCall("sing", {}), ADDING, {"malformed": 1, "format": -0.1, "which": 0}),
        (ToolCall("add", {"x": 1, "y": "two"}), None, {"malformed": 1, "format": -0.1, "which": 1, "how": 0.5}),
        (ToolCall("add", {"x": 1, "z": 2}), None, {"malformed": 1, "format": -0.1, "which": 1, "how": 1 / 3}),
    ],
)
def test_each_call_has_its_axes_and_one_kind_of_error(
    call: str | ToolCall, reference: list[ToolCall] | None, scores: dict[str, float]
) -> None:
    assert call_scores(Action(str(call), call), TOOLS, reference, 10) == pytest.approx(scores)


def test_a_turn_without_a_call_is_malformed_even_where_its_text_names_a_tool() -> None:
    action = Action("find[mira", "", error="no bracket closes")
    assert call_scores(action, TOOLS, ADDING, 4) == {"malformed": 1.0, "format": -0.25}


def test_a_text_that_names_no_tool_is_scored_as_a_call_of_the_only_tool() -> None:
    env = SokobanEnv()
    env.reset(options={"task": Task("room", "push", data={"room": ["#####", "#PXO#", "#####", "#####", "#####"]})})
    reference = Reference(env, env.tools()).right_calls()  # the demonstrator's next call is the text "right"
    assert reference == [ToolCall("act", {"moves": "right"})]
    right, wrong = {"which": 1.0, "how": 1.0, "right": 1.0}, {"which": 1.0, "how": 0.0, "wrong_arguments": 1.0}
    assert call_scores(Action("right", "right"), env.tools(), reference, 10) == right
    assert call_scores(Action("left", "left"), env.tools(), reference, 10) == wrong


def test_format_of_the_longest_episode_costs_at_most_1() -> None:
    bad = Action("?", "", error="no call")
    assert sum(call_scores(bad, TOOLS, None, 20)["format"] for _ in range(20)) == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("given", "wanted", "share"),
    [
        ({}, {}, 1.0),
        ({"a": 2}, {"a": 2.0}, 1.0),
        ({"a": True}, {"a": 1}, 0.0),
        ({"a": "Red  Lamp"}, {"a": "red lamp"}, 1.0),
        ({"a": [1, "B"], "b": {"c": 1}}, {"a": [1, "b"], "b": {"c": 2}}, 0.5),
        ({"a": 1, "b": 2}, {"a": 1}, 0.5),
        ({"a": 1}, {"a": 1, "b": 2}, 0.5),
        ({"a": None}, {"a": None}, 1.0),
    ],
)
def test_parameters_match_one_by_one(given: dict[str, object], wanted: dict[str, object], share: float) -> None:
    assert matching(given, wanted) == share
