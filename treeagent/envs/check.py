"""A conformance check that users run on their own environments before they search them."""

import pickle
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from unittest import mock

from treeagent.envs.base import Env, ToolSpec
from treeagent.envs.forks import checked_reset, checked_step, checked_verdict
from treeagent.types import Split, Task, ToolCall

Call = str | ToolCall
_Outcome = tuple[str, float, bool, bool]

BAD_TEXT = "no such call [["
BAD_TOOL = ToolCall("no_such_tool", {"no_such_argument": 1})

_ANSWERS = ("answer", "answers", "solution", "gold")
"""Keys of ``Task.data`` whose value the agent is to find."""
_TELLING_LENGTH = 3
"""Characters from which on a number, unlike a shorter one, does not stand in a text by chance."""
_REPEATS = 3
"""How often an empty answer is given."""
_LONGEST_EPISODE = 50
"""Steps of a demonstrator's episode."""
_PAUSE_SECONDS = 0.5
"""How much later an episode is played again, apart from the clock that is put forward."""
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What ``check_env`` found."""

    violations: tuple[str, ...]
    """One sentence per broken rule; empty is a pass."""
    branches: int
    """Branches compared with the same actions replayed from reset."""
    equal_branches: int
    skipped: tuple[str, ...]
    """Checks that could not be made, and what they would need."""

    @property
    def passed(self) -> bool:
        return not self.violations


@dataclass(frozen=True, slots=True)
class Latency:
    """Wall time of one kind of call, in milliseconds."""

    calls: int
    median: float
    high: float
    """95 % of the calls are faster."""


def check_env(
    env: Env,
    task: Task,
    *,
    other: Env | None = None,
    actions: Sequence[Call] = (),
    finishes: Sequence[Call] = (),
    branches: int = 24,
    depth: int = 6,
    seed: int = 0,
    success: float = 1.0,
) -> CheckReport:
    """Look for what would make a search or a reward wrong. A broken rule is reported, not raised; one that hangs can
    be reported where ``env`` is a ``WorkerEnv``.

    Args:
        env: the environment; it is reset many times.
        other: a second instance, best before its first reset, to see that instances share no state and that portable
            snapshots hold there.
        actions: calls to try. Where none are given, legal actions or the demonstrator supply them.
        finishes: calls that end an episode at once, which must not verify; tools without arguments are tried anyway.
        branches: how many restored branches to compare with replays.
        depth: most actions before and after a fork.
        seed: draws the actions.
        success: the verdict from which on an episode counts as solved.
    """
    check = _Check(env, task, tuple(actions), success)
    randomness = _global_randomness()
    parts: dict[str, Callable[[], None]] = {
        "first observation": partial(check.first_observation, depth),
        "bad calls": check.bad_calls,
        "empty episodes": partial(check.empty_episodes, finishes),
        "forks": partial(check.forks, branches, depth, other),
        "snapshots of several tasks": partial(check.several_tasks, depth),
        "shared state": partial(check.instances, other, depth),
        "rewards": partial(check.rewards, depth),
    }
    for name, part in parts.items():
        check.rng.seed(seed)  # so that no part's draws depend on another's
        try:
            part()
        except Exception as error:  # whatever a stranger's environment raises is the finding
            check.violations.append(f"the check of {name} broke off with {error!r}")
    if _global_randomness() != randomness:
        check.violations.append(
            "the environment moves the global random state of random or numpy: give it its own generator"
        )
    return CheckReport(tuple(check.violations), check.branches, check.equal_branches, tuple(check.skipped))


def check_tasks(env: Env, count: int = 20) -> list[str]:
    """What is wrong with an environment's splits, judged by their first ``count`` tasks, or as many as there are."""
    violations: list[str] = []
    seen: dict[str, Split] = {}
    for split in _SPLITS:
        tasks = first_tasks(env, split, count)
        if tasks != first_tasks(env, split, count):
            violations.append(f"tasks({split!r}) gives other tasks when asked again")
        if tasks[1:] != first_tasks(env, split, len(tasks) - 1, start=1):
            violations.append(f"tasks({split!r}) depends on where it starts")
        for task in tasks:
            if task.id in seen:
                violations.append(f"task {task.id!r} of {split!r} is in {seen[task.id]!r}, too: give each its own id")
            if task.split != split:
                violations.append(f"task {task.id!r} of {split!r} says that it is of {task.split!r}")
            seen[task.id] = split
    return violations


