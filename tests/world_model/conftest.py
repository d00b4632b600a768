"""One thread, since with more tiny tensors wait for each other longer than they compute; buffers that get closed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from shop_steps import OpenBuffer

from treeagent.world_model.encoder import Encoder, LexicalEncoder
from treeagent.world_model.replay import ReplayBuffer


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def open_buffer(tmp_path: Path) -> Iterator[OpenBuffer]:
    """Opens the one file of a test, any number of times."""
    with ExitStack() as stack:

        def opened(encoder: Encoder | None = None, memory_bytes: int = 2**29) -> ReplayBuffer:
            buffer = ReplayBuffer(tmp_path / "b.sqlite", encoder or LexicalEncoder(), memory_bytes=memory_bytes)
            stack.callback(buffer.close)
            return buffer

        yield opened
