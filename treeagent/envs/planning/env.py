"""The environment of planning problems."""

import functools
import random
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from treeagent.contrib.worlds.adapters import required
from treeagent.envs.base import StepResult, ToolSpec, task_to_play
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.drawn import DrawnTasks
from treeagent.envs.planning.demonstrator import FINISH, PlanningDemonstrator
from treeagent.envs.planning.files import find_files, read_text
from treeagent.envs.planning.generators import DRAW, problem_of
from treeagent.envs.planning.options import PlanningOptions
from treeagent.envs.planning.planner import Planner
from treeagent.envs.planning.problem import Problem, State, holds
from treeagent.envs.planning.reader import read_domain, read_problem
from treeagent.envs.planning.words import prompt_of, sentences
from treeagent.envs.visit import VisitEnv
from treeagent.types import Split, Task, ToolCall, UserError

LOADED = 256
"""Problems kept in memory. A batch of trees uses all of its problems at every step."""
_HIDDEN = frozenset(["clear", "handempty", "handfull", "smaller"])
"""Predicates whose facts follow from others, in the generated domains and in pddlgym's blocks and hanoi."""
_ACT = text_tool("act", f"Take an action, such as: pick-up a. {FINISH} ends the task.", "command")


class Place(NamedTuple):
    """The state, and whether the agent has finished."""

    state: State
    finished: bool = False


class Loaded(NamedTuple):
    problem: Problem
    planner: Planner


