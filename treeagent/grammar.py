"""ReAct text to think/action and back (Yao et al. 2023). A malformed call is data: the action carries the reason."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.types import Action

_THOUGHT = "Thought: "
_ACTION = "Action: "


@dataclass(frozen=True, slots=True)
class ReAct:
    """``Thought: ...`` on the first line, ``Action: ...`` on the last."""

    def write(self, thought: str, call: str) -> str:
        return f"{_THOUGHT}{thought}\n{_ACTION}{call}" if thought else f"{_ACTION}{call}"

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        """The action that ``text`` spells; ``error`` is set where it holds no single call."""
        head, found, call = text.rpartition(_ACTION)
        thought = head.strip().removeprefix(_THOUGHT.strip()).strip()
        call = call.strip()
        error = ""
        if not found:
            call, thought, error = "", text.strip(), f"there is no line that starts with {_ACTION.strip()!r}"
        elif f"\n{_ACTION}" in f"\n{head}":
            call, error = "", "there is more than one action"
        elif not call:
            error = f"nothing follows {_ACTION.strip()!r}"
        elif "\n" in call:
            call, error = "", "the action is longer than one line"
        return Action(text, call, thought, tuple(token_ids), tuple(logprobs), error)
