"""Return to earlier states of an episode, by snapshots or by checked replays from the start of the task."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from treeagent.envs.answers import checked_reset, checked_step
from treeagent.envs.base import Env, StepResult, ToolSpec
from treeagent.envs.calls import as_call
from treeagent.types import Task, ToolCall, derive_seed


class ReplayDivergence(RuntimeError):
    """The same reset and actions led to a different observation, so the environment cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A state in an episode of a ``Forkable``. A snapshot lives as long as its mark."""

    task: Task
    actions: tuple[str | ToolCall, ...] = field(default=(), compare=False)
    hashes: tuple[str, ...] = ()
    """Hash of the reset's observation, followed by one hash for each action's observation."""
    state_seed: int = field(default=0, repr=False)
    """Seed of a stochastic environment here, which derives from the seeds and actions that led here. Marks are compared
    by it instead of by the actions, because Python takes the arguments 1 and True as equal."""
    snapshots: list[object] = field(default_factory=list[object], compare=False, repr=False)
    """One snapshot, or none yet."""
    visits: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)
    """How often ``goto`` has come here, as the only element."""


class Forkable:
    """Adds ``mark`` and ``goto`` to any environment, by exact snapshots or else by a reset and a checked replay.

    A restored random state would let a search foresee random outcomes, so ``goto`` reseeds a stochastic environment.
    The new seed depends on ``seed``, the task, the actions and visits that led to the mark, and how often it was
    visited before, but not on other trees. Without exact snapshots, a replay repeats the random outcomes.

    Args:
        env: the environment; nothing else may step it.
        seed: seed of the random outcomes of a stochastic environment.
    """

    def __init__(self, env: Env, *, seed: int = 0) -> None:
        self.env = env
        self.replayed_steps = 0
        """Steps taken so far to return to earlier states."""
        self._seed = seed
        self._state_seed = 0
        self._current: Mark | None = None
        self._tools: Sequence[ToolSpec] | None = None

    def reset(self, task: Task) -> tuple[str, dict[str, object]]:
        self.forget_state()
        observation, info = checked_reset(self.env.reset(seed=task.seed, options={"task": task}))
        self._state_seed = derive_seed(self._seed, task.id, task.seed)
        self._current = Mark(task, (), (_hash(observation),), self._state_seed)
        return observation, info

    def step(self, action: str | ToolCall) -> StepResult:
        """Take an action, as ``Env.step``. A text that names a tool becomes a ``ToolCall`` (``calls.as_call``)."""
        mark = self._current_mark()
        self.forget_state()
        if self._tools is None:
            self._tools = self.env.tools()
        result = checked_step(self.env.step(as_call(action, self._tools)))
        self._state_seed = derive_seed(self._state_seed, repr(action))
        hashes = (*mark.hashes, _hash(result[0]))
        self._current = Mark(mark.task, (*mark.actions, action), hashes, self._state_seed)
        return result

    def mark(self) -> Mark:
        mark = self._current_mark()
        if self.env.snapshot_kind == "exact" and not mark.snapshots:
            mark.snapshots.append(self.env.snapshot())
        return mark

    def goto(self, mark: Mark) -> None:
        """Return to the state of ``mark``. Raises ``ReplayDivergence`` if a replayed observation is another one."""
        if self.env.snapshot_kind == "exact":
            self.forget_state()
            [snapshot] = mark.snapshots
            if self.env.stochastic:
                self._state_seed = derive_seed(mark.state_seed, mark.visits[0]) % 2**31  # some take no larger seeds
                mark.visits[0] += 1
                self.env.restore(snapshot, reseed=self._state_seed)
            else:
                self._state_seed = mark.state_seed
                self.env.restore(snapshot)
            self._current = mark
        elif mark != self._current:
            if self.env.snapshot_kind == "none" and mark.actions:
                raise ValueError("the environment's snapshot_kind is 'none': search it with a world model")
            self._compare(mark, 0, self.reset(mark.task)[0])
            for number, action in enumerate(mark.actions, start=1):
                self.replayed_steps += 1
                self._compare(mark, number, self.step(action)[0])

    def forget_state(self) -> None:
        self._current = None

    def _current_mark(self) -> Mark:
        if self._current is None:
            raise ValueError("no episode has begun: call reset(task) first")
        return self._current

    def _compare(self, mark: Mark, step: int, observation: str) -> None:
        if _hash(observation) != mark.hashes[step]:
            self.forget_state()
            action = f" (action {mark.actions[step - 1]!r})" if step else " (reset)"
            raise ReplayDivergence(
                f"replay of task {mark.task.id!r} diverged at step {step}{action}: it now reads {observation!r}"
            )


def _hash(observation: str) -> str:
    return hashlib.blake2b(observation.encode(), digest_size=8).hexdigest()
