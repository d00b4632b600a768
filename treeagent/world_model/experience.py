"""A language model in place of the environment (DreamGym, section 4.1): it reads the task, the history, the action and
similar steps, reasons, and writes what comes next. Search uses it like any dynamics; its transitions have the origin
``imagined``."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from treeagent.generators.grammar import Format, written_in
from treeagent.types import Action, Message, State, Task, ToolCall, Transition, Unanswered, UserError, derive_seed
from treeagent.world_model.transition import Experience, Place, call_text, played
from treeagent.world_model.wording import RESET, Answer, Wording

_ROUNDING = 0.01
"""Tolerance of an episode's return: rewards are written with three decimals."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A text that a model wrote."""

    text: str
    error: str = ""
    """Why the text is incomplete: the prompt was too long, or the answer was cut off. Empty if it is complete."""


class Writer(Protocol):
    """A model that answers prompts, such as a small local or a large remote one."""

    async def write(self, prompts: Sequence[tuple[Message, ...]], seeds: Sequence[int]) -> Sequence[Draft]:
        """One text per prompt. The text for ``prompts[i]`` depends on ``seeds[i]`` alone."""
        ...


class Retriever(Protocol):
    """A memory of earlier steps."""

    def nearest(self, places: Sequence[Place], count: int) -> Sequence[Sequence[Experience]]:
        """Up to ``count`` experiences per place, most similar first."""
        ...


@dataclass(frozen=True, slots=True)
class _Question:
    """Asks what follows an action at a place."""

    place: Place
    seed: int
    earned: float
    """Sum of the rewards imagined on the way there."""


