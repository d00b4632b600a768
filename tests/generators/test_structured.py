"""Turns constrained to their format: everything well-formed can be sampled, and nothing else can end a turn."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_families import blank_first, family
from toy_llama import plain_logprobs, shared_model, tokenizer

from treeagent.generators.base import SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.generators.structured import Form
from treeagent.generators.turn import Grammar, make_grammar
from treeagent.types import Message, ToolCall, UserError


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: dict[str, object]
    description: str = "does it"


WHERE = {"type": "string", "enum": ["north", "south"]}
GO = Tool(
    "go",
    {
        "type": "object",
        "properties": {"where": WHERE, "steps": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["where", "steps"],
        "additionalProperties": False,
    },
)
SAY = Tool("say", {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]})
TOOLS = [GO, SAY]
FORMATS: tuple[str, ...] = ("react", "tools")
USUAL = ("plain", "qwen")  # the others run with the slow suite
CASES = [
    pytest.param(format, name, marks=[] if name in USUAL else pytest.mark.slow)
    for format in FORMATS
    for name in ("plain", "qwen", "gemma", "deepseek")
]
moves = st.builds(
    lambda where, steps: ToolCall("go", {"where": where, "steps": steps}),
    st.sampled_from(["north", "south"]),
    st.integers(0, 9),
)
plain = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<["), max_size=12)
calls = moves | plain.map(lambda words: ToolCall("say", {"words": words}))
words = st.text("abc .,!?", max_size=12).map(str.strip)


@cache
def talk(format: str, name: str) -> tuple[ChatFormat, Grammar]:
    spoken = tokenizer() if name == "plain" else blank_first() if name == "blank first" else family(name)
    return ChatFormat(spoken), make_grammar(format)


@cache
def form(format: str, name: str, tooled: bool = True) -> Form:
    chat, grammar = talk(format, name)
    return Form(chat, partial(grammar.rules, TOOLS if tooled else ()))


def ids_of(chat: ChatFormat, text: str) -> list[int]:
    """The ids as a model writes them: special tokens stay whole, and a thought opened by the template is closed."""
    if "<think>" in chat.decode(chat.prompt_ids((Message("user", "go"),))):
        text = f"so</think>{text}"
    return [*chat.tokenizer(text, add_special_tokens=False)["input_ids"], chat.stop_id]


def first_refused(held: Form, chat: ChatFormat, ids: Sequence[int]) -> int | None:
    """The index of the first token that the constraint forbids; None if there is none."""
    states = held.begun([()], 1)
    for place, token in enumerate(ids):
        if not held.allowed(states, len(chat.tokenizer))[0, 0, token]:
            return place
        held.advance(states, [[token]])
    return None


@pytest.mark.parametrize(("format", "name"), CASES)
@settings(max_examples=12)
@given(thought=words, call=calls)
def test_what_is_well_formed_can_be_drawn(format: str, name: str, thought: str, call: ToolCall) -> None:
    chat, grammar = talk(format, name)
    ids = ids_of(chat, grammar.write(thought, call))
    assert first_refused(form(format, name), chat, ids) is None
    assert grammar.read(chat.decode(ids)).error == ""


@pytest.mark.parametrize("marks", ["text", "tokens"])
def test_thinking_that_the_template_opens_is_closed_first(marks: str) -> None:
    spoken = family("deepseek")
    if marks == "text":
        spoken = copy.deepcopy(tokenizer())
        spoken.chat_template = f"{spoken.chat_template}{{% if add_generation_prompt %}}<think>\n{{% endif %}}"
    chat, grammar = ChatFormat(spoken), make_grammar("tools")
    held = Form(chat, partial(grammar.rules, TOOLS))
    call = grammar.write("", ToolCall("go", {"where": "south", "steps": 3}))
    whole = ids_of(chat, call)
    assert first_refused(held, chat, whole) is None
    assert grammar.read(chat.decode(whole)).call == ToolCall("go", {"where": "south", "steps": 3})
    bare = [*chat.tokenizer(call, add_special_tokens=False)["input_ids"], chat.stop_id]
    assert first_refused(held, chat, bare) is not None  # all of this is still thought


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_a_model_of_random_weights_calls_tools_in_its_own_probabilities(temperature: float) -> None:
    """Its turns are started up to the point at which a call has to follow."""
    chat, grammar = talk("tools", "plain")
    model, held = shared_model(), Form(chat, partial(grammar.rules, [GO]))
    generator = LocalGenerator(model)
    begun = [tuple(chat.encode(text)) for text in ("<tool_call>", "<think>\nso\n</think>\n\n<tool_call>\n")]
    prompts = [(9, 10, 11, *ids) for ids in begun]
    drawn = generator.sample(
        SampleRequest(
            prompts,
            4,
            [1, 2],
            stop_id=chat.stop_id,
            max_new_tokens=120,
            temperature=temperature,
            form=held,
            turn_prefixes=begun,
        )
    )
    for prompt, ids, samples in zip(prompts, begun, drawn, strict=True):
        for sample in samples:
            action = grammar.read(chat.decode((*ids, *sample.token_ids)))
            assert isinstance(action.call, ToolCall) and not action.error
            assert set(action.call.arguments) == {"where", "steps"}
            expected = plain_logprobs(model, prompt, sample.token_ids, temperature)
            assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    free = generator.sample(
        SampleRequest(prompts, 4, [1, 2], stop_id=chat.stop_id, max_new_tokens=120, temperature=temperature)
    )
    assert all(
        grammar.read(chat.decode((*ids, *sample.token_ids))).error
        for ids, samples in zip(begun, free, strict=True)
        for sample in samples
    )


def test_a_schema_that_cannot_be_held_to_is_refused() -> None:
    chat, grammar = talk("tools", "plain")
    with pytest.raises(
        UserError, match=r"cannot be held to their format and the environment's tools .*policy.structured"
    ):
        Form(chat, partial(grammar.rules, [Tool("odd", {"type": "colour"})]))


@pytest.mark.parametrize("format", FORMATS)
def test_a_lead_into_the_call_follows_a_thought_and_no_call(format: str) -> None:
    chat, grammar = talk(format, "qwen")
    held, begun = form(format, "qwen"), "Thought: so" if format == "react" else "<think>\nso"
    lead = chat.encode_within(grammar.lead(begun, opened=False, calls=True))
    assert held.may_follow(chat.encode_marks(begun), lead)
    call = chat.encode_action(grammar.write("so", ToolCall("say", {"words": "a"})))
    assert not held.may_follow(call[:-4], lead)
