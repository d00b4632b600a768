"""The tiny tokenizer with the special tokens and a template in the style of one of today's model families."""

import copy
from functools import cache
from pathlib import Path

from toy_llama import tokenizer
from transformers import PreTrainedTokenizerFast

FAMILIES = {
    # name: (marks of turns, begin of sequence, end of sequence)
    "qwen": (["<|im_start|>", "<|im_end|>"], None, "<|im_end|>"),
    "llama3": (["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|begin_of_text|>", "<|end_of_text|>"),
    "mistral": (["[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"], "<s>", "</s>"),
    "gemma": (["<start_of_turn>", "<end_of_turn>"], "<bos>", "<eos>"),
    "deepseek": (["<｜User｜>", "<｜Assistant｜>"], "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
}
STOPS = {
    "qwen": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
    "deepseek": "<｜end▁of▁sentence｜>",
}
"""The token with which a model of each family ends its turns."""


def with_template(template: str, marks: list[str], begin: str | None, end: str) -> PreTrainedTokenizerFast:
    dressed = copy.deepcopy(tokenizer())
    dressed.add_special_tokens({"additional_special_tokens": marks}, replace_extra_special_tokens=False)
    dressed.add_special_tokens({"eos_token": end} if begin is None else {"eos_token": end, "bos_token": begin})
    dressed.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])  # not special tokens, as in Qwen
    dressed.chat_template = template
    return dressed


@cache
def family(name: str) -> PreTrainedTokenizerFast:
    template = (Path(__file__).parent / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    return with_template(template, *FAMILIES[name])
