"""The language model as policy and value function, in a search."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from toy_llama import CONFIG, head, make_read, plain_hidden, plain_logprobs, shared_model, tokenizer

from treeagent.agent.policy import HeadValue, LLMPolicy
from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.generators.base import Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Tree
from treeagent.types import Action, Message, State, Task, Transition

CHAT = ChatFormat(tokenizer())
TASKS = [Task(f"echo {number}", "say it" + " again" * number) for number in range(4)]


@dataclass(frozen=True)
class Echo:
    """Answers with the call or the error; three steps at most."""

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", task.prompt),))

    async def step(self, state: State, action: Action) -> Transition:
        said = Message("assistant", action.text, action.token_ids)
        seen = Message("user", f"{len(state.messages)} {action.call or action.error}")
        return Transition(State(state.task, (*state.messages, said, seen)), truncated=len(state.messages) == 5)


def logprob_head() -> LogprobHead:
    """A head whose tokens are chosen by the toy model's log-probabilities after single tokens."""
    made = LogprobHead(16)
    make_read(made, LocalGenerator(shared_model()), range(3, 60))
    torch.manual_seed(1)
    torch.nn.init.normal_(made.output.weight)
    return made


def search(tasks: list[Task], generator: LocalGenerator, temperature: float = 1.0) -> list[Tree]:
    policy = LLMPolicy(generator, CHAT, temperature=temperature, max_new_tokens=6)
    grower = Search(
        policy, Echo(), SearchConfig(limits=Limits(simulations=8), candidates=3), HeadValue(generator, CHAT, head())
    )
    return asyncio.run(grower.run(tasks, [int(task.id.split()[1]) for task in tasks]))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_tree_holds_exactly_what_the_model_read_and_said(temperature: float) -> None:
    generator, model = LocalGenerator(shared_model()), shared_model()
    values = head()
    actions = 0
    for tree in search(TASKS, generator, temperature):
        for path, node in tree.walk():
            prompt = tree.prompt_ids(path)
            assert prompt == CHAT.prompt_ids(node.state.messages)
            with torch.no_grad():
                assert node.value == pytest.approx(values.value(plain_hidden(model, prompt)).item(), abs=1e-4)
            for edge in node.edges:
                actions += 1
                expected = plain_logprobs(model, prompt, edge.action.token_ids, temperature)
                assert edge.action.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
                assert edge.action.text == CHAT.decode(edge.action.token_ids)
    assert actions > 30


def answer_with(samples: list[list[Sample]], request: SampleRequest) -> list[list[Sample]]:
    return samples


def test_a_turn_that_was_cut_off_makes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning reads like another call, such as one for table 1 instead of table 12."""
    generator = LocalGenerator(shared_model())
    whole = CHAT.encode_action("Action: take the lamp from table 12")
    policy = LLMPolicy(generator, CHAT, max_new_tokens=len(whole))
    for ids, call in ((whole, "take the lamp from table 12"), (whole[:-1], ""), (whole[:-2], "")):
        samples = [[Sample(ids, (-0.1,) * len(ids))]]
        monkeypatch.setattr(generator, "sample", partial(answer_with, samples))
        [proposal] = asyncio.run(policy.propose([State(Task("t", "go"), (Message("user", "go"),))], 1, [0]))
        [action] = proposal.actions
        assert (action.call, bool(action.error)) == (call, not call)


def test_a_state_too_long_for_the_model_costs_itself_alone() -> None:
    """The state's error says why. No action is possible in it, so its value is 0."""
    generator = LocalGenerator(shared_model())
    policy, value = LLMPolicy(generator, CHAT, max_new_tokens=5), HeadValue(generator, CHAT, head())
    long = State(Task("long", "long"), (Message("user", "x" * CONFIG.context),))
    short = [asyncio.run(Echo().reset(task)) for task in TASKS[:2]]
    states = [short[0], long, short[1]]
    proposals = asyncio.run(policy.propose(states, 2, [1, 2, 3]))
    assert list(asyncio.run(policy.propose(short, 2, [1, 3]))) == [proposals[0], proposals[2]]
    estimates = asyncio.run(value.estimate(states))
    assert list(asyncio.run(value.estimate(short))) == [estimates[0], estimates[2]]
    for said in (proposals[1], estimates[1]):
        assert said.error.startswith("the prompt has 259 tokens, but the model's context holds 256: lower")
        assert said.context_ids == CHAT.prompt_ids(long.messages)
    assert (proposals[1].actions, estimates[1].value) == ((), 0.0)
    assert [each.error for each in (proposals[0], estimates[2])] == ["", ""]
    assert [list(asyncio.run(policy.propose([long], 2, [1]))), list(asyncio.run(value.estimate([long])))] == [
        [proposals[1]],
        [estimates[1]],
    ]


@pytest.mark.parametrize("kind", [head, logprob_head])
def test_a_value_is_the_same_alone_in_a_batch_and_behind_a_cached_prefix(kind: Callable[[], ValueHead]) -> None:
    model, values = shared_model(), kind()
    states = [node.state for tree in search(TASKS, LocalGenerator(model)) for _, node in tree.walk()]
    alone = [
        asyncio.run(HeadValue(LocalGenerator(model, cache_bytes=0), CHAT, values).estimate([state]))[0].value
        for state in states
    ]
    for state, told in zip(states, alone, strict=True):
        prompt = CHAT.prompt_ids(state.messages)
        with torch.no_grad():
            if isinstance(values, LogprobHead):
                logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
                plain = values.value(logits.log_softmax(-1)[list(values.token_ids)]).item()
            else:
                plain = values.value(plain_hidden(model, prompt)).item()
        assert told == pytest.approx(plain, abs=1e-5)
    generator = LocalGenerator(model)
    value = HeadValue(generator, CHAT, values)
    together = [each.value for each in asyncio.run(value.estimate(states))]
    assert together == pytest.approx(alone, abs=1e-5)
    read = generator.usage.encoded_tokens
    asyncio.run(LLMPolicy(generator, CHAT, max_new_tokens=4).propose(states, 2, list(range(len(states)))))
    assert [each.value for each in asyncio.run(value.estimate(states))] == pytest.approx(alone, abs=1e-5)
    assert generator.usage.encoded_tokens == read  # policy and value function together read each state once
    assert max(alone) - min(alone) > 0.1
