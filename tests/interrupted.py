"""A training that is interrupted, as by Ctrl-C."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from treeagent.pipeline.progress import Advance, QuietProgress


@dataclass
class Interrupted(QuietProgress):
    """Presses Ctrl-C after two steps of the training ``stage``."""

    stage: str

    def __post_init__(self) -> None:
        super().__init__()

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        done = 0

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            nonlocal done
            done += count
            if done == 2 and name == self.stage:
                raise KeyboardInterrupt

        yield advance
