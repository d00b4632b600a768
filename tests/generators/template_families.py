"""The tiny tokenizer with the special tokens and a template in the style of one of today's model families."""

import copy
import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers
from toy_llama import TEXTS, tokenizer
from transformers import PreTrainedTokenizerFast

FAMILIES = {
    # name: (marks of turns, begin of sequence, end of sequence)
    "qwen": (["<|im_start|>", "<|im_end|>"], None, "<|im_end|>"),
    "qwen35": (["<|im_start|>", "<|im_end|>"], None, "<|im_end|>"),
    "llama3": (["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|begin_of_text|>", "<|end_of_text|>"),
    "mistral": (["[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"], "<s>", "</s>"),
    "gemma": (["<start_of_turn>", "<end_of_turn>"], "<bos>", "<eos>"),
    "deepseek": (["<｜User｜>", "<｜Assistant｜>"], "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
}


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


@cache
def blank_first() -> PreTrainedTokenizerFast:
    """A tokenizer in the style of Phi-3's, with its template: it begins every text with a blank, as SentencePiece does,
    and its special tokens swallow the blanks after them."""
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    lines = [line for text in TEXTS for line in text.splitlines()]
    inner.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "</s>", *alphabet], show_progress=False)
    )
    spec = json.loads(inner.to_str())  # the bytes are plain tokens
    spec["added_tokens"] = [each for each in spec["added_tokens"] if each["content"] not in alphabet]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)), unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    marks = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    made.add_special_tokens(
        {"additional_special_tokens": [AddedToken(mark, rstrip=True, special=True) for mark in marks]}
    )
    made.chat_template = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
    )
    return made