class ExperienceModel:
    """Imagines transitions; implements ``types.Dynamics``.

    Steps that are asked for in the same turn of the event loop, such as those of a batch, are answered by one call of
    the writer. A step depends only on its state, its action and ``seed``, not on what else is asked. It may start from
    any state, also from one of a real environment.

    An answer may be malformed, or its reward may take the imagined return out of range. It is then asked for again, up
    to ``attempts`` times. After that the state is a dead end: truncated and invalid, with the reason as its ``error``
    and an unknown reward (None, not 0); search counts it, but not as a visit. The same holds for an end of the episode
    with too little confidence. Like the halt state of MOReL (Kidambi et al. 2020), it keeps search away from where the
    model knows too little, without putting a value on it. Malformed actions are refused by rule, in the words of
    ``EnvDynamics``.

    Args:
        writer: the model.
        wording: form of its prompts and answers; must be the form that it was trained on.
        max_steps: most actions of an episode, including malformed ones.
        memory: the source of similar steps.
        examples: number of similar steps in a prompt, DreamGym's k.
        attempts: how often a step is asked for at most; more than 1 helps only if the writer samples.
        return_range: the least and the greatest possible return of an episode.
        reveal_reward: False hides every reward, as at evaluation.
        format: form of the agent's turns; None if a turn is a bare call, as with ``ImaginedEnv``.
        forbids: the environment's answer to a call that it forbids, without asking the model; None for other calls.
        seed: seed of the model's draws.
    """

    def __init__(
        self,
        writer: Writer,
        wording: Wording | None = None,
        *,
        max_steps: int,
        memory: Retriever | None = None,
        examples: int = 0,
        attempts: int = 1,
        return_range: tuple[float, float] = (0.0, 1.0),
        reveal_reward: bool = True,
        format: Format | None = "react",
        forbids: Callable[[str | ToolCall], str | None] = lambda call: None,
        seed: int = 0,
    ) -> None:
        if max_steps < 1 or attempts < 1 or examples < 0:
            raise UserError(
                f"max_steps is {max_steps}, attempts {attempts}, examples {examples}: give at least 1, 1 and 0"
            )
        if examples and memory is None:
            raise UserError(
                f"examples is {examples}, but there is no memory to take them from: give one, or 0 examples"
            )
        self.writer = writer
        self.wording = wording or Wording()
        self.memory = memory
        self._max_steps = max_steps
        self._examples = examples
        self._attempts = attempts
        self._return_range = return_range
        self._reveal_reward = reveal_reward
        self._format = format
        self._forbids = forbids
        self._seed = seed
        self._batch: tuple[list[_Question], asyncio.Task[list[Answer | str]]] | None = None

    async def reset(self, task: Task) -> State:
        """The imagined opening of a task.

        Raises:
            Unanswered: the model's answer was not readable.
        """
        seed = derive_seed(self._seed, task.id, task.seed, RESET)
        answer = await self._answer(_Question(((Message("user", task.prompt),), RESET), seed, 0.0))
        if isinstance(answer, str):
            raise Unanswered(f"the opening of task {task.id!r} cannot be imagined: {answer}")
        return State(task, (Message("user", opening(task, answer.observation)),))

    async def step(self, state: State, action: Action) -> Transition:
        """Imagine one step from ``state``.

        Raises:
            ValueError: the state's task is over.
        """
        if state.ended:
            raise ValueError(f"task {state.task.id!r} is over: a terminal state has no next step")
        if action.error:
            return self._transition(state, action, _refusal(action))
        if reason := self._forbids(action.call):
            return self._transition(state, action, Answer(reason, invalid=True))
        place = self._history(state), call_text(action.call)
        question = _Question(place, self._path_seed(state, place), _earned(state))
        return self._transition(state, action, await self._answer(question))

    async def _answer(self, question: _Question) -> Answer | str:
        """The model's answer, or why it is not readable. All questions of one turn of the event loop form one batch."""
        if self._batch is None or self._batch[1].done():
            asked: list[_Question] = []
            self._batch = asked, asyncio.create_task(self._answer_batch(asked))
        asked, answered = self._batch
        asked.append(question)
        place = len(asked) - 1
        # Shielded: cancelling one step, which ran out of time, must not cancel the batch.
        return (await asyncio.shield(answered))[place]

    async def _answer_batch(self, asked: Sequence[_Question]) -> list[Answer | str]:
        self._batch = None
        return await self._answers(asked)

    def _history(self, state: State) -> tuple[Message, ...]:
        turns = (message.content for message in state.messages if message.role == "assistant")
        grammar = written_in(self._format, turns) if self._format is not None else None
        return played(state.task, state.messages, grammar)

    def _path_seed(self, state: State, place: Place) -> int:
        said = (message.content for message in place[0])
        return derive_seed(self._seed, state.task.id, state.task.seed, *said, place[1])

    async def _answers(self, asked: Sequence[_Question]) -> list[Answer | str]:
        """The model's answer to each question, or why it is not readable."""
        places = [question.place for question in asked]
        near: Sequence[Sequence[Experience]] = [()] * len(places)
        if self.memory is not None and self._examples:
            near = self.memory.nearest(places, self._examples)
        prompts = [self.wording.prompt(*place, similar) for place, similar in zip(places, near, strict=True)]
        answers: list[Answer | str] = [""] * len(places)
        waiting = list(range(len(places)))
        for attempt in range(self._attempts):
            if not waiting:
                break
            drafts = await self.writer.write(
                [prompts[place] for place in waiting], [derive_seed(asked[place].seed, attempt) for place in waiting]
            )
            for place, draft in zip(waiting, drafts, strict=True):
                answers[place] = self._read(draft, asked[place].earned)
            waiting = [place for place in waiting if isinstance(answers[place], str)]
        return answers

    def _read(self, draft: Draft, earned: float) -> Answer | str:
        answer = draft.error or self.wording.read(draft.text)
        if isinstance(answer, str):
            return answer
        low, high = self._return_range
        returned = min(max(earned + answer.reward, low), high)
        if abs(earned + answer.reward - returned) > _ROUNDING:
            return f"the answer's reward {answer.reward}, after {earned:g}, leaves the returns {self._return_range}"
        return replace(answer, reward=returned - earned) if returned != earned + answer.reward else answer

    def _transition(self, state: State, action: Action, answer: Answer | str) -> Transition:
        used = 1 + sum(message.role == "assistant" for message in state.messages)
        said = Message("assistant", action.text, action.token_ids)
        if isinstance(answer, str):
            after = State(state.task, (*state.messages, said, Message("user", f"Unanswered: {answer}")))
            return Transition(
                after,
                reward=None,
                truncated=True,
                origin="imagined",
                invalid=True,
                cost=0,
                error=answer,
            )
        messages = (*state.messages, said, Message("user", answer.observation))
        after = State(state.task, messages, snapshot=_Earned(_earned(state) + answer.reward))
        return Transition(
            after,
            reward=answer.reward if self._reveal_reward else None,
            terminated=answer.terminated,
            truncated=not answer.terminated and used >= self._max_steps,
            origin="imagined",
            invalid=answer.invalid,
            cost=0,
        )


@dataclass(frozen=True, slots=True)
class _Earned:
    """Snapshot of an imagined state."""

    reward: float
    """Sum of the rewards of the imagined steps so far."""


def _earned(state: State) -> float:
    return state.snapshot.reward if isinstance(state.snapshot, _Earned) else 0.0


def _refusal(action: Action) -> Answer:
    """The answer to a malformed action."""
    return Answer(f"Invalid action: {action.error}", invalid=True)


def opening(task: Task, observation: str) -> str:
    """The conversation's first message."""
    return observation if task.prompt in observation else f"{task.prompt}\n{observation}"
