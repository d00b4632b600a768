"""Adapter from a Gymnasium environment with named actions to a text environment that search can rewind."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from treeagent.contrib.worlds import required, seeded_tasks
from treeagent.envs.base import Env, StepResult, ToolSpec, task_to_play
from treeagent.types import Split, Task, ToolCall, UserError

Game: TypeAlias = Any
"""A ``gymnasium.Env``. Its type is ``Any``, because a game may have members that the base class lacks."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The state of an episode. In a snapshot, ``game`` is the pickled game, including its random state."""

    task: Task
    game: Game
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


class GymnasiumEnv(Env):
    """A Gymnasium environment with named actions, as texts or calls of ``act``. Tasks are seeds; each split has every
    third. A snapshot is the pickled game; if it cannot be pickled, ``snapshot_kind`` is "replay".

    Args:
        game: a Gymnasium environment, the id of a registered one, or a function that takes a task and returns an
            environment; it is reset with the task's seed.
        prompt: the instruction of every task.
        render: (game, observation) → the text that the agent reads.
        actions: action values by name.
        name: prefix of the task ids; required if ``game`` is a function, by default the name of the game.
        success: (game, reward of the last step) → whether a terminated episode is a success, which alone counts.
        key: game → a key as for ``Env.state_key``; None if there is none.
        stochastic: whether the game draws random numbers from its ``np_random`` during an episode.
    """

    def __init__(
        self,
        game: Game,
        *,
        prompt: str,
        render: Callable[[Game, Any], str],
        actions: Mapping[str, object],
        name: str = "",
        success: Callable[[Game, float], bool],
        key: Callable[[Game], str] | None = None,
        stochastic: bool = False,
    ) -> None:
        gym = required("gymnasium")
        if isinstance(game, str):
            try:
                game = gym.make(game, disable_env_checker=True)
            except gym.error.Error as error:
                raise UserError(f"Gymnasium cannot make {game!r} ({error}): give the id of a registered one") from error
        self._make: Callable[[Task], Game] = game if callable(game) else lambda _: game
        self._name = name or (game.spec.id if game.spec is not None else type(game.unwrapped).__name__)
        self._render, self._success, self._key = render, success, key
        self._prompt, self._actions, self.stochastic = prompt, dict(actions), stochastic
        self._at: _Place | None = None
        self.snapshot_kind = "exact" if self._is_copied() else "replay"

    @property
    def game(self) -> Game:
        """The game in its current state. For verifiers and demonstrators only."""
        return self._place().game

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        game = self._make(task)
        observation, _ = game.reset(seed=task.seed)
        self._at = _Place(task, game)
        return self._render(game, observation), {}

    def step(self, action: str | ToolCall) -> StepResult:
        at, name = self._place(), self._named(action)
        if at.over or not name:
            error = "the episode is over" if at.over else f"no such action, use one of: {', '.join(self._actions)}"
            return error, 0.0, at.terminated, at.truncated, {"tool_error": error}
        observation, reward, terminated, truncated, _ = at.game.step(self._actions[name])
        at = self._at = _Place(at.task, at.game, float(reward), bool(terminated), bool(truncated))
        return self._render(at.game, observation), at.reward, at.terminated, at.truncated, {}

    def tools(self) -> Sequence[ToolSpec]:
        action = {"type": "string", "enum": list(self._actions)}
        schema = {"type": "object", "properties": {"action": action}, "required": ["action"]}
        return (ToolSpec("act", self._prompt, {**schema, "additionalProperties": False}),)

    def legal_actions(self) -> list[str]:
        return [] if self._place().over else list(self._actions)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return seeded_tasks(self._name, self._prompt, split, count, start)

    def verify(self) -> float:
        at = self._place()
        return float(at.terminated and self._success(at.game, at.reward))

    def snapshot(self) -> object:
        at = self._place()
        return replace(at, game=pickle.dumps(at.game))

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, _Place)
        game: Game = pickle.loads(snapshot.game)
        if reseed is not None:
            from gymnasium.utils.seeding import np_random

            game.unwrapped.np_random = np_random(reseed)[0]
        self._at = replace(snapshot, game=game)

    def state_key(self) -> str | None:
        at = self._place()
        return None if self._key is None else f"{at.task.id} {self._key(at.game)}"

    def close(self) -> None:
        if self._at is not None:
            self._at.game.close()
            self._at = None

    def _place(self) -> _Place:
        if self._at is None:
            raise ValueError("no episode has begun: call reset first")
        return self._at

    def _named(self, action: str | ToolCall) -> str:
        """The name of the action that is asked for, in any case; empty if there is none."""
        if isinstance(action, ToolCall):
            action = str(action.arguments.get("action", "")) if action.name == "act" else ""
        return next((each for each in self._actions if each.lower() == action.strip().lower()), "")

    def _is_copied(self) -> bool:
        """Whether the game can be pickled. ``treeagent envs check`` tells whether copies play on like the game."""
        self.reset()
        try:
            self.snapshot()
        except Exception:  # a game may raise anything if it cannot be pickled
            return False
        self._at = None
        return True
