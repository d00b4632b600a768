"""A language model that replaces the environment (DreamGym, section 4.1): it reads the task, the history, the action
and similar steps, reasons, and writes the outcome. Its transitions have the origin ``imagined``."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from treeagent.generators.base import Failure
from treeagent.generators.turn import Tool, make_grammar
from treeagent.types import Action, Message, State, Task, ToolCall, Transition, Unanswered
from treeagent.world_model.transition import Experience, Place, call_text, environment_history
from treeagent.world_model.wording import RESET, Answer, Wording

_ROUNDING = 0.01
"""By how much an episode's return may leave its range: a writer may round rewards."""
_EXACT = 1e-4
"""A return as near as this to a bound is the bound: three thirds of a reward with six decimals must be a success."""


class Writer(Protocol):
    """Answers prompts by greedy decoding, or by a ``Failure`` if one is too long or the answer cut off."""

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str | Failure]: ...


class Retriever(Protocol):
    """A memory of earlier steps, which finds up to ``count`` experiences for each place, most similar first."""

    def nearest(self, places: Sequence[Place], count: int) -> Sequence[Sequence[Experience]]: ...


class ExperienceModel:
    """Imagines transitions; implements ``types.Dynamics``. All steps requested in the same iteration of the event loop
    share one call of the writer.

    If an answer is malformed, or its reward puts the imagined return out of range, the new state is a dead end:
    truncated and invalid, with an ``error`` and an unknown reward, like the halt state of MOReL (Kidambi et al. 2020).

    Args:
        wording: form of prompts and answers; must be the form that the writer was trained on.
        max_steps: most actions of an episode, including malformed ones, which are refused without asking the model.
        memory: the source of the ``examples`` similar steps in a prompt, DreamGym's k.
        format: format of the agent's turns, read by the environment's ``tools``; None if a turn is a bare call.
        forbids: returns the observation for a call that is forbidden, None for allowed calls.
    """

    def __init__(
        self,
        writer: Writer,
        wording: Wording,
        *,
        max_steps: int,
        memory: Retriever | None = None,
        examples: int = 0,
        return_range: tuple[float, float] = (0.0, 1.0),
        format: str | None = "react",
        tools: Sequence[Tool] = (),
        forbids: Callable[[str | ToolCall], str | None] = lambda call: None,
    ) -> None:
        self.writer, self.wording = writer, wording
        self._memory, self._examples = memory, examples
        self._max_steps, self._return_range = max_steps, return_range
        self._grammar = make_grammar(format, tools=tools) if format is not None else None
        self._forbids = forbids
        self._batch: tuple[list[Place], asyncio.Task[Sequence[str | Failure]]] | None = None

    async def reset(self, task: Task) -> State:
        """Imagine the first observation of a task; ``Unanswered`` if the model's answer cannot be parsed."""
        answer = await self._answer(((Message("user", task.prompt),), RESET), 0.0)
        if isinstance(answer, str):
            raise Unanswered(f"the opening of task {task.id!r} cannot be imagined: {answer}")
        seen = answer.observation
        return State(task, (Message("user", seen if task.prompt in seen else f"{task.prompt}\n{seen}"),))

    async def step(self, state: State, action: Action) -> Transition:
        """Imagine one step from ``state``."""
        reward_so_far = state.snapshot if isinstance(state.snapshot, _RewardSum) else state.paid
        answer: Answer | str
        if action.error:
            answer = Answer(f"Invalid action: {action.error}", invalid=True)
        elif reason := self._forbids(action.call):
            answer = Answer(reason, invalid=True)
        else:
            history = environment_history(state.task, state.messages, self._grammar)
            answer = await self._answer((history, call_text(action.call)), reward_so_far)
        used = 1 + sum(message.role == "assistant" for message in state.messages)
        turn = Message("assistant", action.text, action.token_ids)
        if isinstance(answer, str):
            after = State(state.task, (*state.messages, turn, Message("user", f"Unanswered: {answer}")))
            return Transition(after, reward=None, truncated=True, origin="imagined", invalid=True, cost=0, error=answer)
        messages = (*state.messages, turn, Message("user", answer.observation))
        return Transition(
            State(state.task, messages, snapshot=_RewardSum(reward_so_far + answer.reward)),
            reward=answer.reward,
            terminated=answer.terminated,
            truncated=not answer.terminated and used >= self._max_steps,
            origin="imagined",
            invalid=answer.invalid,
            cost=0,
        )

    async def _answer(self, place: Place, reward_so_far: float) -> Answer | str:
        """The model's answer, or why it cannot be used. ``reward_so_far`` is the sum of the predicted rewards."""
        if self._batch is None or self._batch[1].done():
            pending: list[Place] = []
            self._batch = pending, asyncio.create_task(self._write(pending))
        pending, written = self._batch
        pending.append(place)
        number = len(pending) - 1
        # Shielded: if one step runs out of time, its cancellation must not cancel the batch.
        return self._read((await asyncio.shield(written))[number], reward_so_far)

    async def _write(self, pending: Sequence[Place]) -> Sequence[str | Failure]:
        self._batch = None
        near: Sequence[Sequence[Experience]] = [()] * len(pending)
        if self._memory is not None and self._examples:
            near = self._memory.nearest(pending, self._examples)
        prompts = [self.wording.prompt(*place, similar) for place, similar in zip(pending, near, strict=True)]
        return await self.writer.write(prompts)

    def _read(self, text: str | Failure, reward_so_far: float) -> Answer | str:
        answer = text.reason if isinstance(text, Failure) else self.wording.read(text)
        if isinstance(answer, str):
            return answer
        low, high = self._return_range
        total = reward_so_far + answer.reward
        returned = low if total <= low + _EXACT else high if total >= high - _EXACT else total
        if abs(total - returned) > _ROUNDING:
            return f"its reward {answer.reward}, after {reward_so_far:g}, leaves the returns {self._return_range}"
        return replace(answer, reward=returned - reward_so_far) if returned != total else answer


class _RewardSum(float):
    """Snapshot of an imagined state: the sum of the imagined rewards so far."""
