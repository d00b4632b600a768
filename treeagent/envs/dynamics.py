"""A real environment as a ``Dynamics``: search can step it from any state, in any order."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from treeagent.envs.answers import checked_key, checked_legal, checked_task, checked_verdict, contained
from treeagent.envs.base import Env, EnvBroken, opening
from treeagent.envs.forks import Forkable, Mark
from treeagent.envs.pool import EnvPool
from treeagent.types import Action, Message, State, Task, Transition, derive_seed

Answer = TypeVar("Answer")


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
    the environment's own. State keys combine the environment's key with the number of steps used.

    The cost of a step is what it would be if each tree had its own environment: without exact snapshots it includes a
    replay from the start of the task, unless the tree's last step led to this state.

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
        return await self._on_instance(episode, lambda fork: self._start_episode(fork, episode, task))

    async def step(self, state: State, action: Action) -> Transition:
        """Take one step from ``state``. The task must not be over."""
        position = _position(state)
        if not action.error:
            return await self._on_instance(
                position.episode, lambda fork: self._take_step(fork, position, state, action)
            )
        answer = f"Invalid action: {action.error}"
        return Transition(
            _next_state(state, action, answer, state.place, position, state.legal_actions),
            reward=0.0 if self._reveal_reward else None,
            truncated=_steps_used(state) >= self._max_steps,
            invalid=True,
        )

    async def _on_instance(self, episode: _Episode, work: Callable[[Forkable], Answer]) -> Answer:
        if self._pool is None:
            return work(self._fork(self.env))
        return await self._pool.call(episode.instance, lambda env: work(self._fork(env)))

    def _fork(self, env: Env) -> Forkable:
        if id(env) not in self._forks:
            self._forks[id(env)] = Forkable(env, seed=self._seed)
        return self._forks[id(env)]

    def _start_episode(self, fork: Forkable, episode: _Episode, task: Task) -> State:
        with _forget_state_on_error(fork, episode):
            env, (observation, _) = fork.env, fork.reset(checked_task(task))
            episode.has_verifier = checked_verdict(env.verify()) is not None
            place, episode.last = checked_key(env.state_key()), fork.mark()
            position, legal = _Position(episode.last, episode), self._legal_actions(env)
            first = (Message("user", opening(task, observation)),)
            return State(task, first, _key(place, 0), position, legal_actions=legal, place=place)

    def _take_step(self, fork: Forkable, position: _Position, state: State, action: Action) -> Transition:
        env, episode = fork.env, position.episode
        with _forget_state_on_error(fork, episode):
            replayed = _move_to(fork, position)
            observation, env_reward, terminated, truncated, info = fork.step(action.call)
            # A verifier can be expensive, so it is called at the end only.
            verdict = checked_verdict(env.verify()) if terminated else None
            if verdict is not None and not episode.has_verifier:
                raise EnvBroken(f"verify returned {verdict} at the end, but None at the start: return a number there")
            place, mark = checked_key(env.state_key()), fork.mark()
            legal = None if terminated or truncated else self._legal_actions(env)
        episode.last = mark
        reward = verdict if verdict is not None else 0.0 if episode.has_verifier else env_reward
        then = _Position(mark, episode, position.paid + reward)
        return Transition(
            _next_state(state, action, observation, place, then, legal),
            reward=reward if self._reveal_reward else None,
            terminated=terminated,
            truncated=not terminated and (truncated or _steps_used(state) >= self._max_steps),
            invalid=bool(info.get("tool_error")),
            cost=1 + replayed,
            info=info if self._reveal_reward else {},
        )

    def _legal_actions(self, env: Env) -> tuple[str, ...] | None:
        return checked_legal(env.legal_actions()) if self._list_actions else None


def _position(state: State) -> _Position:
    assert isinstance(state.snapshot, _Position)
    return state.snapshot


def _next_state(
    state: State,
    action: Action,
    observation: str,
    place: str | None,
    position: _Position,
    legal: tuple[str, ...] | None = None,
) -> State:
    turn = Message("assistant", action.text, action.token_ids)
    messages = (*state.messages, turn, Message("user", observation))
    key = _key(place, _steps_used(state))
    return State(state.task, messages, key, position, legal_actions=legal, place=place)


def _key(place: str | None, used: int) -> str | None:
    return None if place is None else f"{used} {place}"


@contextlib.contextmanager
def _forget_state_on_error(fork: Forkable, episode: _Episode) -> Iterator[None]:
    """A failed environment may be in any state: the next step then restores the state that it starts from."""
    try:
        with contained():
            yield
    except BaseException:
        fork.forget_state()
        episode.last = None
        raise


def _move_to(fork: Forkable, position: _Position) -> int:
    """Bring the environment to a state of a tree. Returns the cost in environment steps that is charged to the tree."""
    fork.goto(position.mark)
    last, position.episode.last = position.episode.last, position.mark
    return 0 if fork.env.snapshot_kind == "exact" or last == position.mark else len(position.mark.actions)


def _steps_used(state: State) -> int:
    return 1 + sum(message.role == "assistant" for message in state.messages)
