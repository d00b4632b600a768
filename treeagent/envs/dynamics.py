"""A real environment as the ``Dynamics`` that search steps through, from any state in any order."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from treeagent.envs.answers import (
    ENDING,
    broken_by,
    checked_components,
    checked_key,
    checked_legal,
    checked_task,
    checked_verdict,
)
from treeagent.envs.base import Env, EnvBroken
from treeagent.envs.forks import Forkable, Mark
from treeagent.types import Action, Message, State, Task, Transition, Unanswered, derive_seed, storable


@dataclass(frozen=True, slots=True)
class _Place:
    """What an ``EnvDynamics`` puts into a state: where the environment stands, and the rewards that led there."""

    mark: Mark
    paid: float = 0.0


def paid(state: State) -> float | None:
    """The sum of the rewards on the way to ``state``, also of those that were withheld; None where the state is not
    one of an ``EnvDynamics``.

    For telling what a search has found once all its actions are taken and executed. Nothing that chooses an action may
    read it. Trees on disk hold it of their ends alone (``Node.paid``).
    """
    return state.snapshot.paid if isinstance(state.snapshot, _Place) else None


class EnvDynamics:
    """Plays ``types.Dynamics`` on one environment.

    Rewards: where the environment has a verifier, its verdict at the end of the task and 0 before, so that an episode
    that runs into the step limit is paid 0; else the environment's own rewards.

    Keys count the steps used beside the environment's own key: of two states in the same place, the one with fewer
    steps left cannot reach all that the other can, so their futures are equal only if both agree.

    An environment that fails, also by ``SystemExit`` or by a value that no file can hold, loses the step it was asked
    for; other states can be stepped as before.

    Args:
        env: the environment; this object moves it about, so nothing else may step it meanwhile.
        max_steps: actions per episode, malformed ones included.
        reveal_reward: False withholds every reward (``Transition.reward is None``), as at evaluation.
        seed: of a stochastic environment's luck.
        costs: names of components that steps give even where rewards are withheld: a plan must know what it costs.
        list_actions: whether states hold the environment's legal actions, for a policy that scores them.
    """

    def __init__(
        self,
        env: Env,
        *,
        max_steps: int,
        reveal_reward: bool = True,
        seed: int = 0,
        costs: Collection[str] = (),
        list_actions: bool = False,
    ) -> None:
        # A plan must not know the luck of its execution, which reveals what planning withholds.
        luck = derive_seed(seed, "revealed" if reveal_reward else "withheld")
        self.forkable = Forkable(env, seed=luck)
        """Counts what going back has cost so far."""
        self._max_steps = max_steps
        self._reveal_reward = reveal_reward
        self._costs = costs
        self._list_actions = list_actions
        self._has_verifier = False

    @property
    def env(self) -> Env:
        """The environment, standing wherever the last step left it."""
        return self.forkable.env

    def stand_at(self, state: State) -> None:
        """Put the environment where ``state`` is, as for reading its demonstrator or verifier there."""
        with self._leaving_on_error():
            self.forkable.goto(self._place(state).mark)

    async def reset(self, task: Task) -> State:
        with self._leaving_on_error():
            observation, _ = self.forkable.reset(checked_task(task))
            self._has_verifier = checked_verdict(self.env.verify()) is not None
            opening = observation if task.prompt in observation else f"{task.prompt}\n{observation}"
            key, place = _key(self.env.state_key(), 0), _Place(self.forkable.mark())
            return State(task, (Message("user", opening),), key, place, legal_actions=self._legal_actions())

    async def step(self, state: State, action: Action) -> Transition:
        """Make one step from ``state``, whose task must not be over."""
        here = self._place(state)
        used = 1 + sum(message.role == "assistant" for message in state.messages)
        limit_hit = used >= self._max_steps
        if action.error:
            key = state.key if state.key is None else _key(state.key.partition(" ")[2], used)
            return Transition(
                self._after(state, action, f"Invalid action: {action.error}", key, here, state.legal_actions),
                reward=0.0 if self._reveal_reward else None,
                truncated=limit_hit,
                origin=self.env.origin,
                invalid=True,
                cost=self._cost(),
            )
        replayed_before = self.forkable.replayed_steps
        try:
            with self._leaving_on_error():
                self.forkable.goto(here.mark)
                observation, env_reward, terminated, truncated, info = self.forkable.step(action.call)
                # A verifier can be dear, so it is asked at the end only.
                verdict = checked_verdict(self.env.verify()) if terminated else None
                process = _process_reward(info) if self._reveal_reward else 0.0
                components = checked_components(info, self.env.components)
                key, mark = _key(self.env.state_key(), used), self.forkable.mark()
                legal = None if terminated or truncated else self._legal_actions()
        except Unanswered as unanswered:
            reason = storable(str(unanswered))
            return Transition(
                self._after(state, action, f"Unanswered: {reason}", None, here),
                reward=None,
                truncated=True,
                origin=self.env.origin,
                invalid=True,
                cost=self._cost(self.forkable.replayed_steps - replayed_before),
                error=reason,
            )
        truncated = not terminated and (truncated or limit_hit)
        unverified = 0.0 if self._has_verifier else env_reward
        reward = unverified if verdict is None else verdict
        return Transition(
            self._after(state, action, observation, key, _Place(mark, here.paid + reward), legal),
            reward=reward if self._reveal_reward else None,
            process=process,
            terminated=terminated,
            truncated=truncated,
            origin=self.env.origin,
            invalid="tool_error" in info,
            cost=self._cost(self.forkable.replayed_steps - replayed_before),
            components={name: each for name, each in components.items() if self._reveal_reward or name in self._costs},
        )

    def _cost(self, replayed: int = 0) -> int:
        """Environment steps that a step has paid, with those ``replayed`` to come to its state; none where imagined."""
        return 0 if self.env.origin == "imagined" else 1 + replayed

    def _legal_actions(self) -> tuple[str, ...] | None:
        return checked_legal(self.env.legal_actions()) if self._list_actions else None

    @contextlib.contextmanager
    def _leaving_on_error(self) -> Iterator[None]:
        """Nobody knows where an environment stands that has failed, so the next step must go back to its own place."""
        try:
            yield
        except ENDING as error:
            self.forkable.leave()
            raise broken_by(error) from error
        except BaseException:
            self.forkable.leave()
            raise

    @staticmethod
    def _place(state: State) -> _Place:
        assert isinstance(state.snapshot, _Place), "another dynamics made this state"
        return state.snapshot

    @staticmethod
    def _after(
        state: State,
        action: Action,
        observation: str,
        key: str | None,
        place: _Place,
        legal: tuple[str, ...] | None = None,
    ) -> State:
        said = Message("assistant", action.text, action.token_ids)
        messages = (*state.messages, said, Message("user", observation))
        return State(state.task, messages, key, place, legal_actions=legal)


def _process_reward(info: Mapping[str, object]) -> float:
    reward = info.get("process_reward", 0.0)
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise EnvBroken(f"info['process_reward'] is {reward!r}: give a number")
    return float(reward)


def _key(answer: object, used: int) -> str | None:
    place = checked_key(answer)
    return None if place is None else f"{used} {place}"
