"""Chat templates in the style of today's families: prompts only grow by what is new, whatever is sampled and read."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_families import FAMILIES, STOPS, family, with_template
from toy_llama import sharpened
from transformers import PreTrainedModel

from treeagent.agent.policy import LLMPolicy
from treeagent.generators.base import Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model
from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.types import Action, Message, State, Task, Transition, UserError
from treeagent.views.imitation import ImitationConfig, imitation_rows
from treeagent.views.pairs import PairConfig, preference_pairs

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Find a thing.",
            "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
        },
    }
]
blanks = st.text(" \t\n\r\u00a0\u3000", max_size=3)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
spelt = st.sampled_from(
    [*(mark for marks, _, end in FAMILIES.values() for mark in (*marks, end)), "\U000ffffc\U000f0000"]
)
text = st.builds(lambda before, middle, after: before + middle + after, blanks, words | spelt, blanks)
thought = st.builds(lambda inner, said: f"<think>\n{inner}\n</think>\n\n{said}", text, text)
names = st.sampled_from(sorted(FAMILIES))
OPENING = {"deepseek": "<｜Assistant｜>", "qwen35": "<|im_start|>assistant\n"}
"""How a turn begins in the templates that open its thought."""


@cache
def chat(name: str, tools: bool = False, instructions: str = "") -> ChatFormat:
    return ChatFormat(family(name), instructions=instructions, tools=TOOLS if tools else ())


def said(format: ChatFormat, words: str, *, cut: bool = False) -> Message:
    ids = format.encode_action(words)
    return Message("assistant", words, ids[:-1] if cut and len(ids) > 1 else ids)


def spelled(format: ChatFormat, *messages: Message) -> str:
    """The prompt as text, including special tokens."""
    return str(format.tokenizer.decode(list(format.prompt_ids(messages))))


@st.composite
def conversations(draw: st.DrawFn, name: str, tools: bool) -> tuple[ChatFormat, tuple[Message, ...]]:
    """Up to four turns, with system messages also for families that have no such role."""
    format = chat(name, tools)
    messages = [Message("system", draw(words.filter(bool)))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(text)))
    for _ in range(draw(st.integers(1, 4))):
        messages += [said(format, draw(text | thought), cut=draw(st.booleans())), Message("user", draw(text))]
    return format, tuple(messages)


@given(st.data(), names, st.booleans())
def test_a_prompt_is_the_earlier_prompt_then_what_was_sampled_then_what_is_new(
    data: st.DataObject, name: str, tools: bool
) -> None:
    format, messages = data.draw(conversations(name, tools))
    for place, message in enumerate(messages):
        if message.role == "assistant":
            before, after = format.prompt_ids(messages[:place]), format.prompt_ids(messages[: place + 2])
            assert after == before + message.token_ids + format.context_ids(messages[: place + 2])


@given(st.data(), names, st.booleans())
def test_only_the_template_ends_turns(data: st.DataObject, name: str, tools: bool) -> None:
    """Every turn of the agent ends exactly once, whoever wrote its end and whatever text the observations hold."""
    format, messages = data.draw(conversations(name, tools))
    [last] = [place for place, message in enumerate(messages) if message.role == "assistant"][-1:]
    bare = tuple(Message(each.role, "x", format.encode_action("x") if each.token_ids else ()) for each in messages)
    assert format.prompt_ids(messages).count(format.stop_id) == format.prompt_ids(bare).count(format.stop_id)
    assert format.stop_id not in messages[last].token_ids[:-1]


def reference(name: str, turns: list[tuple[str, str]]) -> str:
    """The stock template's own rendering."""
    rows = [{"role": role, "content": content} for role, content in turns]
    return str(
        family(name).apply_chat_template(rows, tokenize=False, add_generation_prompt=True, date_string="26 Jul 2024")
    )


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_of_plain_words_a_prompt_spells_what_the_template_renders(name: str) -> None:
    format = chat(name)
    turns = [("user", "find a lamp"), ("assistant", "search[lamp]"), ("user", "a lamp"), ("assistant", "click[1]")]
    turns.append(("user", "bought"))
    messages = [said(format, each) if role == "assistant" else Message("user", each) for role, each in turns]
    expected = reference(name, turns)
    if name in OPENING:  # the tokens that opened the thought were read, and stay; a turn without a thought closes it
        opened, closed = f"{OPENING[name]}<think>\n", "\n</think>\n\n"
        expected = expected.replace(opened, OPENING[name]).replace(OPENING[name], opened + closed)
        expected = expected.removesuffix(closed)
    if name == "mistral":  # the template writes a space before the words; in a sample the model writes it
        expected = expected.replace("[/INST] ", "[/INST]")
    assert spelled(format, *messages) == expected


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_turn_ends_as_the_family_ends_it(name: str) -> None:
    format = chat(name)
    assert format.stop_text == STOPS[name]
    assert format.tokenizer.convert_ids_to_tokens([format.stop_id]) == [STOPS[name]]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_system_message_is_told_once_at_the_beginning(name: str) -> None:
    """It is put into the first message if there is no such role, or if the template would move it to the last
    message."""
    format = chat(name)
    told: tuple[Message, ...] = (Message("system", "Be brief."), Message("user", "find a lamp"))
    for turn in range(3):
        assert spelled(format, *told).count("Be brief.") == 1
        assert spelled(format, *told).index("Be brief.") < spelled(format, *told).index("find a lamp")
        told = (*told, said(format, f"turn {turn}"), Message("user", "seen"))
    if name in ("gemma", "mistral"):
        assert "Be brief.\n\nfind a lamp" in spelled(format, *told)


