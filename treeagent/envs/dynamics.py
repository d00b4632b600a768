"""A real environment as a ``Dynamics``: search can step it from any state, in any order. It returns to an earlier state
by a snapshot, or by a reset and a checked replay of the actions."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from treeagent.envs.answers import (
    checked_images,
    checked_key,
    checked_legal,
    checked_reset,
    checked_step,
    checked_task,
    checked_verdict,
    contained,
)
from treeagent.envs.base import Env, EnvBroken, StepResult, ToolSpec, opening
from treeagent.envs.calls import as_call
from treeagent.envs.pool import EnvPool
from treeagent.types import Action, Message, State, Task, ToolCall, Transition, derive_seed

Answer = TypeVar("Answer")


class ReplayDivergence(RuntimeError):
    """The same reset and actions led to a different observation, so the environment cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A state in an episode of a ``Forkable``."""

    task: Task
    actions: tuple[str | ToolCall, ...] = field(default=(), compare=False)
    hashes: tuple[str, ...] = ()
    """Hash of the reset's observation, followed by one for each action's observation."""
    state_seed: int = field(default=0, repr=False)
    """Seed of a stochastic environment here, from the seeds and actions that led here. Marks are compared by it: for
    Python, the arguments 1 and True of actions are equal."""
    snapshot: object = field(default=None, compare=False, repr=False)
    visits: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)
    """How often ``goto`` has come here, as the only element."""


class Forkable:
    """Adds ``mark`` and ``goto`` to any environment.

    A restored random state would let a search foresee random outcomes, so ``goto`` reseeds a stochastic environment:
    by ``seed``, the task, the actions and visits that led to the mark, and how often it was visited before. Without
    exact snapshots, a replay repeats the random outcomes. Nothing else may step ``env``.
    """

    def __init__(self, env: Env, *, seed: int = 0) -> None:
        self.env = env
        self.replayed_steps = 0
        """Steps taken so far to return to earlier states."""
        self._seed = self._state_seed = seed
        self._current: Mark | None = None
        self._tools: Sequence[ToolSpec] | None = None

    def reset(self, task: Task) -> tuple[str, dict[str, object]]:
        self._current = None
        observation, info = checked_reset(self.env.reset(seed=task.seed, options={"task": task}))
        self._state_seed = derive_seed(self._seed, task.id, task.seed)
        self._current = self._marked(task, (), (_hash(observation),))
        return observation, info

    def step(self, action: str | ToolCall) -> StepResult:
        """Take an action, as ``Env.step``. A text that names a tool becomes a ``ToolCall`` (``calls.as_call``)."""
        mark, self._current = self.mark(), None
        if self._tools is None:
            self._tools = self.env.tools()
        result = checked_step(self.env.step(as_call(action, self._tools)))
        self._state_seed = derive_seed(self._state_seed, repr(action))
        self._current = self._marked(mark.task, (*mark.actions, action), (*mark.hashes, _hash(result[0])))
        return result

    def mark(self) -> Mark:
        if self._current is None:
            raise ValueError("no episode has begun: call reset(task) first")
        return self._current

    def goto(self, mark: Mark) -> None:
        """Return to the state of ``mark``. Raises ``ReplayDivergence`` if a replayed observation is another one."""
        if self.env.snapshot_kind == "exact":
            reseed: int | None = None
            self._current, self._state_seed = None, mark.state_seed
            if self.env.stochastic:
                reseed = self._state_seed = derive_seed(mark.state_seed, mark.visits[0]) % 2**31  # some take no larger
                mark.visits[0] += 1
            self.env.restore(mark.snapshot, reseed=reseed)
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

    def _marked(self, task: Task, actions: tuple[str | ToolCall, ...], hashes: tuple[str, ...]) -> Mark:
        snapshot = self.env.snapshot() if self.env.snapshot_kind == "exact" else None
        return Mark(task, actions, hashes, self._state_seed, snapshot)

    def _compare(self, mark: Mark, step: int, observation: str) -> None:
        if _hash(observation) != mark.hashes[step]:
            self._current = None
            action = f" (action {mark.actions[step - 1]!r})" if step else " (reset)"
            raise ReplayDivergence(
                f"replay of task {mark.task.id!r} diverged at step {step}{action}: it now reads {observation!r}"
            )


def _hash(observation: str) -> str:
    return hashlib.blake2b(observation.encode(), digest_size=8).hexdigest()


@dataclass(eq=False, slots=True)
class _Episode:
    """What is known of one search tree."""

    instance: int | None
    """Number of the pool's instance that plays it; None if any instance can."""
    has_verifier: bool = False
    last: Mark | None = None
    """Where its last step led; None if unknown, such as after an error."""


@dataclass(frozen=True, slots=True)
class _Position:
    """Snapshot in a ``State``: the mark to return to, and the sum of the rewards on the way."""

    mark: Mark
    episode: _Episode = field(compare=False)
    paid: float = 0.0


def paid(state: State) -> float | None:
    """The sum of the rewards on the way to ``state``, including withheld ones, for reports; code that chooses actions
    must not read it. None if the state does not come from an ``EnvDynamics``."""
    total: float | None = getattr(state.snapshot, "paid", None)
    return total


