"""TextWorld's games as an environment."""

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from treeagent.envs.base import Env, SnapshotKind, StepResult, ToolSpec, probability, task_to_play
from treeagent.envs.textworld.games import (
    PROMPTS,
    cache_folder,
    compiled,
    contained,
    game_spec,
    spec_of,
    task_of,
)
from treeagent.envs.textworld.options import TextWorldOptions
from treeagent.envs.textworld.story import Position, Reply, Story
from treeagent.types import Split, Task, ToolCall, UserError

LOADED = 128
"""Games kept in memory, 2 to 5 MB each; another one is loaded in some 30 ms."""
_COMMAND = {"type": "string", "description": "An imperative sentence, such as: take knife from counter"}
_ACT = ToolSpec(
    "act",
    "Do something in the game.",
    {"type": "object", "properties": {"command": _COMMAND}, "required": ["command"], "additionalProperties": False},
)


class TextWorldEnv(Env):
    """Text adventures of TextWorld (Côté et al. 2018), generated without end, compiled when first played, then cached.

    Actions are commands in plain English or calls of the one tool ``act``. A command that TextWorld does not
    understand, or that changes nothing where it should, is answered by the game with ``info["tool_error"]`` set, and
    takes no turn. Reward is 1 for winning and 0 otherwise.

    ``info["process_reward"]`` is TextWorld's intermediate reward: 1, 0 or -1 as the command brought the end nearer,
    did not, or led away from it. It knows what the player cannot, hence ``info["process_reward_privileged"]``.

    Raises:
        UserError: TextWorld is not installed, or an option that this kind of game does not have.
    """

    options_type = TextWorldOptions
    snapshot_kind: SnapshotKind = "exact"
    stochastic = False
    snapshot_portable = True

    def __init__(self, options: TextWorldOptions | None = None) -> None:
        self.options = options or TextWorldOptions()
        self._spec = game_spec(self.options)
        try:
            with contained():
                import textworld  # noqa: F401
        except ImportError as error:
            raise UserError(f"TextWorld is missing ({error}): pip install 'treeagent[textworld]'") from error
        self._cache = cache_folder(self.options.cache)
        self._stories: OrderedDict[str, Story] = OrderedDict()
        self._at: tuple[Task, Position] | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``. The first time, its game is made."""
        task = task_to_play(self, seed, options)
        story = self._story(task)
        self._at = task, story.start
        lines = [PROMPTS[spec_of(task).kind], story.objective, story.opening]
        if story.objective == lines[0]:
            del lines[1]
        return self._shown("\n".join(lines)), {}

    def step(self, action: str | ToolCall) -> StepResult:
        task, before = self._place()
        story = self._story(task)
        reply = _reply(story, before, action)
        self._at = task, reply.position
        info: dict[str, object] = {
            "process_reward": 0 if reply.refused else _progress(story, before, reply.position),
            "process_reward_privileged": True,
        }
        over = reply.position.outcome != ""
        if reply.refused:
            return reply.text, 0.0, over, False, {**info, "tool_error": reply.text}
        if over:
            return reply.text, self.verify(), True, False, info
        return self._shown(reply.text), 0.0, False, False, info

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        """TextWorld's admissible commands, sorted; it understands other wordings, too."""
        task, position = self._place()
        return [] if position.outcome else list(self._story(task).tracked(position).commands)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [task_of(self._spec, split, index) for index in range(start, start + count)]

    def verify(self) -> float:
        """1 for a game won, 0 for one that is lost or not over."""
        return float(self._place()[1].outcome == "won")

    def snapshot(self) -> object:
        return self._place()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        match snapshot:
            case (Task() as task, Position() as position):
                self._at = task, position
            case _:
                raise UserError(
                    f"a {type(snapshot).__name__} is no snapshot of a TextWorldEnv: restore what snapshot() gave"
                )

    def state_key(self) -> str:
        task, position = self._place()
        return f"{task.id} {self._story(task).key(position)}"

    def demonstrator(self, noise: float) -> "TextWorldDemonstrator":
        return TextWorldDemonstrator(self, noise)

    def solution(self) -> tuple[str, ...] | None:
        """Commands that TextWorld knows to win from here; ``None`` where it knows none. For demonstrators only."""
        task, position = self._place()
        return None if position.outcome else self._story(task).tracked(position).policy

    def done(self) -> tuple[str, ...]:
        """What the player has done, as the game names it (``taking the coin``)."""
        return self._place()[1].actions

    def close(self) -> None:
        self._stories.clear()

    def _place(self) -> tuple[Task, Position]:
        if self._at is None:
            raise ValueError("no episode has begun: call reset first")
        return self._at

    def _story(self, task: Task) -> Story:
        story = self._stories.pop(task.id, None)
        if story is None:
            story = Story(compiled(spec_of(task), self._cache))
            if len(self._stories) >= LOADED:
                self._stories.popitem(last=False)
        self._stories[task.id] = story
        return story

    def _shown(self, text: str) -> str:
        return f"{text}\nCommands: {'; '.join(self.legal_actions())}" if self.options.show_commands else text


def _reply(story: Story, position: Position, action: str | ToolCall) -> Reply:
    if isinstance(action, str):
        return story.play(position, action)
    if action.name != _ACT.name:
        return Reply(f"no tool {action.name}, use {_ACT.name}", position, refused=True)
    command = action.arguments.get("command")
    if set(action.arguments) != {"command"} or not isinstance(command, str):
        return Reply("act takes command, a text", position, refused=True)
    return story.play(position, command)


def _progress(story: Story, before: Position, after: Position) -> int:
    """TextWorld's intermediate reward: the sign of what the solution became shorter by. Losing the last one is -1."""
    if after.outcome:
        return 1 if after.outcome == "won" else -1
    was, now = story.tracked(before).policy, story.tracked(after).policy
    if was is None or now is None:
        return 0 if was is None else -1
    return (len(was) > len(now)) - (len(was) < len(now))


_READ = "examine cookbook"
_ON_THE_WAY = ("go", "open", "close", "unlock", "lock", "take", "drop", "insert", "put")
"""Verbs that lead up to what a recipe asks for."""


class TextWorldDemonstrator:
    """Reads the cookbook where there is one, then does what TextWorld says will win. That is worked out anew after
    every command, so the player recovers from its own errors.

    A thought names the next thing to be achieved, as far as the player has read, whether or not the command then errs.
    At each decision it errs with probability ``noise``: any other admissible command. Where TextWorld knows of no way
    to win, every command is drawn.
    """

    def __init__(self, env: TextWorldEnv, noise: float) -> None:
        self._env = env
        self._noise = probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        commands, solution = self._env.legal_actions(), self._env.solution()
        if not solution:
            return "", rng.choice(commands or ["look"])
        if self._env.options.kind == "cooking" and "examining the cookbook" not in self._env.done():
            at_hand = _READ in commands or "drop cookbook" in commands
            goal, meant = _READ, _READ if at_hand else solution[0]
        else:
            goal, meant = _goal(solution), solution[0]
        others = [command for command in commands if command != meant]
        return goal, rng.choice(others) if others and rng.random() < self._noise else meant


def _goal(solution: Sequence[str]) -> str:
    """The first command that is an end in itself. Where something lies is not said: the player may not know."""
    ends = (command for command in solution if not command.startswith(_ON_THE_WAY))
    return next(ends, solution[-1].partition(" from ")[0])
