"""ALFWorld as an environment."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from treeagent.envs.adapters import required
from treeagent.envs.alfworld.demonstrator import AlfworldDemonstrator
from treeagent.envs.alfworld.game import Game
from treeagent.envs.alfworld.games import GameSpec, game_data, generated, official_games, read_game, spec_of
from treeagent.envs.alfworld.options import AlfworldOptions
from treeagent.envs.base import Env, SnapshotKind, StepResult, ToolSpec, task_to_play
from treeagent.envs.calls import read_call, text_tool
from treeagent.types import Split, Task, ToolCall, UserError

LOADED = 128
"""Games kept in memory, about 1 MB each and a few KB for each place in them. A batch of trees goes through all of its
games at every step: with fewer, each of its steps would load one anew, in a fifth of a second or more."""
_ACT = text_tool("act", "Do something, such as: go to fridge 1.", "command")
_OVER = "the task is done already"


class AlfworldEnv(Env):
    """ALFWorld (Shridhar et al. 2021): household chores in text. Games are generated from its floor plans and played by
    its own rules and words: scores on them are not ALFWorld scores, and ``info["generated"]`` says so at a reset. Or
    they are its official games, from files.

    Actions are admissible commands or calls of the one tool ``act``. Reward is 1 when the task is done.

    Raises:
        UserError: ALFWorld is not installed, or a folder has no games.
    """

    options_type = AlfworldOptions
    snapshot_kind: SnapshotKind = "exact"
    stochastic = False
    snapshot_portable = True

    def __init__(self, options: AlfworldOptions | None = None) -> None:
        self.options = options or AlfworldOptions()
        required("alfworld")
        self._folder = None if self.options.games is None else Path(self.options.games).expanduser()
        if self._folder is not None and next(self._folder.glob("*/**/game.tw-pddl"), None) is None:
            raise UserError(
                f"{self._folder} has no game.tw-pddl in train, valid_seen or valid_unseen: see alfworld-download"
            )
        self._official: dict[Split, Sequence[Task]] = {}
        self._games: OrderedDict[str, Game] = OrderedDict()
        self._at: tuple[Task, tuple[str, ...]] | None = None

    @property
    def spec(self) -> GameSpec:
        """The generated game that is played. For demonstrators only, as ``did``, ``looked`` and ``objects``."""
        return spec_of(self._place()[0])

    @property
    def did(self) -> tuple[str, ...]:
        """Commands that did something."""
        return self._place()[1]

    @property
    def looked(self) -> tuple[str, ...]:
        """Receptacles whose contents have been seen."""
        task, did = self._place()
        return self._game(task).looked(did)

    def objects(self) -> list[tuple[str, str]]:
        """(object, receptacle) of every object that lies somewhere."""
        task, did = self._place()
        return self._game(task).objects(did)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``. Its game is loaded unless it is already."""
        task = task_to_play(self, seed, options)
        game = self._game(task)
        self._at = task, ()
        return self._shown(f"{game.objective}\n{game.opening}"), {"generated": self._folder is None}

    def step(self, action: str | ToolCall) -> StepResult:
        task, did = self._place()
        game = self._game(task)
        if game.won(did):
            return _OVER, 0.0, True, False, {"tool_error": _OVER}
        asked = action if isinstance(action, ToolCall) else ToolCall(_ACT.name, {"command": action})
        call = read_call(asked, (_ACT,))
        if isinstance(call, str):
            return call, 0.0, False, False, {"tool_error": call}
        reply = game.play(did, str(call.arguments["command"]))
        self._at = task, reply.did
        if reply.refused:
            return reply.text, 0.0, False, False, {"tool_error": reply.text}
        if game.won(reply.did):
            return reply.text, 1.0, True, False, {}
        return self._shown(reply.text), 0.0, False, False, {}

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        """The admissible commands, sorted: nothing else is understood."""
        task, did = self._place()
        game = self._game(task)
        return [] if game.won(did) else game.commands(did)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if self._folder is None:
            return [generated(self.options, split, index) for index in range(start, start + count)]
        if split not in self._official:
            self._official[split] = official_games(self._folder, split)
        known = self._official[split]
        if start + count > len(known):
            raise UserError(
                f"{split} games {start} to {start + count} are asked for, but {self._folder} has {len(known)} of them: "
                "ask for fewer"
            )
        return known[start : start + count]

    def verify(self) -> float:
        """1 where the task is done, else 0."""
        task, did = self._place()
        return float(self._game(task).won(did))

    def snapshot(self) -> object:
        return self._place()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        match snapshot:
            case (Task() as task, tuple() as did):
                self._at = task, did
            case _:
                raise UserError(
                    f"a {type(snapshot).__name__} is no snapshot of an AlfworldEnv: restore what snapshot() gave"
                )

    def state_key(self) -> str:
        task, did = self._place()
        return f"{task.id} {self._game(task).key(did)}"

    def demonstrator(self, noise: float) -> AlfworldDemonstrator | None:
        """A player of generated games; what an official game asks for is only in its words."""
        return AlfworldDemonstrator(self, noise) if self._folder is None else None

    def close(self) -> None:
        self._games.clear()

    def _place(self) -> tuple[Task, tuple[str, ...]]:
        if self._at is None:
            raise ValueError("no episode has begun: call reset first")
        return self._at

    def _game(self, task: Task) -> Game:
        game = self._games.pop(task.id, None)
        if game is None:
            game = Game(game_data(spec_of(task)) if self._folder is None else read_game(task))
            if len(self._games) >= LOADED:
                self._games.popitem(last=False)
        self._games[task.id] = game
        return game

    def _shown(self, text: str) -> str:
        return f"{text}\nCommands: {'; '.join(self.legal_actions())}" if self.options.show_commands else text
