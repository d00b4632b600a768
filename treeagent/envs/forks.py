"""Return to earlier states of an episode: marks, stored snapshots, and checked replays from the start of the task."""

import hashlib
import pickle
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from treeagent.envs.answers import checked_reset, checked_step
from treeagent.envs.base import Env, StepResult, ToolSpec
from treeagent.envs.calls import as_call
from treeagent.types import Task, ToolCall, derive_seed


class ReplayDivergence(RuntimeError):
    """The same reset and actions led to a different observation, so the environment cannot be replayed."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Mark:
    """A state in an episode of a ``Forkable``."""

    task: Task
    actions: tuple[str | ToolCall, ...] = field(default=(), compare=False)
    hashes: tuple[str, ...] = ()
    """Hash of the reset's observation, followed by one hash for each action's observation."""
    state_seed: int = field(default=0, repr=False)
    """Value from which the seeds of a stochastic environment derive here. It depends on the seeds and actions that led
    to this state. Marks are compared by it instead of by the actions, because Python takes the arguments 1 and True as
    equal."""
    parent: "Mark | None" = field(default=None, compare=False, repr=False)
    """The nearest earlier mark that may have a snapshot to replay from."""


def _hash(observation: str) -> str:
    return hashlib.blake2b(observation.encode(), digest_size=8).hexdigest()


SNAPSHOT_BYTES = 2**28
"""Default budget for stored snapshots, in bytes."""
UNMEASURED_BYTES = 2**20
"""Size in bytes that is assumed for a snapshot that cannot be pickled."""


def snapshot_size(snapshot: object) -> int:
    """Return the size of a snapshot in bytes: its length if it is bytes, otherwise the length of its pickle."""
    if isinstance(snapshot, bytes):
        return len(snapshot)
    try:
        return len(pickle.dumps(snapshot))
    except Exception:  # a user's object that cannot be pickled may raise anything
        return UNMEASURED_BYTES


@dataclass(slots=True)
class _Stored:
    mark: "weakref.ref[Mark]"
    snapshot: object
    size: int
    visits: int = 0


class Snapshots:
    """Thread-safe store of snapshots by mark. A snapshot is dropped when its mark is garbage-collected; beyond
    ``budget`` bytes, the least recently used snapshots are evicted."""

    def __init__(self, budget: int = SNAPSHOT_BYTES) -> None:
        self.budget = budget
        self.used = 0
        self.evicted = 0
        self._entries: OrderedDict[int, _Stored] = OrderedDict()
        self._lock = threading.RLock()  # reentrant: garbage collection during a call may end a mark

    def get(self, mark: Mark) -> _Stored | None:
        """Return the entry of a mark, None if there is none."""
        with self._lock:
            entry = self._entries.get(id(mark))
            if entry is not None:
                self._entries.move_to_end(id(mark))
            return entry

    def put(self, mark: Mark, snapshot: object, size: int, *, evict: bool = True) -> bool:
        """Store a snapshot. Without ``evict`` nothing is stored, and False returned, if others would have to go."""
        with self._lock:
            if not evict and self.used + size > self.budget:
                return False
            if size > self.budget:
                self.evicted += 1
                return True
            # By identity: equal marks of a stochastic environment can differ in hidden state.
            key, store = id(mark), weakref.ref(self)

            def forget(_: object) -> None:
                if (alive := store()) is not None:
                    alive.drop(key)

            self.drop(key)
            self._entries[key] = _Stored(weakref.ref(mark, forget), snapshot, size)
            self.used += size
            while self.used > self.budget:
                self.drop(next(iter(self._entries)))
                self.evicted += 1
            return True

    def drop(self, key: int) -> None:
        with self._lock:
            entry = self._entries.pop(key, None)
            self.used -= entry.size if entry is not None else 0


class Forkable:
    """Adds ``mark`` and ``goto`` to any environment, by exact snapshots or else by a reset and a checked replay.

    Snapshots live as long as their marks, within the budget of the store (see ``snapshot_size``). A snapshot that was
    evicted is made again by a checked replay from the nearest earlier snapshot.
    A replay would not repeat the random outcomes of a stochastic environment, so its snapshots are never evicted: a
    mark that does not fit into the budget raises an error.

    A restored random state would let a search foresee random outcomes, so ``goto`` reseeds a stochastic environment.
    The new seed depends only on ``seed``, the task, the actions and visits that led to the mark, and how often the mark
    was visited before. Other trees of the batch have no influence; another ``seed`` gives other outcomes. A stochastic
    environment without exact snapshots is replayed from its task's seed, which repeats its random outcomes.

    Args:
        env: the environment; nothing else may step it.
        seed: seed of the random outcomes of a stochastic environment.
        snapshots: store for snapshots. Instances of one environment may share it: one can return to a mark of another.
    """

    def __init__(self, env: Env, *, seed: int = 0, snapshots: Snapshots | None = None) -> None:
        self.env = env
        self.replayed_steps = 0
        """Environment steps made so far to return to earlier states by replay."""
        self.restored_snapshots = 0
        self._seed = seed
        self._snapshots = snapshots or Snapshots()
        self._tools: Sequence[ToolSpec] | None = None
        """The environment's tools, requested when the first text has to be parsed."""
        self._current: Mark | None = None
        """The current state; ``None`` if it is unknown, such as after an error."""
        self._state_seed = 0

    @property
    def evicted_snapshots(self) -> int:
        """Number of snapshots evicted so far because of the budget."""
        return self._snapshots.evicted

    def reset(self, task: Task) -> tuple[str, dict[str, object]]:
        """Start ``task`` with the task's own seed. Raises ``EnvBroken`` as ``checked_reset`` does."""
        self.forget_state()
        observation, info = checked_reset(self.env.reset(seed=task.seed, options={"task": task}))
        self._state_seed = derive_seed(self._seed, task.id, task.seed)
        self._current = Mark(task, hashes=(_hash(observation),), state_seed=self._state_seed)
        return observation, info

    def step(self, action: str | ToolCall) -> StepResult:
        """Take one step from the current state.

        If the environment has tools and a text names one of them, the environment gets a ``ToolCall``
        (``calls.as_call``). Marks keep the action as given. Raises ``EnvBroken`` as ``checked_step`` does.
        """
        mark = self._current_mark()
        self.forget_state()
        result = checked_step(self.env.step(self._call(action)))
        self._state_seed = derive_seed(self._state_seed, repr(action))
        parent = None
        if self._replayable:
            parent = mark if self._stored_snapshot(mark) is not None else mark.parent
        self._current = Mark(
            mark.task, (*mark.actions, action), (*mark.hashes, _hash(result[0])), self._state_seed, parent
        )
        return result

    def _call(self, action: str | ToolCall) -> str | ToolCall:
        # A world model was trained on calls in the agent's own format, so it gets the text as written.
        if isinstance(action, ToolCall) or self.env.origin == "imagined":
            return action
        if self._tools is None:
            self._tools = self.env.tools()
        return as_call(action, self._tools)

    def mark(self) -> Mark:
        """Return a mark of the current state for ``goto``."""
        current = self._current_mark()
        if self.env.snapshot_kind == "exact" and self._stored_snapshot(current) is None:
            self._store_snapshot(current)
        return current

    def goto(self, mark: Mark) -> None:
        """Return to the state of ``mark``."""
        if self.env.snapshot_kind == "exact":
            self.forget_state()
            if self._replayable:
                self._restore_or_replay(mark)
            else:
                self._restore_reseeded(mark)
            self._current = mark
        elif mark != self._current:
            if self.env.snapshot_kind == "none" and mark.actions:
                raise ValueError(
                    f"{type(self.env).__name__} has snapshot_kind 'none' and cannot go back: search it with a world "
                    "model"
                )
            self._replay(mark, self._reset_for_replay(mark))

    def forget_state(self) -> None:
        """Forget the current state, for example after a call of the environment has failed."""
        self._current = None

    @property
    def _replayable(self) -> bool:
        return self.env.snapshot_kind == "exact" and not self.env.stochastic

    def _restore_reseeded(self, mark: Mark) -> None:
        entry = self._stored_snapshot(mark)
        if entry is None:
            raise RuntimeError(f"no snapshot of task {mark.task.id!r} is kept at this mark: another Forkable made it")
        self._state_seed = derive_seed(mark.state_seed, entry.visits) % 2**31  # some generators accept no larger seeds
        entry.visits += 1
        self.env.restore(entry.snapshot, reseed=self._state_seed)
        self.restored_snapshots += 1

    def _restore_or_replay(self, mark: Mark) -> None:
        """Restore the nearest snapshot at or before ``mark``, and replay the remaining actions."""
        start: Mark | None = mark
        while start is not None and not self._restored(start):
            start = start.parent
        if start is not mark:
            self._replay(mark, self._reset_for_replay(mark) if start is None else start)
            self._store_snapshot(mark)

    def _stored_snapshot(self, mark: Mark) -> _Stored | None:
        return self._snapshots.get(mark)

    def _restored(self, mark: Mark) -> bool:
        entry = self._stored_snapshot(mark)
        if entry is None:
            return False
        self.env.restore(entry.snapshot)
        self.restored_snapshots += 1
        return True

    def _reset_for_replay(self, mark: Mark) -> Mark:
        observation, _ = self.reset(mark.task)
        self._compare(mark, 0, observation)
        return self._current_mark()

    def _replay(self, mark: Mark, start: Mark) -> None:
        """Repeat the actions that lead from ``start``, the environment's current state, to ``mark``."""
        self._current = start
        for number, action in enumerate(mark.actions[len(start.actions) :], start=len(start.actions) + 1):
            self.replayed_steps += 1
            observation, *_ = self.step(action)
            self._compare(mark, number, observation)

    def _store_snapshot(self, mark: Mark) -> None:
        """Store a snapshot of the current state, which must be that of ``mark``."""
        snapshot = self.env.snapshot()
        size, store = snapshot_size(snapshot), self._snapshots
        if not store.put(mark, snapshot, size, evict=not self.env.stochastic):
            raise RuntimeError(
                f"snapshots of {type(self.env).__name__} need {store.used + size} bytes, more than Snapshots(budget="
                f"{store.budget}), and a stochastic environment cannot replay one that is given up: raise budget or "
                "search fewer tasks at once"
            )

    def _current_mark(self) -> Mark:
        if self._current is None:
            raise ValueError("no episode has begun: call reset(task) first")
        return self._current

    def _compare(self, mark: Mark, step: int, observation: str) -> None:
        if _hash(observation) != mark.hashes[step]:
            self.forget_state()
            action = f" (action {mark.actions[step - 1]!r})" if step else " (reset)"
            raise ReplayDivergence(
                f"replay of task {mark.task.id!r} diverged at step {step}{action}: it now reads {observation!r}"
            )
