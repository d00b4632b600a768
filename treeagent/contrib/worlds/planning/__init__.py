"""The environment of planning problems, and its texts."""

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, ValidationInfo
from pydantic.dataclasses import dataclass as options_dataclass

from treeagent.contrib.worlds import CommandEnv, DrawnTasks
from treeagent.contrib.worlds.planning.domains import DRAW, problem_of, read_domain
from treeagent.contrib.worlds.planning.planner import FINISH, Planner, PlanningDemonstrator
from treeagent.contrib.worlds.planning.problem import Problem, State, prompt_of, sentences
from treeagent.envs.base import ToolSpec, task_to_play
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import Split, Task, ToolCall

HIDDEN = frozenset(["clear", "handempty"])
"""Predicates of the generated domains whose facts follow from others."""
_ACT = text_tool("act", f"Take an action, such as: pick-up a. {FINISH} ends the task.", "command")
DomainName = Literal["blocks", "tireworld"]
Sizes = int | tuple[int, int]
"""The size of all problems, or the smallest and the largest size."""


def _ordered(sizes: Sizes, info: ValidationInfo) -> Sizes:
    least, greatest = (sizes, sizes) if isinstance(sizes, int) else sizes
    largest = 30 if info.data.get("domain") == "tireworld" else 12  # a plan for these takes seconds
    if not 2 <= least <= greatest <= largest:
        raise ValueError(f"give a size from 2 to {largest}, or the least and the greatest one, such as [2, 8]")
    return sizes


@options_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PlanningOptions:
    """Settings of ``PlanningEnv``, whose problems are generated for ``domain``."""

    domain: DomainName = "blocks"
    size: Annotated[Sizes, AfterValidator(_ordered)] = 4
    """Number of blocks, or of roads to the goal. A larger problem needs more actions. ``[2, 8]``
    draws the size of each problem from 2 to 8."""
    hide: list[str] | None = None
    """Predicates whose facts the agent does not see; by default those that follow from others, such as ``clear``."""
    show: Literal["state", "changes"] = "state"
    """What the agent reads after an action: "state" is every fact that holds, "changes" only the facts that the action
    made true or false, which is shorter if many facts hold."""
    show_commands: bool = False
    """Show the possible actions after each observation."""


@dataclass(frozen=True)
class Lines:
    """What a task holds: its problem, as ``problem_of`` reads it."""

    problem: tuple[str, ...]


class Place(NamedTuple):
    """The state, and whether the agent has finished."""

    state: State
    finished: bool = False


class PlanningEnv(CommandEnv[Lines, Place]):
    """Planning problems as text, of two domains with a size that controls the horizon. An action is a name and
    its objects, such as ``unstack a b``, or a call of ``act``. Only ``finish`` ends an episode, with reward 1 if the
    goal holds then: the end does not reveal a success, and a dead end is not reported."""

    options_type = PlanningOptions
    key_type = Lines

    def __init__(self, options: PlanningOptions | None = None) -> None:
        self.options = options or PlanningOptions()
        name, size = self.options.domain, self.options.size
        least, greatest = (size, size) if isinstance(size, int) else size
        sizes = f"{least}" if least == greatest else f"{least}-{greatest}"
        self._domain = read_domain(name)
        self._hidden = HIDDEN if self.options.hide is None else frozenset(self.options.hide)
        self._planner_of = functools.lru_cache(256)(lambda lines: Planner(problem_of(self._domain, lines)))

        def draw(seed: int) -> list[str]:
            random_size = random.Random(f"size {seed}").randint(least, greatest)
            return DRAW[name](random_size, random.Random(f"{name} {sizes} {seed}"))

        self._drawn = DrawnTasks(f"{name}{sizes}", lambda lines: self._prompt(tuple(lines)), "problem", draw)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        self._at = task, Place(self._planner_of(self.key_of(task).problem).problem.start)
        return self._shown(), {}

    def act(self, call: ToolCall) -> str:
        state, name = self.visit.state, " ".join(str(call.arguments["command"]).lower().split())
        if name == FINISH:
            self.visit = Place(state, finished=True)
            return "finished"
        step = self.problem.steps.get(name)
        if step is None or not step.possible(state):
            raise CallRefused(self._refusal(name))
        self.visit = Place(step.after(state))
        return self._shown(state)

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        visit = self.visit
        return [] if visit.finished else [*self.problem.possible(visit.state), FINISH]

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._drawn.tasks(split, count, start)

    def verdict(self) -> float | None:
        return float(self.problem.solved(self.visit.state)) if self.visit.finished else None

    def state_key(self) -> str:
        visit = self.visit
        return f"{self.task.id} {sorted(visit.state)}{' finished' * visit.finished}"

    def demonstrator(self, noise: float) -> PlanningDemonstrator:
        return PlanningDemonstrator(lambda: (self.planner, self.visit.state), noise)

    @property
    def planner(self) -> Planner:
        return self._planner_of(self.key.problem)

    @property
    def problem(self) -> Problem:
        return self.planner.problem

    def _prompt(self, lines: tuple[str, ...]) -> str:
        return prompt_of(problem_of(self._domain, lines), self._hidden)

    def _shown(self, before: State | None = None) -> str:
        state = self.visit.state
        if before is None or self.options.show == "state":
            text = sentences(state, self._hidden)
        else:
            new, gone = sentences(state - before, self._hidden), sentences(before - state, self._hidden)
            text = "; ".join(filter(None, [new, gone and f"no longer: {gone}"]))
        text = text or "nothing to see"
        return f"{text}\nCommands: {'; '.join(self.legal_actions())}" if self.options.show_commands else text

    def _refusal(self, name: str) -> str:
        verb, *objects = name.split() or [""]
        schema = next((each for each in self._domain.schemas if each.name == verb), None)
        if schema is None:
            return f"no such action, use: {', '.join([*(each.name for each in self._domain.schemas), FINISH])}"
        if len(objects) != len(schema.variables):
            return f"write {verb} {' '.join(each[1:] for each in schema.variables)}"
        step, state = self.problem.steps.get(name), self.visit.state
        if step is None:
            return f"{name} is never possible"
        lacking, wrong = sentences(step.needs - state, ()), sentences(step.forbids & state, ())
        return f"not possible now, this must hold: {', '.join(filter(None, [lacking, wrong and f'not: {wrong}']))}"