class PlanningEnv(VisitEnv[Place]):
    """PDDL planning problems as text: take actions until the goal holds, then finish.

    Problems are generated for four domains, with a size that controls the horizon, or come from files. An action is a
    name and its objects, such as ``unstack a b``, or a call of the only tool, ``act``. Only ``finish`` ends an episode:
    the reward is 1 if the goal holds then, and 0 otherwise. The end of an episode therefore does not reveal a success,
    and a dead end is not reported.

    Raises:
        UserError: unified-planning is not installed, a file cannot be read, or the domain has an action ``finish``.
    """

    options_type = PlanningOptions
    visit_type = Place

    def __init__(self, options: PlanningOptions | None = None) -> None:
        self.options = options or PlanningOptions()
        required("planning")
        name, size = self.options.domain, self.options.size
        least, greatest = (size, size) if isinstance(size, int) else size
        files = find_files(self.options)
        if files is None:
            self._text = resources.files(__package__).joinpath(f"{name}.pddl").read_text(encoding="utf-8")
        else:
            self._text = read_text(files[0])
        self._files = None if files is None else files[1]
        self._domain = read_domain(self._text)
        if any(schema.name == FINISH for schema in self._domain.schemas):
            raise UserError(f"the domain {self._domain.name} has an action {FINISH}, which ends a task here: rename it")
        self._hidden = frozenset(self._hidden_by_default() if self.options.hide is None else self.options.hide)
        self._loaded = functools.lru_cache(LOADED)(self._load)
        sizes = f"{least}" if least == greatest else f"{least}-{greatest}"

        def draw(seed: int) -> list[str]:
            random_size = random.Random(f"size {seed}").randint(least, greatest)
            return DRAW[name](random_size, random.Random(f"{name} {sizes} {seed}"))

        self._drawn = DrawnTasks(
            f"{name}{sizes}", lambda lines: prompt_of(problem_of(self._domain, lines), self._hidden), "problem", draw
        )

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``."""
        task = task_to_play(self, seed, options)
        self._at = task, Place(self._loaded(_problem_in(task)).problem.start)
        return self._shown(), {}

    def step(self, action: str | ToolCall) -> StepResult:
        visit, problem = self.visit, self.problem
        request = action if isinstance(action, ToolCall) else ToolCall(_ACT.name, {"command": action})
        call = "the task is finished" if visit.finished else read_call(request, (_ACT,))
        if isinstance(call, str):
            return call, 0.0, visit.finished, False, {"tool_error": call}
        name = " ".join(str(call.arguments["command"]).lower().split())
        if name == FINISH:
            self.visit = Place(visit.state, finished=True)
            return "finished", self.verify(), True, False, {}
        step = problem.steps.get(name)
        if step is None or not holds(step.when, visit.state):
            refusal = self._refusal(name)
            return refusal, 0.0, False, False, {"tool_error": refusal}
        self.visit = Place(step.after(visit.state))
        return self._shown(visit.state), 0.0, False, False, {}

    def tools(self) -> Sequence[ToolSpec]:
        return (_ACT,)

    def legal_actions(self) -> list[str]:
        visit = self.visit
        return [] if visit.finished else [*self.problem.possible(visit.state), FINISH]

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if self._files is None:
            return self._drawn.tasks(split, count, start)
        files = self._files.get(split, ())
        if start + count > len(files):
            raise UserError(f"{split} has {len(files)} problem files, not {start + count}: ask for fewer tasks")
        return [self._task(split, number) for number in range(start, start + count)]

    def verify(self) -> float:
        """Return 1 if the agent has finished and the goal holds, otherwise 0."""
        visit = self.visit
        return float(visit.finished and holds(self.problem.goal, visit.state))

    def state_key(self) -> str:
        visit = self.visit
        return f"{self.task.id} {sorted(visit.state)}{' finished' * visit.finished}"

    def demonstrator(self, noise: float) -> PlanningDemonstrator:
        return PlanningDemonstrator(lambda: (*self._loaded(_problem_in(self.task)), self.visit.state), noise)

    def close(self) -> None:
        self._loaded.cache_clear()

    @property
    def problem(self) -> Problem:
        """The current problem."""
        return self._loaded(_problem_in(self.task)).problem

    def _load(self, lines: tuple[str, ...]) -> Loaded:
        generated = self._files is None
        problem = problem_of(self._domain, lines) if generated else read_problem(self._text, "\n".join(lines))
        return Loaded(problem, Planner(problem))

    def _task(self, split: Split, number: int) -> Task:
        path = (self._files or {})[split][number]
        lines = tuple(read_text(path).splitlines())
        try:
            prompt = prompt_of(self._loaded(lines).problem, self._hidden)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        named_alike = sum(other.stem == path.stem for other in (self._files or {})[split]) > 1
        name = f"{path.stem}-{number}" if named_alike else path.stem
        return Task(f"{self._domain.name}-{split}-{name}", prompt, split, number, {"problem": list(lines)})

    def _shown(self, before: State | None = None) -> str:
        """Return what the agent reads after an action in the state ``before``, which is None at the start of a task."""
        state = self.visit.state
        if before is None or self.options.show == "state":
            text = sentences(state, self._hidden) or "nothing to see"
        else:
            gone = sentences(before - state, self._hidden)
            parts = [sentences(state - before, self._hidden), f"no longer: {gone}" if gone else ""]
            text = "; ".join(filter(None, parts)) or "nothing to see"
        return f"{text}\nCommands: {'; '.join(self.legal_actions())}" if self.options.show_commands else text

    def _refusal(self, name: str) -> str:
        """Return why an action is impossible."""
        verb, *objects = name.split() or [""]
        schema = next((each for each in self._domain.schemas if each.name == verb), None)
        if schema is None:
            return f"no such action, use: {', '.join([*(each.name for each in self._domain.schemas), FINISH])}"
        if len(objects) != len(schema.variables):
            names = " ".join(each.name.removeprefix("?") for each in schema.variables)
            return f"write {verb} {names}"
        step, state = self.problem.steps.get(name), self.visit.state
        if step is None:
            return f"{name} is never possible"
        case = min(step.when, key=lambda case: len(case.yes - state) + len(case.no & state))
        needs = [
            sentences(case.yes - state, ()),
            *(f"not: {each}" for each in [sentences(case.no & state, ())] if each),
        ]
        return f"not possible now, this must hold: {', '.join(filter(None, needs))}"

    def _hidden_by_default(self) -> frozenset[str]:
        ours = _HIDDEN if self._domain.name in DRAW else frozenset[str]()
        if self.options.pddlgym is None:
            return ours if self._files is None else frozenset()
        # pddlgym has facts that say which actions may be called.
        calls = {name for each in self._domain.schemas for name in (each.name, each.name.replace("-", ""))}
        return ours | (calls - self._domain.fluents)


def _problem_in(task: Task) -> tuple[str, ...]:
    lines = task.data.get("problem")
    if not isinstance(lines, list | tuple) or not lines:
        raise UserError(f"task {task.id!r} holds no planning problem: take tasks from PlanningEnv.tasks")
    return tuple(map(str, lines))