class EnvDynamics:
    """Implements ``types.Dynamics`` with one environment, or with the instances of a pool in parallel.

    If the environment has a verifier, the reward is its verdict at the end of the task and 0 before; otherwise it is
    the environment's own. State keys combine the environment's key with the number of steps used. The cost of a step
    includes a replay from the start of the task, unless snapshots are exact or the tree's last step led to this state.

    Args:
        env: the environment, or a pool; nothing else may step them while this object is in use.
        max_steps: most actions per episode, including malformed ones.
        reveal_reward: False withholds every reward (``Transition.reward is None``), as at evaluation.
        seed: seed of the random outcomes of a stochastic environment.
        list_actions: whether states hold the environment's legal actions, for a policy that scores them.
    """

    def __init__(
        self,
        env: Env | EnvPool,
        *,
        max_steps: int,
        reveal_reward: bool = True,
        seed: int = 0,
        list_actions: bool = False,
    ) -> None:
        # Planning must not see the random outcomes of the execution, so the two have different seeds.
        self._seed = derive_seed(seed, "revealed" if reveal_reward else "withheld")
        self._pool = env if isinstance(env, EnvPool) else None
        self.env = env.env if isinstance(env, EnvPool) else env
        """The environment, in the state that the last step led to; a pool's own ``env`` is never stepped."""
        self._forks = dict[int, Forkable]()
        """The ``Forkable`` of each instance, by the ``id`` of its environment."""
        self._max_steps = max_steps
        self._reveal_reward = reveal_reward
        self._list_actions = list_actions

    @property
    def replayed_steps(self) -> int:
        """Environment steps made so far to return to earlier states by replay."""
        return sum(fork.replayed_steps for fork in tuple(self._forks.values()))

    async def reset(self, task: Task) -> State:
        episode = _Episode(None if self._pool is None else self._pool.assign_instance())

        def start(fork: Forkable) -> State:
            observation, info = fork.reset(checked_task(task))
            episode.has_verifier = checked_verdict(fork.env.verify()) is not None
            place, episode.last = checked_key(fork.env.state_key()), fork.mark()
            first = (Message("user", opening(task, observation), images=checked_images(info)),)
            position, legal = _Position(episode.last, episode), self._legal_actions(fork.env)
            return State(task, first, _key(place, 0), position, legal_actions=legal, place=place)

        return await self._on_instance(episode, start)

    async def step(self, state: State, action: Action) -> Transition:
        """Take one step from ``state``. The task must not be over."""
        position, at_limit = state.snapshot, _steps_used(state) >= self._max_steps
        assert isinstance(position, _Position)
        mark, episode = position.mark, position.episode
        if action.error:
            answer = f"Invalid action: {action.error}"
            return Transition(
                _next_state(state, action, answer, state.place, position, state.legal_actions),
                reward=0.0 if self._reveal_reward else None,
                truncated=at_limit,
                invalid=True,
            )

        def play(fork: Forkable) -> Transition:
            env = fork.env
            fork.goto(mark)
            replayed = 0 if env.snapshot_kind == "exact" or episode.last == mark else len(mark.actions)
            observation, reward, terminated, truncated, info = fork.step(action.call)
            if episode.has_verifier:
                reward = 0.0
            if terminated and (verdict := checked_verdict(env.verify())) is not None:  # it can be expensive
                if not episode.has_verifier:
                    raise EnvBroken(
                        f"verify returned {verdict} at the end, but None at the start: return a number there"
                    )
                reward = verdict
            place, episode.last = checked_key(env.state_key()), fork.mark()
            legal = None if terminated or truncated else self._legal_actions(env)
            then = _Position(episode.last, episode, position.paid + reward)
            return Transition(
                _next_state(state, action, observation, place, then, legal, checked_images(info)),
                reward=reward if self._reveal_reward else None,
                terminated=terminated,
                truncated=not terminated and (truncated or at_limit),
                invalid=bool(info.get("tool_error")),
                cost=1 + replayed,
                info=info if self._reveal_reward else {},
            )

        return await self._on_instance(episode, play)

    async def _on_instance(self, episode: _Episode, work: Callable[[Forkable], Answer]) -> Answer:
        def contain(env: Env) -> Answer:
            if (fork := self._forks.get(id(env))) is None:
                fork = self._forks[id(env)] = Forkable(env, seed=self._seed)
            try:
                with contained():
                    return work(fork)
            except BaseException:
                # The environment may be in any state: the next step restores the one that it starts from.
                fork.forget_state()
                episode.last = None
                raise

        return contain(self.env) if self._pool is None else await self._pool.call(episode.instance, contain)

    def _legal_actions(self, env: Env) -> tuple[str, ...] | None:
        return checked_legal(env.legal_actions()) if self._list_actions else None


def _next_state(
    state: State,
    action: Action,
    observation: str,
    place: str | None,
    position: _Position,
    legal: tuple[str, ...] | None,
    images: tuple[str, ...] = (),
) -> State:
    turn = Message("assistant", action.text, action.token_ids)
    messages = (*state.messages, turn, Message("user", observation, images=images))
    key = _key(place, _steps_used(state))
    return State(state.task, messages, key, position, legal_actions=legal, place=place)


def _key(place: str | None, used: int) -> str | None:
    return None if place is None else f"{used} {place}"


def _steps_used(state: State) -> int:
    return 1 + sum(message.role == "assistant" for message in state.messages)
