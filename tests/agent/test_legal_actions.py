"""The policy scores legal actions instead of sampling turns: the scores, and how a search uses them."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
from toy_llama import CONFIG, TEXTS, plain_logprobs, shared_model, sharpened, tokenizer

from treeagent.agent.policy import LLMPolicy
from treeagent.agent.think_act import SplitDynamics, SplitPolicy
from treeagent.config import load_config
from treeagent.envs import EnvDynamics, make_env
from treeagent.envs.base import EnvBroken
from treeagent.envs.calls import text_tool
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ActionSource
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.generators.turn import make_grammar
from treeagent.pipeline.build import leaf_value
from treeagent.pipeline.play import execute
from treeagent.search.config import SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Tree, path_logprob
from treeagent.search.puct import given_edges, merge_key
from treeagent.search.record import from_record, to_record
from treeagent.search.values import MixedValue
from treeagent.types import Action, Estimate, Message, Proposal, State, Task, ToolCall, Transition

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
    drawn = [[action.call for action in by._ranked((), scored, seed).actions] for seed in range(2000)]
    for call, share in shares.items():
        assert sum(first == call for first, *_ in drawn) / 2000 == pytest.approx(share, abs=4 * 0.5 / 2000**0.5)
    assert sum(second == "c" for _, second, _ in drawn) / 2000 == pytest.approx(0.2 + 0.6 / 7, abs=4 * 0.5 / 2000**0.5)
    assert all(sorted(map(str, each)) == ["a", "b", "c"] for each in drawn)


def test_the_greedy_policy_takes_the_likeliest_legal_action() -> None:
    for state, proposal in zip(STATES, propose(policy().greedy(), STATES, seed=5), strict=True):
        logprobs = [action.logprob for action in proposal.actions]
        assert logprobs == sorted(logprobs, reverse=True)
        assert len(proposal.actions) == len(state.legal_actions or ())


def test_a_state_is_scored_the_same_alone_and_in_a_batch() -> None:
    together = propose(policy(), STATES)
    for place, state in enumerate(STATES):
        [alone] = propose(policy(), [state], seed=place)
        assert [action.text for action in alone.actions] == [action.text for action in together[place].actions]
        assert alone.priors == pytest.approx(together[place].priors, abs=1e-5)


def test_equal_beginnings_count_once_in_the_budget() -> None:
    """What counts are the tokens of the trie, including stop tokens."""
    [proposal] = propose(policy(), STATES[:1])
    trie = {each.token_ids[:end] for each in proposal.actions for end in range(1, len(each.token_ids) + 1)}
    assert proposal.generated_tokens == len(trie) < sum(len(each.token_ids) for each in proposal.actions)


@pytest.mark.parametrize(
    ("legal", "texts"),
    [
        (("look", "look", " look "), ["Action: look", "Action:  look "]),  # equal calls, one listed twice
        (("look", "a\nb", "x\nAction: y"), ["Action: look"]),  # the format cannot write the other two
        (("look", "walk " * 300), ["Action: look"]),  # longer than the context
        ((), []),
        (("a\nb",), []),
        (None, []),
        (("walk " * 300,), []),
    ],
)
def test_what_cannot_be_written_is_left_out(legal: tuple[str, ...] | None, texts: list[str]) -> None:
    [proposal] = propose(policy(), [replace(STATES[0], legal_actions=legal)])
    assert sorted(action.text for action in proposal.actions) == sorted(texts)
    assert bool(proposal.error) == (not texts)
    assert not texts or math.fsum(proposal.priors) == pytest.approx(1)
    if not texts:
        too_long = legal is not None and len(str(legal)) > 1000
        assert ("longer context" if too_long else "policy.actions=sample") in proposal.error


class Doors:
    """Two doors. Behind each is one forced move to an end, whose reward is withheld."""

    def __init__(self) -> None:
        self.turns = list[str]()

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", "two doors"),), "0", legal_actions=("left", "right"))

    async def step(self, state: State, action: Action) -> Transition:
        self.turns.append(action.text)
        messages = (*state.messages, Message("assistant", action.text, action.token_ids), Message("user", "on"))
        if len(state.messages) > 1:
            return Transition(State(state.task, messages, None), reward=None, terminated=True)
        legal = ("walk through the red room and take the lamp",) if action.call == "left" else ("go",)
        return Transition(State(state.task, messages, str(action.call), legal_actions=legal))


class LeftIsWorthMore:
    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [
            Estimate(0.9 if any("left" in message.content for message in state.messages) else 0.1) for state in states
        ]


def test_a_forced_move_costs_no_likelihood() -> None:
    """The model, which is untrained, finds the text of the long move far less likely than that of the short one."""
    by = policy(generator=roomy())
    search = make_search(by, Doors(), SearchConfig(Limits(simulations=20)), LeftIsWorthMore(), noise=False)
    [tree] = asyncio.run(search.run([Task("a", "go")], [0]))
    plan = best_path(tree, likelihood_weight=0.1)
    assert [edge.action.call for edge in plan] == ["left", "walk through the red room and take the lamp"]
    left, forced = plan
    assert path_logprob(plan) == pytest.approx(math.log(left.prior)) and forced.action.logprob < -20
    [chains] = asyncio.run(
        make_search(by, Doors(), SearchConfig(Limits(simulations=9), method="best_of_n"), LeftIsWorthMore()).run(
            [Task("a", "go")], [0]
        )
    )
    for edge in chains.root.edges:  # a chain draws one action
        [whole] = [each for each in tree.root.edges if each.action.call == edge.action.call]
        assert edge.logprob == pytest.approx(math.log(whole.prior))
    again = from_record(json.loads(json.dumps(to_record(tree))))
    assert path_logprob(best_path(again, likelihood_weight=0.1)) == path_logprob(plan)


def test_a_rollout_thinks_where_the_search_does() -> None:
    world = Doors()
    by = replace(policy(generator=roomy()), thought_tokens=6)
    config = load_config(None, ["search.granularity=split", "policy.actions=score", "search.rollout_weight=1"])
    steps = SplitDynamics(world, by.grammar)
    value = leaf_value(MixedValue([LeftIsWorthMore()], [1.0]), by, steps, config)
    assert value is not None
    asyncio.run(value.estimate([asyncio.run(steps.reset(Task("a", "go")))]))
    assert len(world.turns) == 2 and not any(turn.startswith("Action:") for turn in world.turns)


def test_no_actions_are_scored_where_none_are_wanted() -> None:
    """A value function of ends only asks for the context that the policy reads."""
    [proposal] = propose(policy(), [replace(STATES[0], legal_actions=None)], count=0)
    assert proposal == Proposal(CHAT.prompt_ids(STATES[0].messages))


def test_sampled_and_scored_candidates_mix() -> None:
    """Three samples and the list of scored actions weigh 1/4 each. Samples come first. Equal calls become one edge,
    which keeps the sample, because it has a thought."""
    [proposal] = propose(policy("both"), STATES[:1], 3)
    [sampled], [scored] = propose(policy("sample"), STATES[:1], 3), propose(policy("score"), STATES[:1], 3)
    assert [each.text for each in proposal.actions[:3]] == [each.text for each in sampled.actions]
    assert [each.text for each in proposal.actions[3:]] == [each.text for each in scored.actions]
    assert proposal.priors == pytest.approx([*[1 / 4] * 3, *(prior / 4 for prior in scored.priors)])
    assert proposal.generated_tokens == sampled.generated_tokens + scored.generated_tokens
    thoughtful = Action("Thought: hm\nAction: look", "look", "hm", (1,), (-9.0,))
    edges = given_edges((thoughtful, *scored.actions), (0.5, *(prior / 2 for prior in scored.priors)))
    assert len(edges) == 4 and edges[0].action is thoughtful
    look = next(prior for action, prior in zip(scored.actions, scored.priors, strict=True) if action.call == "look")
    assert edges[0].prior == pytest.approx(0.5 + look / 2)


@pytest.mark.parametrize("legal", [None, (), ("a\nb",)])
def test_samples_are_enough_where_nothing_can_be_scored(legal: tuple[str, ...] | None) -> None:
    state = replace(STATES[0], legal_actions=legal)
    assert propose(policy("both"), [state], 3) == propose(policy("sample"), [state], 3)


def test_the_first_candidates_are_kept_and_their_priors_scaled() -> None:
    actions = [Action(call, call) for call in ("a", "b", "a", "c")]
    edges = given_edges(actions, (0.1, 0.3, 0.2, 0.4), 2)
    assert [edge.action.call for edge in edges] == ["a", "b"]
    assert [edge.prior for edge in edges] == pytest.approx([0.5, 0.5])
    assert [edge.prior for edge in given_edges(actions, (0.1, 0.3, 0.2, 0.4))] == pytest.approx([0.3, 0.3, 0.4])
    with pytest.raises(ValueError, match="shorter"):
        given_edges(actions, (0.5, 0.5))


def grow(name: str, options: dict[str, object], tasks: slice, method: str = "mcts", **settings: object) -> list[Tree]:
    env = make_env(name, options)
    dynamics = EnvDynamics(env, max_steps=6, list_actions=True)
    by = replace(policy(generator=roomy()), tools=env.tools())
    config = SearchConfig(limits=Limits(simulations=12), method=method, candidates=3, **settings)  # type: ignore[arg-type]
    return asyncio.run(make_search(by, dynamics, config).run(env.tasks("train", 3)[tasks], range(3)[tasks]))


@pytest.mark.parametrize(("name", "options"), GAMES, ids=[name for name, _ in GAMES])
@pytest.mark.parametrize(
    ("method", "settings"),
    [("mcts", {}), ("mcts", {"widening": 0}), ("mcts", {"selection": "gumbel"}), ("beam", {}), ("best_of_n", {})],
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
            if method == "mcts" and settings.get("widening") != 0:
                assert not node.edges or len(node.edges) == len(node.state.legal_actions or ())
            elif method != "best_of_n":
                assert len(node.edges) <= 3
        assert "legal_actions" not in str(to_record(tree))


def test_a_tree_of_scored_actions_is_the_same_alone_and_in_a_batch() -> None:
    batch, [alone] = grow("frozenlake", {"size": 3}, slice(3)), grow("frozenlake", {"size": 3}, slice(1, 2))
    for (path, node), (other_path, other) in zip(batch[1].walk(), alone.walk(), strict=True):
        assert batch[1].prompt_ids(path) == alone.prompt_ids(other_path)
        assert [edge.action.text for edge in node.edges] == [edge.action.text for edge in other.edges]
        assert [edge.visits for edge in node.edges] == [edge.visits for edge in other.edges]


def test_legal_actions_are_scored_behind_sampled_thoughts() -> None:
    """After a thought sampled by the model, the rest of the turn is one of the legal actions, token for token."""
    by, begun = policy(), make_grammar("react").mark
    split, states = SplitPolicy(by), list[State]()
    for opening in ("Thought: a lamp\n", ""):
        text = f"{opening}{begun}"
        thought = Action(text, "", opening, CHAT.encode(text), (-1.0,) * len(CHAT.encode(text)))

        class Nowhere:
            async def reset(self, task: Task) -> State:
                return STATES[0]

            async def step(self, state: State, action: Action) -> None: ...

        stepped = asyncio.run(SplitDynamics(Nowhere(), by.grammar).step(STATES[0], thought))  # type: ignore[arg-type]
        states.append(stepped.state)
    for state, proposal in zip(states, asyncio.run(split.propose(states, 1, [0, 1])), strict=True):
        prompt, said = CHAT.prompt_ids(state.messages), state.messages[-1].content
        assert len(proposal.actions) == 4 and math.fsum(proposal.priors) == pytest.approx(1)
        for action in proposal.actions:
            whole = by.grammar.read(said + action.text)
            assert not whole.error and whole.call == action.call
            expected = plain_logprobs(shared_model(), prompt, action.token_ids).tolist()
            assert action.logprobs == pytest.approx(expected, abs=1e-5)
    [thoughts] = asyncio.run(split.propose(STATES[:1], 3, [0]))
    assert not thoughts.priors and len(thoughts.actions) == 3  # thoughts are sampled as usual


def test_a_greedy_episode_takes_legal_actions_alone() -> None:
    env = make_env("planning", {"domain": "blocks"})
    dynamics = EnvDynamics(env, max_steps=5, list_actions=True)
    tasks = env.tasks("test", 3)
    by = replace(policy(generator=roomy()).greedy(), tools=env.tools())
    outcomes, episodes = asyncio.run(execute(by, dynamics, tasks, [0] * 3, [()] * 3))
    assert not any(outcome.error for outcome in outcomes)
    assert not any(node.invalid for episode in episodes for node in episode.nodes())


@pytest.mark.parametrize("answer", ["look", 3, [3], ["\ud800"], {"look": 1}])
def test_a_list_of_actions_that_is_none_ends_its_episode(answer: object) -> None:
    env = make_env("planning", {"domain": "blocks"})
    env.legal_actions = lambda: answer  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(EnvBroken, match="legal_actions returned"):
        asyncio.run(EnvDynamics(env, max_steps=5, list_actions=True).reset(env.tasks("train", 1)[0]))


def test_states_list_actions_where_they_are_asked_to() -> None:
    env = make_env("planning", {"domain": "blocks"})
    [task] = env.tasks("train", 1)
    silent, dynamics = EnvDynamics(env, max_steps=5), EnvDynamics(env, max_steps=5, list_actions=True)
    assert asyncio.run(silent.reset(task)).legal_actions is None
    root = asyncio.run(dynamics.reset(task))
    assert root.legal_actions and root.legal_actions[-1] == "finish"
    malformed = asyncio.run(dynamics.step(root, Action("?", "", error="no call")))
    assert malformed.state.legal_actions == root.legal_actions
    moved = asyncio.run(dynamics.step(root, Action("", root.legal_actions[0])))
    assert moved.state.legal_actions and moved.state.legal_actions != root.legal_actions
    ended = asyncio.run(dynamics.step(root, Action("", "finish")))
    assert ended.terminated and ended.state.legal_actions is None
