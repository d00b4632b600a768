"""The environment of the toolbox."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_core import to_jsonable_python

from treeagent.envs.base import ToolSpec, probability
from treeagent.envs.calls import arguments_of
from treeagent.envs.toolbox.options import ToolboxOptions
from treeagent.envs.toolbox.world import ADD, ANSWER, TOOLS, Call, Key, draw, longer, orders, prompt, tool_call
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.types import Split, Task, ToolCall, derive_seed


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode."""

    made: tuple[Call, ...] = ()
    """The calls made so far, without repetitions."""
    answer: str | None = None


class ToolboxEnv(ToolEnv[Key, Visit]):
    """Questions about people, teams and rooms, with a new world for each task: look up, add, answer. A task may need no
    call, because its question states the answer, or a pipeline of calls, in which the output of one call is an argument
    of the next. The reward is 1 for the right answer, otherwise 0.

    Calls are ``team_of[mira]``, ``add[12, 30]`` and ``answer[red]``, or tool calls. The reference in a state is every
    call of the pipeline that is due, or the answer if none is.
    """

    options_type = ToolboxOptions
    key_type = Key
    visit_type = Visit
    opening = "ask the tools"

    def __init__(self, options: ToolboxOptions | None = None) -> None:
        self.options = options or ToolboxOptions()

    def act(self, call: ToolCall) -> str:
        key, values = self.key, tuple(str(value).strip() for value in call.arguments.values())
        if call.name == ANSWER:
            self.visit = replace(self.visit, answer=values[0])
            return "answered"
        if call.name == ADD:
            values = str(call.arguments["x"]), str(call.arguments["y"])
            result = str(sum(map(int, values)))
        elif values[0] in key.tables[call.name]:
            result = key.tables[call.name][values[0]]
        else:
            [argument] = arguments_of(next(tool for tool in TOOLS if tool.name == call.name))[1]
            raise CallRefused(f"no {argument} {values[0]}")
        made_call: Call = (call.name, values)
        if made_call not in self.visit.made:
            self.visit = replace(self.visit, made=(*self.visit.made, made_call))
        return result

    def tools(self) -> Sequence[ToolSpec]:
        return TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        options = self.options
        kind = f"toolbox{options.least_calls}-{options.most_calls}-{options.people}"
        found = []
        for index in range(start, start + count):
            name = f"{kind}-{split}-{index}"
            key, words = draw(random.Random(derive_seed(name)), options)
            found.append(Task(name, words, split, index, to_jsonable_python(key)))
        return found

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        """Return a task with the same world and a longer pipeline, as ``longer`` makes it."""
        harder = longer(rng, self.key_of(task))
        return [Task(f"{task.id}.0", prompt(harder), task.split, task.seed, to_jsonable_python(harder))]

    def verdict(self) -> float | None:
        answer = self.visit.answer
        return None if answer is None else float(answer.casefold() == self.key.answer)

    def state_key(self) -> str:
        return f"{self.task.id} {sorted(self.visit.made)} {self.visit.answer}"

    def reference(self) -> Sequence[ToolCall]:
        due = [call for each in self.key.due(self.visit.made) for call in orders(each)]
        return [tool_call(call) for call in due] or [tool_call((ANSWER, (self.key.answer,)))]

    def demonstrator(self, noise: float) -> "ToolboxDemonstrator":
        return ToolboxDemonstrator(self, noise)


class ToolboxDemonstrator:
    """Makes the calls of the pipeline one after another, then answers. With probability ``noise`` it makes another
    call: with another tool or argument, or an answer that is wrong or too early."""

    def __init__(self, env: ToolboxEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        key, made = self._env.key, self._env.visit.made
        due = key.due(made)
        right: Call = due[0] if due else (ANSWER, (key.answer,))
        call = right
        if rng.random() < self._noise:
            wrong = [(name, (argument,)) for name, table in key.tables.items() for argument in table]
            wrong += [(ANSWER, (value,)) for table in key.tables.values() for value in table.values()]
            call = rng.choice([each for each in wrong if each not in (right, *due)])
        return f"{call[0].replace('_', ' ')} {' and '.join(call[1])}", f"{call[0]}[{', '.join(call[1])}]"
