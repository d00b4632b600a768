"""ReAct text to think/action and back (Yao et al. 2023). A malformed call is data: the action carries the reason."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.types import Action

_THOUGHT = "Thought: "
_ACTION = "Action: "


@dataclass(frozen=True, slots=True)
class ReAct:
    """``Thought: ...`` on the first line, ``Action: ...`` on the last."""

    @property
    def mark(self) -> str:
        """What the action's line starts with."""
        return _ACTION.rstrip()

    def begins_action(self, text: str) -> bool:
        """Whether a turn that has come so far is past its thought: a line starts with the mark."""
        return f"\n{self.mark}" in f"\n{text}"

    def write(self, thought: str, call: str) -> str:
        return f"{_THOUGHT}{thought}\n{_ACTION}{call}" if thought else f"{_ACTION}{call}"

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        """The action that ``text`` spells; ``error`` is set where it holds no single call."""
        head, found, call = text.rpartition(_ACTION)
        thought = _thought(head)
        call = call.strip()
        error = ""
        if not found:
            call, thought, error = "", text.strip(), f"there is no line that starts with {self.mark!r}"
        elif f"\n{_ACTION}" in f"\n{head}":
            call, error = "", "there is more than one action"
        elif not call:
            error = f"nothing follows {self.mark!r}"
        elif "\n" in call:
            call, error = "", "the action is longer than one line"
        return Action(text, call, thought, tuple(token_ids), tuple(logprobs), error)

    def read_thought(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        """A thought alone: the beginning of a turn, up to and with the mark after which its call is to follow."""
        return Action(text, "", _thought(text.rpartition(self.mark)[0]), tuple(token_ids), tuple(logprobs))


def _thought(head: str) -> str:
    return head.strip().removeprefix(_THOUGHT.strip()).strip()
