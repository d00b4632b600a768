"""Replay buffers that are closed when their test ends."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from shop_steps import OpenBuffer

from treeagent.world_model.encoder import Encoder, LexicalEncoder
from treeagent.world_model.replay import ReplayBuffer


@pytest.fixture
def open_buffer(tmp_path: Path) -> Iterator[OpenBuffer]:
    """Opens the one file of a test, any number of times."""
    with ExitStack() as stack:

        def opened(encoder: Encoder | None = None, memory_bytes: int = 2**29) -> ReplayBuffer:
            buffer = ReplayBuffer(tmp_path / "b.sqlite", encoder or LexicalEncoder(), memory_bytes=memory_bytes)
            stack.callback(buffer.close)
            return buffer

        yield opened