def first_tasks(env: Env, split: Split, count: int, start: int = 0) -> Sequence[Task]:
    """As ``Env.tasks``, but fewer where the split holds fewer."""
    while count:
        try:
            return env.tasks(split, count, start)
        except ValueError:
            count //= 2
    return ()


def measure_env(
    env: Env, task: Task, *, actions: Sequence[Call] = (), episodes: int = 10, depth: int = 6
) -> Mapping[str, Latency]:
    """Wall time of ``reset`` and ``step``, and of ``snapshot`` and ``restore`` where there are any."""
    check = _Check(env, task, tuple(actions), 1.0)
    seconds: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], object]) -> object:
        began = time.perf_counter()
        answer = call()
        seconds.setdefault(name, []).append(time.perf_counter() - began)
        return answer

    for _ in range(episodes):
        timed("reset", check._reset)
        for _ in range(depth):
            action = check._choose()
            if action is None:
                break
            _, _, terminated, truncated, _ = checked_step(timed("step", partial(env.step, action)))
            if env.snapshot_kind == "exact":
                place = timed("snapshot", env.snapshot)
                timed("restore", partial(env.restore, place))
            if terminated or truncated:
                break
    return {name: _latency(each) for name, each in seconds.items()}


def _latency(seconds: Sequence[float]) -> Latency:
    high = quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    return Latency(len(seconds), 1000 * median(seconds), 1000 * high)


def _global_randomness() -> tuple[str, str]:
    # An environment can only move numpy's state where numpy is loaded, so it is not imported here.
    numpy = sys.modules.get("numpy")
    return repr(random.getstate()), repr(numpy.random.get_state(legacy=False)) if numpy is not None else ""


