"""A tiny model and its tokenizer."""

import pytest
from tiny import make_model, make_tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture
def model() -> LlamaForCausalLM:
    return make_model()
