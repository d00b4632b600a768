"""Replay buffers that are closed at the end of their test."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from shop_steps import OpenBuffer

from treeagent.world_model.replay import ReplayBuffer


@pytest.fixture
def open_buffer(tmp_path: Path) -> Iterator[OpenBuffer]:
    """A function that opens the buffer file of a test, any number of times."""
    with ExitStack() as stack:

        def opened(*, create: bool = True) -> ReplayBuffer:
            buffer = ReplayBuffer(tmp_path / "b.sqlite", create=create)
            stack.callback(buffer.close)
            return buffer

        yield opened
