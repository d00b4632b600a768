"""Prompts and answers of a world model. Answers have the same form for a small model that is trained on it and for a
large model that gets instructions:

    Why: names 2 red lamp $9 . new
    Outcome: continues, reward 0
    Observation: red lamp $9
    color: Red/Blue

The observation comes last and extends to the end of the answer, so it may contain any text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from treeagent.types import Message
from treeagent.world_model.trace import trace
from treeagent.world_model.transition import Experience

_WHY = "Why: one line of reasoning about what the action does here, and whether the task is done\n"
INSTRUCTIONS = f"""\
You are the environment that an agent acts in. You are given what happened so far, its task and its next action, \
sometimes with steps that the environment took before. Say what the environment answers, in exactly this form:
{_WHY}Outcome: continues, reward 0
Observation: what the agent sees next, in the format of the earlier observations
The outcome is "continues" or "terminated"; it begins with "invalid, " where the action is impossible here, and the \
observation then says why. The reward is 0 until the task ends, and 1 only for complete success. Do not help the \
agent: an action that would fail must fail."""
WITHOUT_REASONING = INSTRUCTIONS.replace(_WHY, "")
"""The instructions for answers without a line of reasoning."""
RESET = "reset"
"""The action that opens an episode."""
_ANSWER = re.compile(
    r"(?:Why: (?P<why>[^\n]*)\n)?Outcome: (?P<invalid>invalid, )?(?P<end>continues|terminated), "
    r"reward (?P<reward>-?\d+(?:\.\d+)?)\nObservation: ?(?P<observation>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A world model's answer for one step."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    invalid: bool = False
    why: str = ""
    """The line of reasoning at the start of the answer."""


@dataclass(frozen=True, slots=True)
class Wording:
    """Writes prompts and answers as text, and parses answers."""

    instructions: str = INSTRUCTIONS
    """The system message; empty for none, as for a model that is trained on answers."""
    reasoning: bool = True
    """Whether an answer begins with a line of reasoning."""
    observations: int | None = None
    """Number of the last observations that a prompt shows; None shows all."""

    def prompt(
        self, history: Sequence[Message], action: str, examples: Sequence[Experience] = ()
    ) -> tuple[Message, ...]:
        """The prompt for the answer to an action, after similar steps (``examples``), the most similar one last: as
        earlier turns for a model that gets instructions, in the same message for one trained from scratch. The task
        comes late, because a small model copies best over short distances."""
        task, *happened = self._shown(history)
        lines = (f"Action: {each.content}" if each.role == "assistant" else each.content for each in happened)
        asked = "\n".join([*lines, f"Task: {task.content}", f"Action: {action}"])
        similar = [(f"Before: {one.seen}\nAction: {one.action}", one) for one in examples[::-1]]
        if self.instructions:
            turns = ((Message("user", step), Message("assistant", self.target(_as_seen(one)))) for step, one in similar)
            return (Message("system", self.instructions), *chain.from_iterable(turns), Message("user", asked))
        parts = [f"A similar step.\n{step}\n{self.write(answer_of(one))}" for step, one in similar]
        return (Message("user", "\n\n".join([*parts, asked])),)

    def target(self, one: Experience) -> str:
        """The answer to train on; ``trace`` writes the reasoning from what the prompt shows."""
        seen = replace(one, history=self._shown(one.history))
        return self.write(answer_of(one, trace(seen) if self.reasoning else ""))

    def _shown(self, history: Sequence[Message]) -> tuple[Message, ...]:
        task, *happened = history
        observations = [index for index, message in enumerate(happened) if message.role != "assistant"]
        left_out = 0 if self.observations is None or not observations else observations[-self.observations :][0]
        return (task, *happened[left_out:])

    def write(self, answer: Answer) -> str:
        why = f"Why: {answer.why}\n" if answer.why else ""
        outcome = f"{'invalid, ' if answer.invalid else ''}{'terminated' if answer.terminated else 'continues'}"
        return f"{why}Outcome: {outcome}, reward {number(answer.reward)}\nObservation: {answer.observation}"

    def read(self, text: str) -> Answer | str:
        """Parse a text as an answer. Returns the answer, or why the text is not a valid one."""
        match = _ANSWER.fullmatch(text.lstrip())
        if match is None:
            return f"the answer {text[:80]!r} is not of the form {'Why, ' * self.reasoning}Outcome, Observation"
        if self.reasoning and not match["why"]:
            return "the answer gives no reasoning"
        return Answer(
            match["observation"],
            float(match["reward"]),
            match["end"] == "terminated",
            match["invalid"] is not None,
            match["why"] or "",
        )


def _as_seen(one: Experience) -> Experience:
    """A similar step without its task and without what came before its last observation."""
    return one if one.opens else replace(one, history=(Message("user", ""), one.history[-1]))


def answer_of(one: Experience, why: str = "") -> Answer:
    return Answer(one.observation, one.reward, one.terminated, one.invalid, why)


def number(value: float) -> str:
    """A number with at most six decimals, without trailing zeros."""
    return f"{round(value, 6) + 0.0:.6f}".rstrip("0").rstrip(".")  # + 0.0 turns -0.0 into 0.0
