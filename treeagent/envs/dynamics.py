"""A real environment as the ``Dynamics`` that search steps through, from any state in any order."""

from treeagent.envs.base import Env, Forkable, Mark
from treeagent.types import Action, Message, State, Task, Transition


class EnvDynamics:
    """Plays ``types.Dynamics`` on one environment.

    Rewards: where the environment has a verifier, its word at the end of the task and 0 before; else the environment's
    own reward. A state that ran into the step limit gets 0.

    Args:
        env: the environment; this object moves it about, so nothing else may step it meanwhile.
        max_steps: actions per episode, malformed ones included.
        reveal_reward: False withholds every reward (``Transition.reward is None``), as at evaluation.
    """

    def __init__(self, env: Env, *, max_steps: int, reveal_reward: bool = True) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}: give at least 1")
        self._forkable = Forkable(env)
        self._max_steps = max_steps
        self._reveal_reward = reveal_reward
        self._has_verifier = False

    @property
    def env(self) -> Env:
        """The environment, standing wherever the last step left it."""
        return self._forkable.env

    def stand_at(self, state: State) -> None:
        """Put the environment where ``state`` is, as for reading its demonstrator or verifier there.

        Raises:
            ValueError: another dynamics made the state.
        """
        self._forkable.goto(self._mark(state))

    async def reset(self, task: Task) -> State:
        observation, _ = self._forkable.reset(task)
        self._has_verifier = self.env.verify() is not None
        opening = observation if task.prompt in observation else f"{task.prompt}\n{observation}"
        return State(task, (Message("user", opening),), self.env.state_key(), self._forkable.mark())

    async def step(self, state: State, action: Action) -> Transition:
        """Make one step from ``state``.

        Raises:
            ValueError: the state's task is over, or another dynamics made the state.
        """
        mark = self._mark(state)
        if mark.terminated:
            raise ValueError(f"task {state.task.id!r} is over: a terminal state has no next step")
        limit_hit = 1 + sum(message.role == "assistant" for message in state.messages) >= self._max_steps
        if action.error:
            return Transition(
                self._after(state, action, f"Invalid action: {action.error}", state.key, mark),
                reward=0.0 if self._reveal_reward else None,
                truncated=limit_hit,
                invalid=True,
            )
        replayed_before = self._forkable.replayed_steps
        self._forkable.goto(mark)
        observation, env_reward, terminated, truncated, info = self._forkable.step(action.call)
        truncated = not terminated and (truncated or limit_hit)
        # A verifier can be dear, so it is asked at the end only.
        verdict = self.env.verify() if terminated else None
        reward = 0.0 if truncated or self._has_verifier else env_reward
        return Transition(
            self._after(state, action, observation, self.env.state_key(), self._forkable.mark()),
            reward=(reward if verdict is None else verdict) if self._reveal_reward else None,
            terminated=terminated,
            truncated=truncated,
            invalid="tool_error" in info,
            cost=1 + self._forkable.replayed_steps - replayed_before,
        )

    @staticmethod
    def _mark(state: State) -> Mark:
        if not isinstance(state.snapshot, Mark):
            raise ValueError(
                f"a state of task {state.task.id!r} was not made by EnvDynamics: only its own states can be stepped"
            )
        return state.snapshot

    @staticmethod
    def _after(state: State, action: Action, observation: str, key: str | None, mark: Mark) -> State:
        said = Message("assistant", action.text, action.token_ids)
        return State(state.task, (*state.messages, said, Message("user", observation)), key, mark)
