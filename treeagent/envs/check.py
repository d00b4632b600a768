"""A conformance check that users run on their own environments before they search in them."""

import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from treeagent.envs.answers import (
    checked_legal,
    checked_reset,
    checked_step,
    checked_tasks,
    checked_tools,
    checked_turn,
    checked_verdict,
    contained,
)
from treeagent.envs.base import Env, SnapshotKind, ToolSpec
from treeagent.envs.calls import TYPES, arguments_of, as_call
from treeagent.types import SPLITS, Split, Task, ToolCall, UserError, raised_at

Call = str | ToolCall
_Outcome = tuple[str, float, bool, bool, bool]
"""Observation, reward, terminated, truncated, refused."""

_BAD_CALLS = (ToolCall("no_such_tool", {"no_such_argument": 1}), "no such call [[")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What OpenAI, vLLM and chat templates take as the name of a tool."""
_ANSWERS = ("answer", "answers", "solution", "gold")
"""Keys of ``Task.data`` that hold the answer."""
_REPEATS = 3
_LONGEST_EPISODE = 50
_NOISES = (0.0, 0.5, 1.0, None, None, None)
"""The demonstrators' rates of errors, one episode each; None plays a random episode."""
_SUCCESS = 1.0 - 1e-9
"""The least return of a success. Ten rewards of 0.1 sum to less than 1."""
_DIFFERENCES = {
    "replay": "episodes differ when replayed from reset with one seed",
    "branch": "branches from a snapshot, restored after a reset to another task, differ",
    "transfer": "pickled snapshots fail on another instance: set snapshot_kind = 'replay'",
    "undeclared": "branches lead elsewhere with another reseed: set stochastic = True",
}


@dataclass(slots=True)
class CheckReport:
    """The result of ``check_env``. Episodes are demonstrations, with and without errors, and random ones."""

    violations: list[str] = field(default_factory=list[str])
    """One sentence per broken rule; empty if the check passed."""
    skipped: list[str] = field(default_factory=list[str])
    """Checks that were not possible, and what they need."""
    branches: int = 0
    """Branches that were compared with a replay of the same actions from a reset."""
    equal_branches: int = 0
    solved: int = 0
    failed: int = 0
    unended: int = 0
    """Episodes that ended in success, in failure, and not at all without success."""
    longest: int = 0
    """Calls of the demonstration without errors; 0 if there is none."""
    best: float = 0.0
    """What the best episode earned."""

    @property
    def passed(self) -> bool:
        return not self.violations


def check_env(
    env: Env,
    task: Task,
    *,
    other: Env | None = None,
    actions: Sequence[Call] = (),
    branches: int = 24,
    depth: int = 6,
) -> CheckReport:
    """Check an environment for errors that would make a search or a reward wrong, which are reported, not raised.
    ``other`` is a second instance, ``actions`` are calls to try (by default the legal ones, or the demonstrator's).
    ``branches`` restored branches are compared with replays, each at most ``depth`` actions before and after its fork.
    """
    check = _Check(env, task, other, actions, branches, depth)
    for part in (check.declare, check.open, check.misuse, check.cheat, check.fork, check.share, check.play_episodes):
        check.rng.seed(0)  # so that the random choices of one part do not depend on another part
        try:
            with contained():
                part()
        except Exception as error:  # any exception of a user's environment is a finding
            check.broke_off(error)
        if part == check.declare and check.report.violations:
            break  # the other parts would report the consequences
    repeated = check.causes.total() - len(check.causes)
    check.expect(not repeated, f"{repeated} more checks broke off with the same error")
    return check.report


def cause_of(error: BaseException) -> str:
    """An exception of an environment as one sentence: what it says, the user's line that raised it, and a remedy."""
    loop = "running event loop" in str(error)
    fix = "; run it in a process of its own: --worker, environment.worker=true" if loop else ""
    return f"{error!r:.300}{raised_at(error)}{fix}"


def check_tasks(env: Env, count: int = 20) -> list[str]:
    """Check the first ``count`` tasks of each split, or fewer if there are not as many."""
    violations: list[str] = []
    seen: dict[str, Split] = {}
    for split in SPLITS:
        tasks = first_tasks(env, split, count)
        if tasks != first_tasks(env, split, len(tasks)):
            violations.append(f"tasks({split!r}) gives other tasks when asked again")
        if list(tasks[1:]) != list(first_tasks(env, split, len(tasks) - 1, start=1)):
            violations.append(f"tasks({split!r}) depends on where it starts")
        for task in tasks:
            if task.id in seen:
                violations.append(f"task {task.id!r} of {split!r} is in {seen[task.id]!r}, too: give each its own id")
            if task.split != split:
                violations.append(f"task {task.id!r} of {split!r} says that it is of {task.split!r}")
            seen[task.id] = split
    return violations


