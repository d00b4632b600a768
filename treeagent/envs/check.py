"""A conformance check that users run on their own environments before they search in them."""

import pickle
import random
import re
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
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
from treeagent.envs.calls import arguments_of, as_call, type_of
from treeagent.types import SPLITS, Split, Task, ToolCall, Unanswered, UserError

Call = str | ToolCall
_Outcome = tuple[str, float, bool, bool]
"""Observation, reward, terminated, truncated."""

BAD_CALLS = (ToolCall("no_such_tool", {"no_such_argument": 1}), "no such call [[")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What OpenAI, vLLM and chat templates take as the name of a tool."""
_ANSWERS = ("answer", "answers", "solution", "gold")
"""Keys of ``Task.data`` that hold the answer."""
_MIN_LEAK_LENGTH = 3
"""Fewest characters of a number that counts as a leak; a shorter one can occur in a text by chance."""
_REPEATS = 3
"""How often a trivial answer is repeated."""
_OTHER_SEEDS = range(2, 10)
"""Seeds from which a stochastic environment must lead elsewhere than from seed 1, at least once."""
_LONGEST_EPISODE = 50
"""Most steps of a demonstrated or random episode."""
_RANDOM_EPISODES = 3
_SUCCESS, _ROUNDING = 1.0, 1e-9
"""The return of a success, which is also the greatest; and its tolerance, as for ten rewards of 0.1."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of ``check_env``."""

    violations: tuple[str, ...]
    """One sentence per broken rule; empty if the check passed."""
    branches: int
    """Number of branches that were compared with a replay of the same actions from a reset."""
    equal_branches: int
    skipped: tuple[str, ...]
    """Checks that were not possible, and what they need."""
    solved: int
    """Demonstrated and random episodes that ended in success."""
    failed: int
    """Such episodes that ended in failure."""
    unended: int
    """Such episodes that ran on to a limit without success."""
    longest: int
    """Calls of the longest demonstration without errors; 0 if there is none."""
    advice: tuple[str, ...]
    """What breaks no rule, but may not be meant."""

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
    """Check an environment for errors that would make a search or a reward wrong.

    A broken rule is reported, not raised. A call that hangs can be reported only if ``env`` is a ``WorkerEnv``.

    Args:
        other: a second instance, to check that instances share no state and restore each other's snapshots.
        actions: calls to try; by default the legal actions, or those of the demonstrator.
        branches: number of restored branches to compare with replays.
        depth: most actions before a fork, and most actions after it.
    """
    check = _Check(env, task, other, actions, branches, depth)
    parts = (check.declarations, check.first_observation, check.bad_calls, check.empty_episodes)
    for part in (*parts, check.forks, check.instances, check.episodes):
        check.rng.seed(0)  # so that the random choices of one part do not depend on another part
        try:
            with contained():
                part()
        except Exception as error:  # any exception of a user's environment is a finding
            check.broke_off(error)
        if part == check.declarations and check.violations:
            break  # the other parts would report the consequences
    if check.repeated:
        check.violations.append(f"{check.repeated} more checks broke off with the same error")
    advice: tuple[str, ...] = ()
    if check.best is not None and check.best < _SUCCESS - _ROUNDING:
        advice = (
            f"no demonstration without errors counts as a success: the best earned {check.best:g}, and only "
            f"{_SUCCESS:g} is one",
        )
    violations, skipped = tuple(check.violations), tuple(check.skipped)
    counts = check.compared, check.equal
    solved, failed, unended = check.ends
    return CheckReport(violations, *counts, skipped, solved, failed, unended, check.longest, advice)


def cause_of(error: BaseException) -> str:
    """An exception of an environment as one sentence: what it says, the line outside this package that raised it, and
    the remedy if it is a known one."""
    own = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    users = [frame for frame in frames if "site-packages" not in frame.filename and "lib/python" not in frame.filename]
    last = next(reversed(users or frames), None)
    where = f" ({Path(last.filename).name}, line {last.lineno}: {last.line})" if last is not None else ""
    loop = "running event loop" in str(error)
    fix = "; run it in a process of its own: --worker, environment.worker=true" if loop else ""
    return f"{error!r:.300}{where}{fix}"


def tool_faults(tools: Sequence[ToolSpec]) -> Iterator[str]:
    """Yield a sentence for each tool whose name or schema models and servers would refuse."""
    for tool in tools:
        if _NAME.fullmatch(tool.name) is None:
            yield f"the name of the tool {tool.name!r} holds blanks or signs: use letters, digits, _ and -, at most 64"
        if not isinstance(tool.parameters, Mapping) or tool.parameters.get("type") != "object":
            yield f"tool {tool.name!r}: parameters is no JSON schema of an object: give type, properties and required"


