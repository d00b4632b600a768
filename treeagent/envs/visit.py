"""Environments whose episode is one frozen value: snapshots are exact and cost nothing."""

from typing import ClassVar, Generic, TypeVar, cast

from treeagent.envs.base import Env, SnapshotKind
from treeagent.types import Task, UserError

Visit = TypeVar("Visit")


class VisitEnv(Env, Generic[Visit]):
    """An environment that keeps all it remembers of an episode in its task and one frozen value, the visit.

    ``reset`` sets ``_at``; ``step`` calls ``_go_on`` with the next visit.
    """

    snapshot_kind: SnapshotKind = "exact"
    stochastic = False
    visit_type: ClassVar[type]
    """The class of the visit."""
    _at: tuple[Task, Visit] | None = None

    @property
    def visit(self) -> Visit:
        """All that the episode remembers."""
        return self._place()[1]

    def snapshot(self) -> tuple[Task, Visit]:
        return self._place()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        match snapshot:
            case (Task() as task, visit) if isinstance(visit, self.visit_type):
                self._at = task, cast(Visit, visit)
            case _:
                raise UserError(
                    f"a {type(snapshot).__name__} is no snapshot of {type(self).__name__}: restore what snapshot() gave"
                )

    def _place(self) -> tuple[Task, Visit]:
        if self._at is None:
            raise ValueError("no episode has begun: call reset first")
        return self._at

    def _current_task(self) -> Task:
        return self._place()[0]

    def _go_on(self, visit: Visit) -> None:
        """The episode goes on with ``visit``."""
        self._at = self._current_task(), visit