class _Check:
    def __init__(self, env: Env, task: Task, actions: tuple[Call, ...], success: float) -> None:
        self.violations: list[str] = []
        self.skipped: list[str] = []
        self.branches = self.equal_branches = 0
        self.rng = random.Random(0)
        self._env, self._task, self._actions, self._success = env, task, actions, success

    def first_observation(self, depth: int) -> None:
        first = self._reset()
        self._wander(depth)
        again = self._reset()
        if first != again and self._env.snapshot_kind != "none":
            self.violations.append("two resets with one seed give different first observations")
        for answer in _answers(self._task):
            if re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", f"{self._task.prompt}\n{first}"):
                self.violations.append(f"the answer {answer!r} stands in the prompt or the first observation")

    def bad_calls(self) -> None:
        calls: list[Call] = [BAD_TOOL]
        # Where every text is an answer, no text is a bad call.
        if self._env.tools() or self._env.legal_actions() is not None:
            calls.append(BAD_TEXT)
        for call in calls:
            self._reset()
            try:
                *_, info = checked_step(self._env.step(call))
            except Exception as error:  # whatever a stranger's environment raises is the finding
                self.violations.append(f"the bad call {call!r} raises {error!r}: answer with an observation instead")
                continue
            if not info.get("tool_error"):
                self.violations.append(f'the bad call {call!r} sets no info["tool_error"]')

    def empty_episodes(self, finishes: Sequence[Call]) -> None:
        first = self._reset()
        if self._solved():
            self.violations.append("the verifier calls an episode without any action a success")
        tools = self._env.tools()
        at_once: list[Call] = [ToolCall(tool.name, {}) for tool in tools if not tool.parameters.get("required")]
        for call in (*at_once, *finishes):
            self._reset()
            terminated = checked_step(self._env.step(call))[2]
            if terminated and self._solved():
                self.violations.append(f"the verifier calls an episode of nothing but {call!r} a success")
        for said in ("", self._task.prompt, first):
            answers: list[Call] = [filled for tool in tools if (filled := _filled(tool, said)) is not None]
            for call in answers or ([said] if self._env.legal_actions() is None else []):
                self._answer_nothing(call)

    def _answer_nothing(self, call: Call) -> None:
        """An answer that says nothing, or repeats what was asked, and that again and again."""
        self._reset()
        for times in range(1, _REPEATS + 1):
            _, _, terminated, truncated, _ = checked_step(self._env.step(call))
            if self._solved():
                self.violations.append(
                    f"the verifier calls an episode of nothing but {call!r} a success, given {times} times"
                )
            if terminated or truncated or self._solved():
                break

    def rewards(self, depth: int) -> None:
        """Rewards that an answer earns twice, or that depend on the time of day or on how long an agent thinks."""
        if self._env.snapshot_kind == "none":
            self.skipped.append("rewards at another time: the environment declares snapshot_kind 'none'")
            return
        self._reset()
        calls, results = self._demonstrate() or self._wander(depth)
        verdict = checked_verdict(self._env.verify())
        if calls and results[-1][2]:
            again = checked_step(self._env.step(calls[-1]))[1]
            if again > 0:
                self.violations.append(f"{calls[-1]!r}, repeated after the end, is rewarded again by {again:g}")
        with _later() as pass_time:
            self._reset()
            later: list[_Outcome] = []
            for call in calls:
                pass_time(_PAUSE_SECONDS / len(calls))
                later += self._play((call,))
            same = [each[0] for each in later] == [each[0] for each in results]
            if same and (later != results or checked_verdict(self._env.verify()) != verdict):
                self.violations.append(
                    "the same episode played later is rewarded otherwise: keep clocks out of rewards"
                )

    def _demonstrate(self) -> tuple[list[Call], list[_Outcome]] | None:
        player, rng = self._env.demonstrator(0.0), random.Random(0)
        if player is None:
            return None
        calls: list[Call] = []
        results: list[_Outcome] = []
        while len(calls) < _LONGEST_EPISODE and not (results and (results[-1][2] or results[-1][3])):
            calls.append(player.act(rng)[1])
            results += self._play((calls[-1],))
        return calls, results

    def forks(self, branches: int, depth: int, other: Env | None) -> None:
        if self._env.snapshot_kind == "none":
            self.skipped.append("forks: the environment declares snapshot_kind 'none'")
            return
        diverged = restored_wrong = carried_wrong = luck_kept = reseeded = 0
        for _ in range(branches):
            self._reset()
            before, results = self._wander(self.rng.randrange(depth))
            if results and results[-1][2]:
                continue
            place = self._env.snapshot() if self._env.snapshot_kind == "exact" else None
            tail, tail_results = self._wander(depth)
            if not tail:
                continue
            self.branches += 1
            equal = True
            if place is not None:
                self._env.restore(place)
                self._wander(depth)
                self._env.restore(place)
                equal = self._play(tail) == tail_results
                restored_wrong += not equal
                if self._env.stochastic:
                    lucks = [self._reseeded(place, tail, seed) for seed in (1, 1, 2)]
                    restored_wrong += lucks[0] != lucks[1]
                    luck_kept += lucks[0] == lucks[2]
                    reseeded += 1
                if other is not None and self._env.snapshot_portable and (pickled := _pickled(place)):
                    other.restore(pickle.loads(pickled))
                    carried_wrong += self._play(tail, other) != tail_results
            self._reset()
            replayed = self._play((*before, *tail)) == [*results, *tail_results]
            diverged += not replayed
            self.equal_branches += equal and replayed
        if restored_wrong:
            self.violations.append(
                f"{restored_wrong} of {self.branches} branches from a restored snapshot differ from the first time"
            )
        if luck_kept == reseeded > 0:
            self.violations.append(
                "restore with another reseed never leads elsewhere: replace the copied random state, or say that the "
                "environment is not stochastic"
            )
        if carried_wrong:
            self.violations.append(
                f"{carried_wrong} of {self.branches} branches differ where a pickled snapshot is restored on another "
                "instance: set snapshot_portable = False"
            )
        if diverged:
            self.violations.append(
                f"{diverged} of {self.branches} episodes differ when replayed from reset with one seed"
            )
        if not self.branches:
            self.skipped.append("forks: no actions to try; pass actions, or offer legal_actions or a demonstrator")

    def several_tasks(self, depth: int) -> None:
        """A search of several tasks resets all of them before it goes back to the first."""
        if self._env.snapshot_kind != "exact":
            return
        others = [each for each in first_tasks(self._env, self._task.split, 2) if each.id != self._task.id]
        self._reset()
        place = self._env.snapshot()
        calls, results = self._wander(depth)
        self._reset(others[0] if others else self._task)
        try:
            self._env.restore(place)
            found = "leads elsewhere" if self._play(calls) != results else ""
        except Exception as error:  # whatever a stranger's environment raises is the finding
            found = f"raises {error!r}"
        if found:
            self.violations.append(
                f"a snapshot that is restored after a reset to another task {found}: keep snapshots over a reset, or "
                "set snapshot_kind = 'replay'"
            )

    def _reseeded(self, place: object, calls: Sequence[Call], seed: int) -> list[_Outcome]:
        self._env.restore(place, reseed=seed)
        return self._play(calls)

    def instances(self, other: Env | None, depth: int) -> None:
        if other is None or self._env.snapshot_kind == "none":
            self.skipped.append("shared state: pass a second instance as other")
            return
        self._reset()
        calls, results = self._wander(depth)
        self._reset()
        other.reset(seed=self._task.seed, options={"task": self._task})
        theirs = self._play(calls, other)
        if self._play(calls) != results:
            self.violations.append("steps of one instance change what another instance answers: they share state")
        elif theirs != results:
            self.violations.append("two instances answer the same episode differently: seed all that reset draws")

    def _reset(self, task: Task | None = None) -> str:
        task = task or self._task
        return checked_reset(self._env.reset(seed=task.seed, options={"task": task}))[0]

    def _solved(self) -> bool:
        verdict = checked_verdict(self._env.verify())
        return verdict is not None and verdict >= self._success

    def _choose(self) -> Call | None:
        choices: Sequence[Call] = self._actions or self._env.legal_actions() or ()
        if choices:
            return self.rng.choice(choices)
        player = self._env.demonstrator(0.5)
        return player.act(self.rng)[1] if player is not None else None

    def _wander(self, steps: int) -> tuple[list[Call], list[_Outcome]]:
        """Up to ``steps`` chosen actions from where the environment stands, and what they led to."""
        calls: list[Call] = []
        results: list[_Outcome] = []
        while len(calls) < steps and not (results and (results[-1][2] or results[-1][3])):
            call = self._choose()
            if call is None:
                break
            calls.append(call)
            results += self._play((call,))
        return calls, results

    def _play(self, calls: Sequence[Call], env: Env | None = None) -> list[_Outcome]:
        results: list[_Outcome] = []
        for call in calls:
            observation, reward, terminated, truncated, _ = checked_step((env or self._env).step(call))
            results.append((observation, reward, terminated, truncated))
        return results