def first_tasks(env: Env, split: Split, count: int, start: int = 0) -> Sequence[Task]:
    """Return ``count`` tasks as ``Env.tasks`` does; a half, a quarter and so on where the split has fewer."""
    while count > 0:
        try:
            found = env.tasks(split, count, start)
        except ValueError:
            count //= 2
            continue
        except Exception as error:  # a user's environment may raise anything
            call = f"tasks({split!r}, {count}, {start})"
            raise UserError(f"{call} raised {cause_of(error)}: raise a ValueError if a split has fewer") from error
        if len(tasks := checked_tasks(found, split)) not in (0, count):
            raise UserError(f"tasks({split!r}, {count}) gives {len(tasks)} tasks: give as many as are asked for")
        return tasks
    return ()


@dataclass(slots=True)
class _Check:
    env: Env
    task: Task
    other: Env | None
    actions: Sequence[Call]
    branches: int
    depth: int
    rng: random.Random = field(default_factory=random.Random)
    report: CheckReport = field(default_factory=CheckReport)
    causes: Counter[str] = field(default_factory=Counter[str])
    refused: list[Call] = field(default_factory=list[Call])
    """Actions that ``legal_actions`` listed and a step refused."""

    def expect(self, condition: object, violation: str) -> None:
        if not condition:
            self.report.violations.append(violation)

    def broke_off(self, error: Exception, what: str = "a call") -> None:
        """Report an exception, the first time it occurs."""
        cause = cause_of(error)
        self.expect(cause in self.causes, f"{what} raised {cause}")
        self.causes[cause] += 1

    def declare(self) -> None:
        kinds, kind = get_args(SnapshotKind), self.env.snapshot_kind
        self.expect(kind in kinds, f"snapshot_kind is {kind!r}, but should be one of {', '.join(map(repr, kinds))}")
        for tool in checked_tools(self.env.tools()):
            named = f"the name of the tool {tool.name!r} holds blanks or signs"
            self.expect(_NAME.fullmatch(tool.name), f"{named}: use letters, digits, _ and -, at most 64")
            is_object = isinstance(tool.parameters, Mapping) and tool.parameters.get("type") == "object"
            form = "is no JSON schema of an object: give type, properties and required"
            self.expect(is_object, f"tool {tool.name!r}: parameters {form}")
            unknown = sorted(set(_types_in(tool.parameters)) - TYPES.keys()) if is_object else []
            wrong = f"its schema names {unknown[:1]}, which is no type of JSON: {', '.join(TYPES)}"
            self.expect(not unknown, f"tool {tool.name!r}: {wrong}")

    def open(self) -> None:
        first = self.reset()
        self.take_actions(self.depth)
        same = first == self.reset() or self.env.snapshot_kind == "none"
        self.expect(same, "two resets with one seed give different first observations")
        for answer in _answers(self.task):
            is_shown = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", f"{self.task.prompt}\n{first}")
            self.expect(not is_shown, f"the answer {answer!r} stands in the prompt or the first observation")

    def misuse(self) -> None:
        # In an environment that accepts every text as an answer, no text is a bad call.
        texts_count = bool(self.env.tools()) or self.env.legal_actions() is not None
        for call in _BAD_CALLS if texts_count else _BAD_CALLS[:1]:
            self.reset()
            try:
                *_, info = checked_step(self.env.step(call))
                self.expect(info.get("tool_error"), f'the bad call {call!r} sets no info["tool_error"]')
            except Exception as error:  # any exception of a user's environment is a finding
                self.broke_off(error, f"the bad call {call!r}, which wants an observation instead,")

    def cheat(self) -> None:
        """Check that no trivial episode succeeds: without any action, with one call that ends it, or with an empty
        answer or the question itself as the answer, again and again."""
        first, tools = self.reset(), self.env.tools()
        self.expect(self.earned(()) < _SUCCESS, "the verifier calls an episode without any action a success")
        texts, calls = ("", self.task.prompt, first), list[Call]()
        for tool in tools:
            calls += [_trivial_call(tool, text) for text in (texts if tool.parameters.get("required") else ("",))]
        if not tools and self.env.legal_actions() is None:
            calls += texts
        for call in calls:
            self.reset()
            results: list[_Outcome] = []
            # A call without arguments is made once, and may solve the task, but not end it.
            times = 1 if isinstance(call, ToolCall) and not call.arguments else _REPEATS
            while len(results) < times and not _over(results):
                results += self.play((call,))
                if self.earned(results) >= _SUCCESS and (results[-1][2] or times > 1):
                    what = f"an episode of nothing but {call!r} a success, given {len(results)} times"
                    self.expect(False, f"the verifier or the rewards call {what}")
                    break

    def fork(self) -> None:
        """Compare branches from a snapshot, and replays from a reset, with what happened first."""
        if self.env.snapshot_kind == "none":
            self.report.skipped.append("forks: the environment declares snapshot_kind 'none'")
            return
        # A search over several tasks resets all of them before it returns to the first.
        another = next((each for each in first_tasks(self.env, self.task.split, 2) if each.id != self.task.id), None)
        exact, found, compared = self.env.snapshot_kind == "exact", Counter[str](), 0
        for _ in range(self.branches):
            self.reset()
            before, results = self.take_actions(self.rng.randrange(self.depth))
            if _over(results):
                continue
            snapshot = self.env.snapshot() if exact else None
            taken = pickle.dumps(snapshot)
            tail, expected = self.take_actions(self.depth)
            if not tail:
                continue
            compared += 1
            differing = self.restored(snapshot, taken, tail, expected, another) if exact else set[str]()
            self.reset()
            if self.play((*before, *tail)) != [*results, *expected]:
                differing.add("replay")
            found.update(differing)
            self.report.equal_branches += not differing & {"branch", "replay"}
        self.report.branches = compared
        if not compared:
            self.report.skipped.append("forks: no actions to try; offer legal_actions or a demonstrator")
        if found["changed"]:
            self.expect(False, "the snapshot changes when the environment goes on: return a copy (copy.deepcopy)")
            return
        for name, what in _DIFFERENCES.items():
            self.expect(not found[name], f"{found[name]} of {compared} {what}")
        fated = "restore with another reseed never leads elsewhere: replace the copied random state"
        self.expect(not compared or found["fated"] < compared, f"{fated}, or leave stochastic out without any chance")
        listed = f"step refuses {len(self.refused)} actions that legal_actions lists, such as {self.refused[:1]!r:.100}"
        self.expect(not self.refused, f"{listed}: list only what it accepts, or return None")

    def restored(
        self, snapshot: object, taken: bytes, tail: Sequence[Call], expected: list[_Outcome], another: Task | None
    ) -> set[str]:
        """Restore an exact snapshot in several ways. Returns those that differ from what is ``expected``."""
        changed = pickle.dumps(snapshot) != taken
        self.env.restore(snapshot)
        self.take_actions(self.depth)
        found = {"changed": changed or pickle.dumps(snapshot) != taken}
        self.reset(another)
        found["branch"] = self.replay(snapshot, tail) != expected
        first = self.replay(snapshot, tail, 1)
        if self.env.stochastic:
            found["branch"] |= self.replay(snapshot, tail, 1) != first
            found["fated"] = all(self.replay(snapshot, tail, seed) == first for seed in range(2, 10))
        else:
            found["undeclared"] = first != expected
        if self.other is not None:
            try:
                self.other.restore(pickle.loads(taken))
                found["transfer"] = self.play(tail, self.other) != expected
            except Exception:  # a snapshot that cannot be restored there may raise anything
                found["transfer"] = True
        return {name for name, differs in found.items() if differs}

    def share(self) -> None:
        if self.env.snapshot_kind == "none" or self.other is None:
            self.report.skipped.append("shared state: it needs another instance and a snapshot_kind other than 'none'")
            return
        self.reset()
        calls, results = self.take_actions(self.depth)
        self.reset()
        self.other.reset(seed=self.task.seed, options={"task": self.task})
        theirs = self.play(calls, self.other)
        same = self.play(calls) == results
        self.expect(same, "steps of one instance change what another instance answers: they share state")
        differ = "two instances answer the same episode differently: seed all that reset draws"
        self.expect(not same or theirs == results, differ)

    def play_episodes(self) -> None:
        """Play demonstrations and random episodes: count how they end, and check the range of what they earn and that
        an answer is not rewarded twice."""
        report = self.report
        for noise in _NOISES:
            self.reset()
            player = None if noise is None else self.player(noise)
            calls, results = self.take_actions(_LONGEST_EPISODE, player) if noise is None or player else ([], [])
            if not results:
                continue
            earned, ended = self.earned(results), results[-1][2]
            solved = earned >= _SUCCESS
            report.solved += solved and ended
            report.failed += ended and not solved
            report.unended += not ended and not solved
            report.best = max(report.best, earned)
            report.longest = len(results) if noise == 0.0 else report.longest
            if earned > 2.0 - _SUCCESS or (checked_verdict(self.env.verify()) or 0.0) < 0:
                told = f"an episode earns {earned:g}: 1 is success and the most, and a verdict is not below 0"
                self.expect(False, told)
                return
            if ended and (again := self.play(calls[-1:])[0][1]) > 0:
                self.expect(False, f"{calls[-1]!r}, repeated after the end, is rewarded again by {again:g}")
                return
        told = f"only_success_ends is True, but {report.failed} episodes ended in failure: leave it out"
        self.expect(not (self.env.only_success_ends and report.failed), told)

    def reset(self, task: Task | None = None) -> str:
        task = task or self.task
        return checked_reset(self.env.reset(seed=task.seed, options={"task": task}))[0]

    def earned(self, results: Sequence[_Outcome]) -> float:
        """What the episode so far has earned: the verdict or, without a verifier, the sum of its rewards."""
        verdict = checked_verdict(self.env.verify())
        return sum(reward for _, reward, *_ in results) if verdict is None else verdict

    def player(self, noise: float) -> Callable[[], Call] | None:
        player = self.env.demonstrator(noise)
        return None if player is None else lambda: checked_turn(player.act(self.rng))[1]

    def take_actions(self, steps: int, choose: Callable[[], Call] | None = None) -> tuple[list[Call], list[_Outcome]]:
        """Take up to ``steps`` chosen actions from the current state. Returns the actions and their results."""
        calls: list[Call] = []
        results: list[_Outcome] = []
        while len(calls) < steps and not _over(results):
            legal = checked_legal(self.env.legal_actions()) or ()
            if choose is not None:
                call = choose()
            elif self.actions or legal:
                call = self.rng.choice(self.actions or legal)
            elif (player := self.player(0.5)) is not None:
                call = player()
            else:
                break
            calls.append(call)
            results += self.play((call,))
            if choose is None and results[-1][4] and call in legal:
                self.refused.append(call)
        return calls, results

    def replay(self, snapshot: object, calls: Sequence[Call], reseed: int | None = None) -> list[_Outcome]:
        self.env.restore(snapshot, reseed=reseed)
        return self.play(calls)

    def play(self, calls: Sequence[Call], env: Env | None = None) -> list[_Outcome]:
        results = list[_Outcome]()
        for call in calls:
            step = checked_step((env or self.env).step(as_call(call, self.env.tools())))
            results.append((*step[:4], bool(step[4].get("tool_error"))))
        return results


