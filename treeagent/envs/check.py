"""A conformance check that users run on their own environments before they search them."""

import pickle
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from treeagent.envs.base import Env, checked_reset, checked_step, checked_verdict
from treeagent.types import Task, ToolCall

Call = str | ToolCall
_Outcome = tuple[str, float, bool, bool]

BAD_TEXT = "no such call [["
BAD_TOOL = ToolCall("no_such_tool", {"no_such_argument": 1})


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
    check = _Check(env, task, tuple(actions), random.Random(seed), success)
    randomness = _global_randomness()
    parts: dict[str, Callable[[], None]] = {
        "first observation": check.first_observation,
        "bad calls": check.bad_calls,
        "empty episodes": partial(check.empty_episodes, finishes),
        "forks": partial(check.forks, branches, depth, other),
        "shared state": partial(check.instances, other, depth),
    }
    for name, part in parts.items():
        try:
            part()
        except Exception as error:  # whatever a stranger's environment raises is the finding
            check.violations.append(f"the check of {name} broke off with {error!r}")
    if _global_randomness() != randomness:
        check.violations.append(
            "the environment moves the global random state of random or numpy: give it its own generator"
        )
    return CheckReport(tuple(check.violations), check.branches, check.equal_branches, tuple(check.skipped))


def _global_randomness() -> tuple[str, str]:
    # An environment can only move numpy's state where numpy is loaded, so it is not imported here.
    numpy = sys.modules.get("numpy")
    return repr(random.getstate()), repr(numpy.random.get_state(legacy=False)) if numpy is not None else ""


class _Check:
    def __init__(self, env: Env, task: Task, actions: tuple[Call, ...], rng: random.Random, success: float) -> None:
        self.violations: list[str] = []
        self.skipped: list[str] = []
        self.branches = self.equal_branches = 0
        self._env, self._task, self._actions, self._rng, self._success = env, task, actions, rng, success

    def first_observation(self) -> None:
        first, again = self._reset(), self._reset()
        if first != again and self._env.snapshot_kind != "none":
            self.violations.append("two resets with one seed give different first observations")
        answer = self._task.data.get("answer")
        if isinstance(answer, str) and answer and answer in f"{self._task.prompt}\n{first}":
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
        self._reset()
        if self._solved():
            self.violations.append("the verifier calls an episode without any action a success")
        at_once: list[Call] = [
            ToolCall(tool.name, {}) for tool in self._env.tools() if not tool.parameters.get("required")
        ]
        for call in (*at_once, *finishes):
            self._reset()
            terminated = checked_step(self._env.step(call))[2]
            if terminated and self._solved():
                self.violations.append(f"the verifier calls an episode of nothing but {call!r} a success")

    def forks(self, branches: int, depth: int, other: Env | None) -> None:
        if self._env.snapshot_kind == "none":
            self.skipped.append("forks: the environment declares snapshot_kind 'none'")
            return
        diverged = restored_wrong = carried_wrong = 0
        for _ in range(branches):
            self._reset()
            before, results = self._wander(self._rng.randrange(depth))
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

    def instances(self, other: Env | None, depth: int) -> None:
        if other is None or self._env.snapshot_kind == "none":
            self.skipped.append("shared state: pass a second instance as other")
            return
        self._reset()
        calls, results = self._wander(depth)
        self._reset()
        other.reset(seed=self._task.seed, options={"task": self._task})
        for call in calls:
            other.step(call)
        if self._play(calls) != results:
            self.violations.append("steps of one instance change what another instance answers: they share state")

    def _reset(self) -> str:
        return checked_reset(self._env.reset(seed=self._task.seed, options={"task": self._task}))[0]

    def _solved(self) -> bool:
        verdict = checked_verdict(self._env.verify())
        return verdict is not None and verdict >= self._success

    def _choose(self) -> Call | None:
        choices: Sequence[Call] = self._actions or self._env.legal_actions() or ()
        if choices:
            return self._rng.choice(choices)
        player = self._env.demonstrator(0.5)
        return player.act(self._rng)[1] if player is not None else None

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