def check_tasks(env: Env, count: int = 20) -> list[str]:
    """Check the first ``count`` tasks of each split, or all if there are fewer. Returns a sentence per error."""
    violations: list[str] = []
    seen: dict[str, Split] = {}
    for split in SPLITS:
        tasks = first_tasks(env, split, count)
        with suppress(ValueError):  # the split has fewer tasks
            if (given := len(env.tasks(split, count))) != count:
                violations.append(
                    f"tasks({split!r}, {count}) gives {given} tasks: give as many as are asked for, or raise a "
                    "ValueError if the split has fewer"
                )
        if tasks != first_tasks(env, split, count):
            violations.append(f"tasks({split!r}) gives other tasks when asked again")
        if tasks and list(tasks[1:]) != list(first_tasks(env, split, len(tasks) - 1, start=1)):
            violations.append(f"tasks({split!r}) depends on where it starts")
        for task in tasks:
            if task.id in seen:
                violations.append(f"task {task.id!r} of {split!r} is in {seen[task.id]!r}, too: give each its own id")
            if task.split != split:
                violations.append(f"task {task.id!r} of {split!r} says that it is of {task.split!r}")
            seen[task.id] = split
    return violations


def first_tasks(env: Env, split: Split, count: int, start: int = 0) -> Sequence[Task]:
    """Return tasks as ``Env.tasks`` does, or all from ``start`` on if there are fewer than ``count``."""

    def are_missing(number: int) -> bool:
        try:
            env.tasks(split, number, start)
        except ValueError:
            return True
        except Exception as error:  # a user's environment may raise anything
            call = f"tasks({split!r}, {number}, {start})"
            raise UserError(
                f"{call} raised {cause_of(error)}: raise a ValueError if a split has fewer tasks"
            ) from error
        return False

    if count and are_missing(count):
        count = bisect_left(range(1, count + 1), True, key=are_missing)
    return checked_tasks(env.tasks(split, count, start), split) if count else ()