def _over(results: Sequence[_Outcome]) -> bool:
    return bool(results) and (results[-1][2] or results[-1][3])


def _types_in(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        named = schema.get("type", ())
        yield from [named] if isinstance(named, str) else map(str, named if isinstance(named, list | tuple) else ())
        parts = [part for key, part in schema.items() if key not in ("enum", "const", "default", "examples")]
    else:
        parts = list(schema) if isinstance(schema, list | tuple) else []
    for part in parts:
        yield from _types_in(part)


def _answers(task: Task) -> Iterator[str]:
    """Yield the answers in ``task.data`` as texts, without numbers below 100, which may occur by chance."""
    for key in _ANSWERS:
        value = task.data.get(key)
        for each in value if isinstance(value, list | tuple) else (value,):
            if (isinstance(each, str) and each) or (isinstance(each, int | float) and len(str(each)) > 2):
                yield str(each)


def _trivial_call(tool: ToolSpec, text: str) -> ToolCall:
    """A call with ``text`` for each required text and an empty value for each other required argument."""
    schemas, required = arguments_of(tool)
    empty = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
    kinds = {name: schema.get("type") if isinstance(schema, Mapping) else "" for name, schema in schemas.items()}
    return ToolCall(tool.name, {name: empty.get(str(kinds.get(name)), text) for name in required})
