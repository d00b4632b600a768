"""A model and tokenizer made from scratch are stock Hugging Face objects in every respect."""

from pathlib import Path

import pytest
import torch
from toy_llama import CONFIG, make_model, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.generators.chat import ChatFormat
from treeagent.types import Message

CONVERSATION = (Message("system", "Be brief."), Message("user", "a lamp ✂️\n under $9"))


@pytest.mark.parametrize("with_head", [False, True])
def test_a_saved_checkpoint_is_a_stock_one(with_head: bool, tmp_path: Path) -> None:
    head = ValueHead(CONFIG.width) if with_head else None
    model = make_model()
    folder = save_checkpoint(Checkpoint(model, tokenizer(), head), tmp_path / "policy")
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    stock, words = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    chat, stock_chat = ChatFormat(tokenizer()), ChatFormat(words)
    prompt = stock_chat.prompt_ids(CONVERSATION)
    assert prompt == chat.prompt_ids(CONVERSATION)
    assert (stock_chat.stop_id, stock_chat.decode(prompt)) == (chat.stop_id, chat.decode(prompt))
    assert words.model_max_length == CONFIG.context
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits
        assert torch.equal(stock(torch.tensor([prompt])).logits, expected)
        loaded = load_checkpoint(folder)
        assert torch.equal(loaded.model(torch.tensor([prompt])).logits, expected)
    assert (loaded.head is not None) == with_head
