"""The turn of Agent Q (Putta et al. 2024, section 4.1) as text: a plan in the first turn, a thought and a command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from treeagent.generators.turn import ReAct, Tool


@dataclass(frozen=True, slots=True)
class PlanThoughtCommand(ReAct):
    """``Plan: ...``, ``Thought: ...`` and ``Command: ...``, a line each. A thought with a plan has it as first line."""

    tools: Sequence[Tool] = ()
    mark: ClassVar[str] = "Command:"
    thoughts: ClassVar[Mapping[str, str]] = {"Plan:": "your plan, in your first turn alone", **ReAct.thoughts}