def _pickled(snapshot: object) -> bytes:
    """Empty where it cannot be pickled, and so must not be portable."""
    try:
        return pickle.dumps(snapshot)
    except Exception:  # whatever a stranger's object raises
        return b""


def _answers(task: Task) -> Iterator[str]:
    """The texts in ``task.data`` that the agent is to find; not numbers so short that they stand anywhere."""
    for key in _ANSWERS:
        value = task.data.get(key)
        for each in value if isinstance(value, list | tuple) else (value,):
            if (isinstance(each, str) and each) or (
                isinstance(each, int | float) and len(str(each)) >= _TELLING_LENGTH
            ):
                yield str(each)


def _filled(tool: ToolSpec, said: str) -> ToolCall | None:
    """A call of ``tool`` that says ``said`` wherever it asks for a text, and 0 wherever for a number."""
    properties, required = tool.parameters.get("properties"), tool.parameters.get("required")
    if not isinstance(properties, Mapping) or not isinstance(required, list | tuple) or not required:
        return None
    empty = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
    return ToolCall(tool.name, {name: empty.get(properties[name].get("type"), said) for name in required})


@contextmanager
def _later() -> Iterator[Callable[[float], None]]:
    """Within it, the clock on the wall goes an hour ahead at every pause; the call pauses for some real seconds, too,
    for clocks that cannot be put forward, as one in another process."""
    hours = 0
    now, now_ns = time.time, time.time_ns

    def pause(seconds: float) -> None:
        nonlocal hours
        hours += 1
        time.sleep(seconds)

    with mock.patch.multiple(time, time=lambda: now() + 3600 * hours, time_ns=lambda: now_ns() + 3600 * 10**9 * hours):
        yield pause