@dataclass(slots=True)
class _Check:
    env: Env
    task: Task
    other: Env | None
    actions: Sequence[Call]
    branches: int
    depth: int
    rng: random.Random = field(default_factory=random.Random)
    violations: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])
    causes: set[str] = field(default_factory=set[str])
    repeated: int = 0
    """Parts that broke off with an error that was reported before."""
    compared: int = 0
    equal: int = 0
    ends: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Episodes that ended in success, in failure, and not at all without success."""
    longest: int = 0
    best: float | None = None
    """What the best demonstration without errors earned."""
    refused: list[Call] = field(default_factory=list[Call])
    """Actions that ``legal_actions`` listed and a step refused."""
    tool_error: bool = False
    """Whether the last step refused its action."""

    def expect(self, condition: bool, violation: str) -> None:
        if not condition:
            self.violations.append(violation)

    def broke_off(self, error: Exception, what: str = "a call") -> None:
        """Report an exception, the first time it occurs."""
        cause = cause_of(error)
        if cause in self.causes:
            self.repeated += 1
        else:
            self.causes.add(cause)
            self.violations.append(f"{what} raised {cause}")

    def declarations(self) -> None:
        known = ", ".join(map(repr, get_args(SnapshotKind)))
        kind = self.env.snapshot_kind
        self.expect(kind in get_args(SnapshotKind), f"snapshot_kind is {kind!r}, but should be one of {known}")
        self.violations += tool_faults(checked_tools(self.env.tools()))

    def first_observation(self) -> None:
        first = self.reset()
        self.take_actions(self.depth)
        same = first == self.reset() or self.env.snapshot_kind == "none"
        self.expect(same, "two resets with one seed give different first observations")
        for answer in _answers(self.task):
            is_shown = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", f"{self.task.prompt}\n{first}")
            self.expect(not is_shown, f"the answer {answer!r} stands in the prompt or the first observation")

    def bad_calls(self) -> None:
        # In an environment that accepts every text as an answer, no text is a bad call.
        texts_count = bool(self.env.tools()) or self.env.legal_actions() is not None
        for call in BAD_CALLS if texts_count else BAD_CALLS[:1]:
            self.reset()
            try:
                *_, info = checked_step(self.env.step(call))
            except Exception as error:  # any exception of a user's environment is a finding
                self.broke_off(error, f"the bad call {call!r}, which wants an observation instead,")
            else:
                self.expect(bool(info.get("tool_error")), f'the bad call {call!r} sets no info["tool_error"]')

    def empty_episodes(self) -> None:
        """Check that trivial episodes do not succeed: without any action, with one call that ends them, or with an
        empty answer or the question itself as the answer, again and again."""
        first = self.reset()
        self.expect(not self.solved(()), "the verifier calls an episode without any action a success")
        tools = self.env.tools()
        bare: list[Call] = [ToolCall(tool.name, {}) for tool in tools if not tool.parameters.get("required")]
        for call in bare:
            self.repeat_call(call, 1)
        for text in ("", self.task.prompt, first):
            answers: list[Call] = [filled for tool in tools if (filled := _trivial_call(tool, text)) is not None]
            for call in answers or ([text] if self.env.legal_actions() is None else []):
                self.repeat_call(call, _REPEATS)

    def repeat_call(self, call: Call, times: int) -> None:
        """Make one call up to ``times`` times and report a success. A single call may solve the task, but not end it
        solved."""
        self.reset()
        results: list[_Outcome] = []
        for repeated in range(1, times + 1):
            results += self.play((call,))
            if self.solved(results) and (results[-1][2] or times > 1):
                what = f"an episode of nothing but {call!r} a success, given {repeated} times"
                self.violations.append(f"the verifier or the rewards call {what}")
                return
            if _over(results):
                return

    def forks(self) -> None:
        """Compare branches from a snapshot, and replays from a reset, with what happened first."""
        if self.env.snapshot_kind == "none":
            self.skipped.append("forks: the environment declares snapshot_kind 'none'")
            return
        # A search over several tasks resets all of them before it returns to the first.
        another = next((each for each in first_tasks(self.env, self.task.split, 2) if each.id != self.task.id), None)
        exact, stochastic = self.env.snapshot_kind == "exact", self.env.stochastic
        diverged = changed = restore_failed = transfer_failed = reseed_ignored = undeclared = 0
        for _ in range(self.branches):
            self.reset()
            before, results = self.take_actions(self.rng.randrange(self.depth))
            if _over(results):
                continue
            snapshot = self.env.snapshot() if exact else None
            taken = pickle.dumps(snapshot)
            tail, tail_results = self.take_actions(self.depth)
            if not tail:
                continue
            self.compared += 1
            equal = True
            if exact:
                changed += pickle.dumps(snapshot) != taken
                self.env.restore(snapshot)
                self.take_actions(self.depth)
                changed += pickle.dumps(snapshot) != taken
                self.reset(another)
                equal = self.replay(snapshot, tail) == tail_results
                restore_failed += not equal
                first = self.replay(snapshot, tail, 1)
                if stochastic:
                    restore_failed += self.replay(snapshot, tail, 1) != first
                    reseed_ignored += all(self.replay(snapshot, tail, seed) == first for seed in _OTHER_SEEDS)
                else:
                    undeclared += first != tail_results
                if self.other is not None:
                    try:
                        self.other.restore(pickle.loads(taken))
                        transfer_failed += self.play(tail, self.other) != tail_results
                    except Exception:  # a snapshot that cannot be restored there may raise anything
                        transfer_failed += 1
            self.reset()
            replayed = self.play((*before, *tail)) == [*results, *tail_results]
            diverged += not replayed
            self.equal += equal and replayed
        differ = f"{diverged} of {self.compared} episodes differ when replayed from reset with one seed"
        self.expect(not diverged, differ)
        if changed:
            self.violations.append("the snapshot changes when the environment goes on: return a copy (copy.deepcopy)")
        else:
            for count, what in (
                (restore_failed, "branches from a snapshot, restored after a reset to another task, differ"),
                (transfer_failed, "pickled snapshots fail on another instance: set snapshot_kind = 'replay'"),
                (undeclared, "branches lead elsewhere with another reseed: set stochastic = True"),
            ):
                self.expect(not count, f"{count} of {self.compared} {what}")
            self.expect(
                not self.compared or reseed_ignored < self.compared,
                "restore with another reseed never leads elsewhere: replace the copied random state, or leave "
                "stochastic out if nothing is left to chance",
            )
        self.expect(
            not self.refused,
            f"step refuses {len(self.refused)} actions that legal_actions lists, such as {self.refused[:1]!r:.100}: "
            "list only what it accepts, or return None",
        )
        if not self.compared:
            self.skipped.append("forks: no actions to try; pass actions, or offer legal_actions or a demonstrator")

    def instances(self) -> None:
        if self.env.snapshot_kind == "none" or self.other is None:
            declared = self.env.snapshot_kind == "none"
            why = "the environment declares snapshot_kind 'none'" if declared else "pass a second instance as other"
            self.skipped.append(f"shared state: {why}")
            return
        self.reset()
        calls, results = self.take_actions(self.depth)
        self.reset()
        self.other.reset(seed=self.task.seed, options={"task": self.task})
        theirs = self.play(calls, self.other)
        if self.play(calls) != results:
            self.violations.append("steps of one instance change what another instance answers: they share state")
        elif theirs != results:
            self.violations.append("two instances answer the same episode differently: seed all that reset draws")

    def episodes(self) -> None:
        """Play demonstrations with and without errors, and random episodes: count how they end, and check the range of
        what they earn and that an answer is not rewarded twice."""
        for noise in (0.0, 0.5, 1.0, *(None,) * _RANDOM_EPISODES):
            self.reset()
            player = None if noise is None else self.player(noise)
            if noise is not None and player is None:
                continue
            calls, results = self.take_actions(_LONGEST_EPISODE, player)
            if not results:
                continue
            earned, verdict, ended = self.earned(results), checked_verdict(self.env.verify()), results[-1][2]
            solved = earned >= _SUCCESS - _ROUNDING
            for kind, counts in enumerate((solved and ended, ended and not solved, not ended and not solved)):
                self.ends[kind] += counts
            if noise == 0.0:
                self.longest, self.best = len(results), earned
            if earned > _SUCCESS + _ROUNDING or (verdict or 0.0) < 0:
                whose = "the rewards say" if verdict is None else "verify says"
                self.violations.append(
                    f"{whose} {earned} of an episode: 1 is success and the most, and a verdict is not below 0"
                )
                return
            if ended and (again := self.play(calls[-1:])[0][1]) > 0:
                self.violations.append(f"{calls[-1]!r}, repeated after the end, is rewarded again by {again:g}")
                return
        self.expect(
            not (self.env.only_success_ends and self.ends[1]),
            f"only_success_ends is True, but {self.ends[1]} episodes ended in failure: leave it out",
        )

    def reset(self, task: Task | None = None) -> str:
        task = task or self.task
        return checked_reset(self.env.reset(seed=task.seed, options={"task": task}))[0]

    def earned(self, results: Sequence[_Outcome]) -> float:
        """Return what the episode so far has earned: the verdict or, without a verifier, the sum of its rewards."""
        verdict = checked_verdict(self.env.verify())
        return sum(reward for _, reward, *_ in results) if verdict is None else verdict

    def solved(self, results: Sequence[_Outcome]) -> bool:
        return self.earned(results) >= _SUCCESS - _ROUNDING

    def player(self, noise: float) -> Callable[[], Call] | None:
        """Return the calls of a demonstrator, or None if there is none."""
        player = self.env.demonstrator(noise)
        return None if player is None else lambda: checked_turn(player.act(self.rng))[1]

    def choose(self, legal: Sequence[str]) -> Call | None:
        if choices := self.actions or legal:
            return self.rng.choice(choices)
        player = self.player(0.5)
        return player() if player is not None else None

    def take_actions(self, steps: int, choose: Callable[[], Call] | None = None) -> tuple[list[Call], list[_Outcome]]:
        """Take up to ``steps`` chosen actions from the current state. Returns the actions and their results."""
        calls: list[Call] = []
        results: list[_Outcome] = []
        while len(calls) < steps and not _over(results):
            legal = checked_legal(self.env.legal_actions()) or ()
            call = self.choose(legal) if choose is None else choose()
            if call is None:
                break
            calls.append(call)
            results += self.play((call,))
            if choose is None and self.tool_error and call in legal:
                self.refused.append(call)
        return calls, results

    def replay(self, snapshot: object, calls: Sequence[Call], reseed: int | None = None) -> list[_Outcome]:
        self.env.restore(snapshot, reseed=reseed)
        return self.play(calls)

    def play(self, calls: Sequence[Call], env: Env | None = None) -> list[_Outcome]:
        return [self.outcome(env or self.env, call) for call in calls]

    def outcome(self, env: Env, call: Call) -> _Outcome:
        """Take a step, as search does. One that the environment cannot answer is truncated."""
        sent = call if self.env.origin == "imagined" else as_call(call, self.env.tools())
        try:
            observation, reward, terminated, truncated, info = checked_step(env.step(sent))
            self.tool_error = bool(info.get("tool_error"))
            return observation, reward, terminated, truncated
        except Unanswered as unanswered:
            return f"Unanswered: {unanswered}", 0.0, False, True


def _over(results: Sequence[_Outcome]) -> bool:
    return bool(results) and (results[-1][2] or results[-1][3])


def _answers(task: Task) -> Iterator[str]:
    """Yield the answers in ``task.data`` as texts, without numbers so short that they may occur by chance."""
    for key in _ANSWERS:
        value = task.data.get(key)
        for each in value if isinstance(value, list | tuple) else (value,):
            shortest = 1 if isinstance(each, str) else _MIN_LEAK_LENGTH
            if isinstance(each, str | int | float) and len(str(each)) >= shortest:
                yield str(each)


def _trivial_call(tool: ToolSpec, text: str) -> ToolCall | None:
    """A call with ``text`` for each required text and an empty value for each other required argument; None if it
    requires none."""
    schemas, required = arguments_of(tool)
    empty = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
    arguments = {name: empty.get(type_of(schemas.get(name)), text) for name in required}
    return ToolCall(tool.name, arguments) if arguments else None
