"""Long histories under a token budget: which observations are left out, and that trees hold the prompts that were
read."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from toy_llama import head, plain_hidden, plain_logprobs, shared_model, tokenizer

from treeagent.agent.policy import HeadValue, LLMPolicy
from treeagent.agent.think_act import SplitDynamics, SplitPolicy
from treeagent.generators.base import Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Tree
from treeagent.search.record import from_record, to_record
from treeagent.search.searcher import make_search
from treeagent.types import Action, Message, State, Task, Transition, as_read, derive_seed

WHOLE = ChatFormat(tokenizer())
BUDGET = 200
CHAT = ChatFormat(tokenizer(), context_tokens=BUDGET)
TASKS = [Task(f"talk {number}", "say it" + " again" * number) for number in range(3)]


def said(text: str) -> Message:
    return Message("assistant", text, CHAT.encode_action(text))


def seen(text: str) -> Message:
    return Message("user", text)


def length(*messages: Message) -> int:
    return len(WHOLE.prompt_ids(messages))


LONG = tuple(letter * 90 for letter in "zqxj")
TALK = (seen("go"), said("a"), seen(LONG[0]), said("b"), seen(LONG[1]), said("c"), seen(LONG[2]))


def note(text: str) -> Message:
    return seen(f"[observation left out: {len(text)} characters]")


def test_the_oldest_observations_are_left_out_by_hand() -> None:
    """At the budget nothing is left out. With one token less, the oldest observations are left out until half the
    budget suffices. The newest observation stays."""
    assert ChatFormat(tokenizer(), context_tokens=length(*TALK)).read(TALK).messages == TALK
    reading = ChatFormat(tokenizer(), context_tokens=length(*TALK) - 1).read(TALK)
    assert (reading.left_out, reading.error) == ((2, 4), "")
    assert reading.messages == (*TALK[:2], note(LONG[0]), TALK[3], note(LONG[1]), *TALK[5:])
    assert reading.messages == as_read(TALK, (2, 4))
    saved = len(WHOLE.encode(LONG[0])) - len(WHOLE.encode(note(LONG[0]).content))
    assert 0 < saved < length(*TALK) // 2 - 1


def test_what_cannot_be_left_out_is_refused() -> None:
    """The opening, the agent's turns and the newest observation always stay."""
    for talk in ((seen("x" * BUDGET),), (seen("go"), said("a"), seen("x" * BUDGET)), (seen("go"), said("x" * BUDGET))):
        reading = CHAT.read(talk)
        assert reading.error.startswith(f"the prompt has {length(*talk)} tokens with its old observations left out, bu")
        assert f"may have {BUDGET}: " in reading.error
        assert (reading.left_out, reading.added_ids) == ((), ())
    later = (seen("go"), said("a"), seen("x" * BUDGET), said("b"), seen("now"))
    assert CHAT.read(later).error == CHAT.read(later[:3]).error  # this point cannot be reached


@dataclass(frozen=True)
class Talk:
    """Answers with long texts that depend on the action; six steps at most."""

    async def reset(self, task: Task) -> State:
        return State(task, (seen(task.prompt),))

    async def step(self, state: State, action: Action) -> Transition:
        turn = Message("assistant", action.text, action.token_ids)
        size = derive_seed(action.text, len(state.messages)) % 90
        told = (*state.messages, turn, seen(f"{len(state.messages)} " + "w" * size))
        return Transition(State(state.task, told), truncated=len(told) > 12)


class Recorder(LocalGenerator):
    """Records its prompts and samples."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(shared_model(), **settings)
        self.drawn: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        self.read: set[tuple[int, ...]] = set()

    def sample(self, request: SampleRequest) -> list[list[Sample]]:
        told = super().sample(request)
        pairs = zip(request.prompts, told, strict=True)
        self.drawn |= {(prompt, sample.token_ids) for prompt, samples in pairs for sample in samples}
        return told

    def hidden(self, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
        self.read |= set(prompts)
        return super().hidden(prompts)


FIXED: dict[str, dict[str, Any]] = {"mcts": {"options": {"widening": 0}}, "best_of_n": {}, "beam": {}, "best_first": {}}


def grow(tasks: Sequence[Task], generator: LocalGenerator, chat: ChatFormat = CHAT, **config: Any) -> list[Tree]:
    settings = SearchConfig(
        limits=Limits(simulations=20), **{"candidates": 2, **FIXED[config.get("method", "mcts")], **config}
    )
    whole = LLMPolicy(generator, chat, max_new_tokens=8)
    split = settings.granularity == "split"
    search = make_search(
        SplitPolicy(whole) if split else whole,
        SplitDynamics(Talk()) if split else Talk(),
        settings,
        HeadValue(generator, chat, head()),
    )
    return asyncio.run(search.run(tasks, [derive_seed(task.id) for task in tasks]))


def restarts(tree: Tree) -> int:
    return sum(bool(node.left_out) for node in tree.nodes())


@pytest.mark.parametrize(
    "config",
    [{}, {"granularity": "split"}, {"method": "best_of_n"}, {"method": "beam"}, {"leaves": 4}],
    ids=["mcts", "split", "best_of_n", "beam", "leaves"],
)
def test_a_tree_holds_the_prompts_that_were_read(config: dict[str, Any]) -> None:
    generator = Recorder()
    trees = grow(TASKS, generator, **config)
    assert sum(map(restarts, trees)) > 3
    values = head()
    for tree in trees:
        for path, node in tree.walk():
            prompt = tree.prompt_ids(path)
            if not node.context_ids and not node.state.messages[-1].partial:
                continue  # never read: a refused call, or an inner node of a chain
            begun = len(node.state.messages[-1].token_ids) if node.state.messages[-1].partial else 0
            assert len(prompt) <= BUDGET + begun
            assert prompt == WHOLE.prompt_ids(CHAT.read(node.state.messages).messages)
            if prompt in generator.read and node.value:
                with torch.no_grad():
                    value = values.value(plain_hidden(shared_model(), prompt)).item()
                assert node.value == pytest.approx(value, abs=1e-4)
            for edge in node.edges:
                assert (prompt, edge.action.token_ids) in generator.drawn
                expected = plain_logprobs(shared_model(), prompt, edge.action.token_ids)
                assert edge.action.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        again = from_record(to_record(tree))
        assert [again.prompt_ids(path) for path, _ in again.walk()] == [
            tree.prompt_ids(path) for path, _ in tree.walk()
        ]
