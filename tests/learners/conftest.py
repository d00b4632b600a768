"""One thread: with more, tiny tensors wait for each other longer than they compute."""

from collections.abc import Iterator

import pytest
import torch
from tiny import make_model, make_tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture
def model() -> LlamaForCausalLM:
    return make_model()
