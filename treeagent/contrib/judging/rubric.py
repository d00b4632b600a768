"""Scores of tool calls against a reference: when (call or answer), which (tool), and how (arguments, one by one). Each
call also gets one of the names ``right``, ``needless``, ``missed``, ``wrong_tool``, ``wrong_arguments`` and
``malformed``."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from treeagent.envs.answers import checked_step, checked_turn
from treeagent.envs.base import EnvWrapper, StepResult, ToolSpec
from treeagent.envs.calls import as_call, read_call
from treeagent.types import ToolCall


class RubricEnv(EnvWrapper):
    """Adds the scores of each call to ``info["components"]``. The right calls are those of the environment's method
    ``reference``, or else the next call of its demonstrator. Nothing that an agent sees depends on them."""

    def step(self, action: str | ToolCall) -> StepResult:
        tools = self.env.tools()
        scores = call_scores(action, tools, self.right_calls(tools)) if tools else {}
        observation, reward, terminated, truncated, info = checked_step(self.env.step(action))
        named = info.get("components", {})
        given: dict[str, Any] = dict(named) if isinstance(named, Mapping) else {}
        return observation, reward, terminated, truncated, {**info, "components": {**scores, **given}}

    def right_calls(self, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
        """The right calls in the current state, or None if none is known."""
        find = getattr(self.env, "reference", None)
        calls: Sequence[str | ToolCall] | None = find() if callable(find) else None
        if calls is None and (player := self.env.demonstrator(0.0)) is not None:  # a new one, as it may have state
            _, call = checked_turn(player.act(random.Random(0)))
            calls = [call]
        if calls is None:
            return None
        read = [read_call(as_call(each, tools), tools) for each in calls]
        return [each for each in read if isinstance(each, ToolCall)] or None


def call_scores(
    action: str | ToolCall, tools: Sequence[ToolSpec], reference: Sequence[ToolCall] | None
) -> dict[str, float]:
    """The scores of one call, each in [0, 1].

    * ``when``: 1 if the agent calls when a call is due, and answers when an answer is due.
    * ``which``: 1 if a call of the right kind names a right tool.
    * ``how``: share of the parameters of the right tool that match.
    * ``needless``: 1 for a call when the answer is due. ``missed``: 1 for an answer when a call is due. ``wrong_tool``:
      1 for a tool that the reference does not name. ``wrong_arguments``: 1 - ``how``. ``malformed``: 1 for anything
      that is not a call that fits the tools. ``right``: 1 for a call that matches the reference.

    ``reference``: the calls that are right here. If none is known, only ``malformed`` is scored.
    """
    call = read_call(as_call(action, tools), tools)
    if isinstance(call, str):
        return {"malformed": 1.0}
    if not reference:
        return {}
    answers = {tool.name for tool in tools if tool.answers}
    if answers:
        due = any(each.name in answers for each in reference)
        fine = any((each.name in answers) == (call.name in answers) for each in reference)
        if not fine:
            return {"when": 0.0, "needless" if due else "missed": 1.0}
    scores = {"when": 1.0} if answers else {}
    same = [each for each in reference if each.name == call.name]
    if not same:
        return scores | {"which": 0.0, "wrong_tool": 1.0}
    how = max(matching(call.arguments, each.arguments) for each in same)
    calls = {"right": 1.0} if how == 1.0 else {"wrong_arguments": 1.0 - how}
    return scores | {"which": 1.0, "how": how} | calls


def matching(given: Mapping[str, object], wanted: Mapping[str, object]) -> float:
    """Share of the parameters, given or wanted, that have the wanted value; 1 if there are none. Texts match regardless
    of case and white space, numbers regardless of type (2 and 2.0), lists and objects element by element."""
    keys = given.keys() | wanted.keys()
    if not keys:
        return 1.0
    return sum(key in given and key in wanted and _is_equal(given[key], wanted[key]) for key in keys) / len(keys)


def _is_equal(given: object, wanted: object) -> bool:
    match given, wanted:
        case (bool(), _) | (_, bool()):
            return given is wanted
        case (int() | float(), int() | float()):
            return math.isclose(given, wanted, rel_tol=1e-9)
        case (str(), str()):
            return " ".join(given.casefold().split()) == " ".join(wanted.casefold().split())
        case (list() | tuple(), list() | tuple()):
            return len(given) == len(wanted) and all(map(_is_equal, given, wanted))
        case (Mapping(), Mapping()):
            return given.keys() == wanted.keys() and all(_is_equal(given[key], wanted[key]) for key in given)
    return given == wanted
