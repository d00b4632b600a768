"""Turns that are held to their form: thoughts have a token budget, then forced tokens lead the turn into its call."""

import asyncio
from dataclasses import replace
from functools import cache, partial
from itertools import compress

import pytest
from template_families import family
from toy_llama import CONFIG, plain_logprobs, tokenizer

from treeagent.agent.policy import LLMPolicy
from treeagent.agent.think_act import SplitPolicy
from treeagent.config import RunConfig, load_config
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.shop import ShopEnv
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model
from treeagent.generators.structured import Form
from treeagent.generators.turn import make_grammar
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import from_record, to_record
from treeagent.types import Action, Message, State, Task
from treeagent.views.tokens import turn_tokens

SHOP = ShopEnv().tools()
TOOLS = (*SHOP, text_tool("leave", "Leave."))
STATE = State(Task("t", "buy a lamp"), (Message("user", "buy a lamp\nsearch page"),))
FORMATS: tuple[str, ...] = ("react", "tools")


@cache
def policy(format: str, name: str, structured: bool, thought_tokens: int | None = 6, most: int = 24) -> LLMPolicy:
    """A policy on a random model, which writes noise. So any valid form comes from the constraints."""
    spoken = tokenizer() if name == "plain" else family(name)
    chat, grammar = ChatFormat(spoken), make_grammar(format, str(spoken.chat_template))
    form = Form(chat, partial(grammar.rules, TOOLS)) if structured else None
    model = random_model(spoken, CONFIG, 0)
    return LLMPolicy(
        LocalGenerator(model), chat, grammar, 1.0, most, thought_tokens=thought_tokens, form=form, tools=TOOLS
    )


def drawn(acting: LLMPolicy | SplitPolicy, count: int = 6) -> list[Action]:
    [proposal] = asyncio.run(acting.propose([STATE], count, [0]))
    assert not proposal.error
    return list(proposal.actions)


@pytest.mark.parametrize("name", ["plain", "qwen"])
@pytest.mark.parametrize("format", FORMATS)
def test_no_turn_of_a_random_model_that_came_to_its_end_is_malformed(format: str, name: str) -> None:
    acting = policy(format, name, structured=True, most=60)
    ended = 0
    for action in drawn(acting, 12):
        assert len(action.token_ids) == len(action.logprobs)
        assert len(action.token_ids) - len(action.forced) <= 60
        if acting.chat.has_ended(action.token_ids):
            ended += 1
            assert not action.error, action.text
            assert not isinstance(read_call(action.call, TOOLS), str), action.text
        else:
            assert (action.call, action.error) == ("", "the turn was cut off after 60 tokens") or action.error
    assert ended


@pytest.mark.parametrize("format", FORMATS)
def test_a_thought_over_its_budget_is_led_into_its_call_by_tokens_that_carry_no_loss(format: str) -> None:
    acting = policy(format, "qwen", structured=True)
    prompt, context = acting.chat.prompt_ids(STATE.messages), 1000
    led = [action for action in drawn(acting) if action.forced]
    assert led
    for action in led:
        written = acting.chat.decode([action.token_ids[at] for at in action.forced])
        assert written.endswith(acting.grammar.mark), action.text
        assert all(action.logprobs[at] == 0.0 for at in action.forced)
        expected = plain_logprobs(acting.generator.model, prompt, action.token_ids).tolist()  # type: ignore[attr-defined]
        sampled = [at for at in range(len(action.token_ids)) if at not in action.forced]
        assert [action.logprobs[at] for at in sampled] == pytest.approx([expected[at] for at in sampled], abs=1e-3)
        tree = Tree(STATE.task, 0, Node(STATE, context_ids=prompt, edges=[Edge(action, 1.0)]))
        [edge] = from_record(to_record(tree)).root.edges
        assert edge.action == action
        tokens = turn_tokens([edge], closing=False)
        assert tuple(compress(range(context), tokens.mask)) == tuple(sampled)


def test_forms_and_budgets_are_on_for_a_pretrained_model_in_this_process_alone() -> None:
    scratch, local = RunConfig().policy, load_config(None, ["policy.model=x", "policy.max_new_tokens=40"]).policy
    assert not scratch.is_structured and scratch.most_thought is None
    assert local.is_structured and local.most_thought == 20
    served = replace(local, generator="vllm")
    assert not served.is_structured and served.most_thought == 20
    assert not replace(local, structured=False).is_structured
    constrained = replace(served, structured=True)
    assert constrained.is_structured and constrained.most_thought is None  # vLLM cannot constrain the rest of a turn
    assert replace(constrained, thought_tokens=9).most_thought is None
