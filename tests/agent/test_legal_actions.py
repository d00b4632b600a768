"""The policy scores legal actions instead of sampling turns: the scores, and how a search uses them."""

import asyncio
import math
from dataclasses import replace
from functools import lru_cache

import pytest
from toy_llama import CONFIG, TEXTS, plain_logprobs, shared_model, sharpened, tokenizer

from treeagent.agent.policy import LLMPolicy
from treeagent.envs import EnvDynamics, make_env
from treeagent.envs.calls import text_tool
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ActionSource
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.generators.turn import make_grammar
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Tree
from treeagent.search.puct import merge_key
from treeagent.search.record import to_record
from treeagent.search.searcher import make_search
from treeagent.types import Action, Message, Proposal, State, Task, ToolCall

CHAT = ChatFormat(tokenizer())
LEGAL = ("look", "look at it", "take it", "search[red lamp]")
STATES = [
    State(Task("a", "go"), (Message("user", "You see a lamp."),), legal_actions=LEGAL),
    State(Task("b", "go"), (Message("user", "A dark and long room, in which nothing is."),), legal_actions=("wait",)),
    State(Task("c", "go"), (Message("user", "Here."),), legal_actions=LEGAL[1:]),
]
GAMES = [
    ("frozenlake", {"size": 3}),
    ("minigrid", {"level": "MiniGrid-Empty-5x5-v0"}),
    ("planning", {"domain": "blocks"}),
]


@lru_cache(maxsize=1)
def roomy() -> LocalGenerator:
    """An untrained generator whose context holds whole episodes."""
    return LocalGenerator(sharpened(random_model(tokenizer(), replace(CONFIG, context=2048), 0)))


def policy(
    actions: ActionSource = "score",
    temperature: float = 1.0,
    format: str = "react",
    generator: LocalGenerator | None = None,
) -> LLMPolicy:
    return LLMPolicy(
        generator or LocalGenerator(shared_model()),
        CHAT,
        make_grammar(format),
        temperature,
        16,
        actions=actions,
        tools=(text_tool("search", "Search.", "words"), text_tool("take it", "Take.")),
    )


def propose(by: LLMPolicy, states: list[State], count: int = 1, seed: int = 0) -> list[Proposal]:
    return list(asyncio.run(by.propose(states, count, range(seed, seed + len(states)))))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("format", ["react", "tools"])
def test_legal_actions_are_scored_as_the_model_would_write_them(format: str, temperature: float) -> None:
    """Token ids and log-probabilities equal those of a plain forward pass, and the priors are their softmax."""
    by = policy(temperature=temperature, format=format)
    for state, proposal in zip(STATES, propose(by, STATES), strict=True):
        prompt = CHAT.prompt_ids(state.messages)
        assert proposal.context_ids == prompt and not proposal.error
        for action in proposal.actions:
            assert action.token_ids == CHAT.encode_action(action.text) and not action.thought and not action.error
            expected = plain_logprobs(shared_model(), prompt, action.token_ids, temperature).tolist()
            assert action.logprobs == pytest.approx(expected, abs=1e-4)
        mass = math.fsum(math.exp(action.logprob) for action in proposal.actions)
        assert proposal.priors == pytest.approx([math.exp(action.logprob) / mass for action in proposal.actions])
    calls = [action.call for action in propose(by, STATES[:1])[0].actions]
    named = ToolCall("search", {"words": "red lamp"})
    wanted = {*LEGAL[:3], "search[red lamp]"}
    if format == "tools":
        wanted = {"look", "look at it", *(merge_key(Action("", it))[1] for it in (ToolCall("take it", {}), named))}
    assert {call if isinstance(call, str) else merge_key(Action("", call))[1] for call in calls} == wanted