@pytest.mark.parametrize("name", ["qwen", "llama3"])
def test_tools_are_written_by_a_template_that_knows_them(name: str) -> None:
    """The tools are written once, without treeagent's instructions. Observations then have the role of a tool."""
    format = chat(name, tools=True, instructions="Write JSON.")
    told = (
        Message("user", "go"),
        said(format, "x"),
        Message("user", "a lamp"),
        said(format, "y"),
        Message("user", "b"),
    )
    prompt = spelled(format, *told)
    assert prompt.count("Find a thing.") == 1
    assert "Write JSON." not in prompt
    assert prompt.count("<tool_response>" if name == "qwen" else "ipython") == 2


@pytest.mark.parametrize("name", ["mistral", "gemma", "deepseek"])
def test_where_a_template_writes_no_tools_or_moves_them_instructions_are_told(name: str) -> None:
    told = (Message("user", "go"),)
    format = chat(name, tools=True, instructions="Write JSON.")
    assert format.prompt_ids(told) == chat(name, instructions="Write JSON.").prompt_ids(told)


def test_a_prompt_does_not_depend_on_the_day() -> None:
    assert "Today is 26 Jul 2024" in spelled(chat("llama3"), Message("user", "a"))


def made(template: str) -> ChatFormat:
    return ChatFormat(with_template(template, *FAMILIES["qwen"]))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages[-2:] %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}[assistant]",  # a window
        "{{ messages | length }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}[assistant]",
        "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last else '...' }}<|im_end|>{% endfor %}[assistant]",
    ],
)
def test_a_template_that_rewrites_history_is_refused_with_what_to_do(template: str) -> None:
    with pytest.raises(UserError, match="rewrites earlier turns"):
        made(template)


@dataclass(frozen=True)
class Teller:
    """Answers with given texts in turn. It ends after two steps, with a reward that depends on the actions."""

    texts: Sequence[str]

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", self.texts[0]),))

    async def step(self, state: State, action: Action) -> Transition:
        place = len(state.messages) // 2 + 1
        said = Message("assistant", action.text, action.token_ids)
        after = State(state.task, (*state.messages, said, Message("user", self.texts[place])))
        return Transition(after, reward=len(action.text) % 7 / 7, terminated=place == 2)


class Recorder(LocalGenerator):
    """Records each sample with its prompt."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.sampled: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()

    def sample(self, request: SampleRequest) -> list[list[Sample]]:
        drawn = super().sample(request)
        pairs = zip(request.prompts, drawn, strict=True)
        self.sampled |= {(prompt, each.token_ids) for prompt, of in pairs for each in of}
        return drawn


def trained(ids: Sequence[int], mask: Sequence[bool]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each run of trained tokens, with all tokens before it."""
    start = 0
    for masked, run in groupby(mask):
        end = start + len(list(run))
        if masked:
            yield tuple(ids[:start]), tuple(ids[start:end])
        start = end


@settings(max_examples=6)
@given(names, st.lists(text, min_size=3, max_size=3), st.integers(0, 99))
def test_what_is_trained_is_what_was_sampled_after_what_was_read(name: str, texts: list[str], seed: int) -> None:
    """No token changes between sampling and the learners' rows and pairs, whatever bytes are sampled and read."""
    generator = Recorder(tiny_model(name))
    policy = LLMPolicy(generator, chat(name), temperature=1.5, max_new_tokens=6)
    config = SearchConfig(limits=Limits(simulations=9), candidates=3)
    [tree] = asyncio.run(Search(policy, Teller(texts), config).run([Task("t", texts[0])], [seed]))
    assert not tree.error
    rows = [*imitation_rows(tree, ImitationConfig(min_return=0, paths_per_tree=9))]
    runs = [run for row in rows for run in trained(row.token_ids, row.mask)]
    for pairs in (PairConfig(rule="all", min_margin=1e-6), PairConfig(rule="trajectory", min_margin=1e-6)):
        for pair in preference_pairs(tree, pairs):
            for side in (pair.chosen, pair.rejected):
                read = (False,) * len(pair.context_ids)
                runs += trained((*pair.context_ids, *side.token_ids), (*read, *side.mask))
    assert len(runs) > 10
    assert set(runs) <= generator.sampled


@cache
def tiny_model(name: str) -> PreTrainedModel:
    shape = ScratchConfig(vocabulary=320, layers=1, width=32, heads=2, context=1024)
    return sharpened(random_model(family(name), shape, 0))