@pytest.mark.parametrize("format", ["react", "tools"])
def test_a_thought_that_the_template_opens_is_closed_before_each_legal_action(format: str) -> None:
    """Otherwise P(a|s) would be the probability that a thought begins with the action."""
    thinking = train_tokenizer(TEXTS, CONFIG)
    thinking.chat_template = str(thinking.chat_template).replace("'<|assistant|>'", "'<|assistant|><think>\\n'")
    by = replace(policy(format=format), chat=(chat := ChatFormat(thinking)))
    [proposal] = propose(by, STATES[:1])
    prompt, closing = chat.prompt_ids(STATES[0].messages), chat.encode("\n</think>\n\n")
    forced = len(closing)
    for action in proposal.actions:
        assert action.token_ids[:forced] == closing and action.forced == tuple(range(forced))
        expected = plain_logprobs(shared_model(), (*prompt, *closing), action.token_ids[forced:]).tolist()
        assert action.logprobs == pytest.approx([0.0] * forced + expected, abs=1e-4)
        assert not action.thought and not action.error
    assert len(proposal.actions) == len(LEGAL)


def test_the_first_actions_are_a_draw_without_replacement() -> None:
    """Three actions have the probabilities 0.5, 0.3 and 0.2. Over 2,000 seeds, the first action is distributed like
    these, and the second like the probabilities that are left. So 0.2 comes second with 0.5 · 0.4 + 0.3 · 2/7 (within
    four standard errors)."""
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    scored = [
        Action(call, call, "", (place,), (math.log(share),)) for place, (call, share) in enumerate(shares.items())
    ]
    by = policy()
    drawn = [[action.call for action in by._ranked(scored, seed).actions] for seed in range(2000)]
    for call, share in shares.items():
        assert sum(first == call for first, *_ in drawn) / 2000 == pytest.approx(share, abs=4 * 0.5 / 2000**0.5)
    assert sum(second == "c" for _, second, _ in drawn) / 2000 == pytest.approx(0.2 + 0.6 / 7, abs=4 * 0.5 / 2000**0.5)
    assert all(sorted(map(str, each)) == ["a", "b", "c"] for each in drawn)


def grow(name: str, game: dict[str, object], tasks: slice, method: str = "mcts", **settings: object) -> list[Tree]:
    env = make_env(name, game)
    dynamics = EnvDynamics(env, max_steps=6, list_actions=True)
    by = replace(policy(generator=roomy()), tools=env.tools())
    config = SearchConfig(limits=Limits(simulations=12), method=method, candidates=3, **settings)  # type: ignore[arg-type]
    return asyncio.run(make_search(by, dynamics, config).run(env.tasks("train", 3)[tasks], range(3)[tasks]))


@pytest.mark.parametrize(("name", "options"), GAMES, ids=[name for name, _ in GAMES])
@pytest.mark.parametrize(
    ("method", "settings"),
    [("mcts", {}), ("mcts", {"options": {"widening": 0}}), ("gumbel", {}), ("beam", {}), ("best_of_n", {})],
    ids=["widening", "fixed", "gumbel", "beam", "best_of_n"],
)
def test_an_untrained_model_makes_no_malformed_or_refused_call(
    name: str, options: dict[str, object], method: str, settings: dict[str, object]
) -> None:
    pytest.importorskip({"minigrid": "minigrid", "frozenlake": "gymnasium"}.get(name, "treeagent"))
    for tree in grow(name, options, slice(2), method, **settings):
        assert not tree.error
        edges = [edge for node in tree.nodes() for edge in node.edges]
        assert len(edges) > 5 and not any(edge.action.error for edge in edges)
        assert not any(edge.child is not None and edge.child.invalid for edge in edges)
        for node in tree.nodes():
            assert not node.edges or math.fsum(edge.prior for edge in node.edges) == pytest.approx(1)
            if method in ("mcts", "gumbel") and "options" not in settings:
                assert not node.edges or len(node.edges) == len(node.state.legal_actions or ())
            elif method != "best_of_n":
                assert len(node.edges) <= 3
        assert "legal_actions" not in str(to_record(tree))
