"""A pool of servers: which server answers which tree, and how a search survives the death of one."""

import asyncio
import gc
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_server import Body, Fault, OpenAIServer, serving
from toy_llama import CONFIG, shared_model, tokenizer

from treeagent.agent.policy import LLMPolicy
from treeagent.config import ConfigError, load_config
from treeagent.contrib.servers import servers as pool
from treeagent.contrib.servers.servers import rendezvous_order
from treeagent.generators.base import Failure, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import RemoteConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.remote import RemoteChat, RemoteGenerator
from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Tree
from treeagent.types import Action, Message, State, Task, Transition, UserError

CHAT = ChatFormat(tokenizer())
TASKS = [Task(f"task-{number}", "a b "[: 1 + number % 3] + "c" * (number // 3)) for number in range(8)]
NEVER = len(tokenizer()) - 1
URLS = st.lists(st.integers(1, 65535), min_size=1, max_size=6, unique=True)


class TwoTurns:
    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", task.prompt),))

    async def step(self, state: State, action: Action) -> Transition:
        said = Message("assistant", action.text, action.token_ids)
        told = State(state.task, (*state.messages, said, Message("user", "b")))
        return Transition(told, truncated=len(told.messages) > 4)


def made() -> OpenAIServer:
    return OpenAIServer(LocalGenerator(shared_model()), CHAT, "toy", CONFIG.context)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.01)
    monkeypatch.setattr(pool, "_RETRY_SECONDS", (0.01, 0.02))


@pytest.fixture
def two() -> Iterator[tuple[OpenAIServer, OpenAIServer]]:
    with serving(made()) as one, serving(made()) as other:
        yield one, other


def remote(*servers: OpenAIServer, timeout: float = 20.0) -> RemoteGenerator:
    return RemoteGenerator(RemoteConfig(url=tuple(each.url for each in servers), timeout=timeout), "toy", 1.0)


def grown(generator: RemoteGenerator | LocalGenerator) -> list[Tree]:
    limits = Limits(simulations=4)
    config = SearchConfig(limits, candidates=2, leaves=2)
    policy = LLMPolicy(generator, CHAT, max_new_tokens=4)
    search = make_search(policy, TwoTurns(), config)
    return asyncio.run(search.run(TASKS, range(len(TASKS))))


def actions(trees: Sequence[Tree]) -> list[list[tuple[tuple[int, ...], ...]]]:
    assert [tree.error for tree in trees] == [""] * len(trees)
    return [[tuple(edge.action.token_ids for edge in path) for path, _ in tree.walk()] for tree in trees]


def opened(server: OpenAIServer) -> set[str]:
    """The tasks about which a server was asked anything."""
    asked = [tuple(body["prompt"]) for body in server.asked]
    openings = {task.id: CHAT.prompt_ids((Message("user", task.prompt),)) for task in TASKS}
    return {name for name, ids in openings.items() if any(prompt[: len(ids)] == ids for prompt in asked)}


def draw(generator: RemoteGenerator, *prompts: tuple[int, ...]) -> list[list[Sample] | Failure]:
    return generator.sample(SampleRequest(prompts, 1, [7] * len(prompts), stop_id=NEVER, max_new_tokens=3))


def port_of(server: OpenAIServer) -> int:
    return urlsplit(server.url).port or 0


def prompt_for(server: OpenAIServer, *others: OpenAIServer) -> tuple[int, ...]:
    """A prompt that goes to ``server`` first."""
    urls = [server.url, *(each.url for each in others)]
    return next(ids for number in range(5, 99) if rendezvous_order(repr(ids := (number, 6)), urls)[0] == 0)


@settings(max_examples=40)
@given(URLS, st.text())
def test_a_key_has_one_order_of_servers_whatever_the_order_of_the_list(ports: list[int], key: str) -> None:
    urls = [f"http://host:{port}/v1" for port in ports]
    order = [urls[place] for place in rendezvous_order(key, urls)]
    assert sorted(order) == sorted(urls)
    assert order == [urls[::-1][place] for place in rendezvous_order(key, urls[::-1])]
    assert order[1:] == [urls[1:][place] for place in rendezvous_order(key, urls[1:])] or order[0] != urls[0]
    for gone in urls:  # the order of the others is unchanged, so only the trees of the lost server move
        left = [url for url in urls if url != gone]
        assert [left[place] for place in rendezvous_order(key, left)] == [url for url in order if url != gone]


@settings(max_examples=15)
@given(URLS, st.integers(0, 1 << 30))
def test_every_server_gets_its_share_of_keys(ports: list[int], start: int) -> None:
    """1,200 keys on n servers: each share is binomial, and a deviation of 6 standard deviations from 1 / n happens once
    in some hundred million cases."""
    urls = [f"http://host:{port}/v1" for port in ports]
    first = Counter(rendezvous_order(f"task-{start + number}", urls)[0] for number in range(1200))
    share = 1 / len(urls)
    for place in range(len(urls)):
        assert abs(first[place] - 1200 * share) <= 6 * (1200 * share * (1 - share)) ** 0.5
    second = Counter(rendezvous_order(f"task-{start + number}", urls)[:2][-1] for number in range(1200))
    assert len(second) == len(urls)


def test_a_tree_stays_with_one_server(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    expected = grown(LocalGenerator(shared_model()))
    generator = remote(*two)
    assert actions(grown(generator)) == actions(expected)
    one, other = map(opened, two)
    assert one | other == {task.id for task in TASKS} and not one & other
    assert one == {task.id for task in TASKS if rendezvous_order(task.id, [each.url for each in two])[0] == 0}
    assert generator.usage.generated_tokens > 0


def test_a_search_outlives_one_of_its_servers(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    """The server dies with answers under way, and no branch of a tree is lost."""
    expected = actions(grown(LocalGenerator(shared_model())))
    one, other = two
    generator = remote(one, other)
    asked, lock, dead = len(one.asked) + len(other.asked), threading.Lock(), list[OpenAIServer]()

    def dying(server: OpenAIServer) -> Callable[[Body], Fault | None]:
        """Kill the server that gets the sixth request. Which server has a tree depends on their ports."""

        def fault(body: Body) -> Fault | None:
            with lock:
                if not dead and len(one.asked) + len(other.asked) >= asked + 6:
                    dead.append(server)
                    server.kill()
            return None

        return fault

    one.fault, other.fault = dying(one), dying(other)
    with pytest.warns(UserWarning, match="does not answer"):
        trees = grown(generator)
    assert actions(trees) == expected
    assert len(dead) == 1


def test_a_server_that_comes_back_is_asked_again_if_it_serves_the_model(
    two: tuple[OpenAIServer, OpenAIServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_LEFT_OUT_SECONDS", 0.1)
    one, other = two
    generator = remote(one, other)
    mine, before = prompt_for(one, other), len(other.asked)
    expected = draw(generator, mine)
    assert len(other.asked) == before
    one.kill()
    with pytest.warns(UserWarning, match="does not answer"):
        assert draw(generator, mine) == expected
    for model, answered in (("another", False), ("toy", True)):
        time.sleep(0.12)
        with serving(replace(made(), model=model), port_of(one)) as back:
            assert draw(generator, mine) == expected
            assert (mine in [tuple(body["prompt"]) for body in back.asked]) == answered


def test_a_server_that_is_full_passes_a_request_on_and_stays(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    one, other = two
    generator = remote(one, other)
    mine = prompt_for(one, other)
    expected, before = draw(generator, mine), len(one.asked)
    for status in (429, 500):
        one.fault = lambda body, status=status: status  # type: ignore[misc]
        assert draw(generator, mine) == expected
    assert len(one.asked) == before + 2


def test_a_pool_that_is_full_waits_as_long_as_its_servers_ask(
    two: tuple[OpenAIServer, OpenAIServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_LONGEST_WAIT", 0.3)
    generator, mine = remote(*two), prompt_for(*two)
    expected, before = draw(generator, mine), sum(len(server.asked) for server in two)
    for server in two:
        server.retry_after = "1"
        asked = len(server.asked)
        server.fault = lambda body, server=server, asked=asked: 429 if len(server.asked) == asked + 1 else None  # type: ignore[misc]
    started = time.monotonic()
    assert draw(generator, mine) == expected
    assert time.monotonic() - started >= 0.3
    assert sum(len(server.asked) for server in two) == before + 3


def test_connections_end_with_the_generator(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    generator = remote(*two)
    clients = [server.client for server in generator.servers]
    del generator
    gc.collect()
    assert all(client.is_closed() for client in clients)


def test_no_thread_that_waits_for_an_answer_keeps_the_process_from_ending(
    two: tuple[OpenAIServer, OpenAIServer],
) -> None:
    """After Ctrl-C, a hanging server would delay the end by its timeouts and retries."""
    seen = list[set[threading.Thread]]()

    def lasting() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if not thread.daemon}

    def fault(body: Body) -> None:
        seen.append(lasting())

    generator, ours = remote(*two), lasting()
    for server in two:
        server.fault = fault
    drawn = draw(generator, (5, 6), (7, 6), (8, 6))
    assert not any(isinstance(each, Failure) for each in drawn)
    assert seen == [ours] * 3


def test_a_server_that_hangs_is_left_out(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    one, other = two
    generator, over = remote(one, other, timeout=1.0), threading.Event()
    mine = prompt_for(one, other)
    expected, before = draw(generator, mine), len(one.asked)
    one.fault = lambda body: 500 if over.wait(30) else None
    with pytest.warns(UserWarning, match="timed out"):
        assert draw(generator, mine) == expected
    assert draw(generator, mine) == expected
    assert len(one.asked) == before + 1
    over.set()


def test_a_prompt_that_no_server_can_answer_costs_itself_alone(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    generator = remote(*two)
    for each in two:
        each.fault = lambda body: 500 if body["prompt"] == [9, 9] else 400 if body["prompt"] == [8, 8] else None
    before = sum(len(each.asked) for each in two)
    broken, refused, fine = draw(generator, (9, 9), (8, 8), (7, 7))
    assert isinstance(broken, Failure) and "answered 500" in broken.reason
    assert isinstance(refused, Failure) and "answered 400" in refused.reason
    assert not isinstance(fine, Failure)
    assert sum(len(each.asked) for each in two) == before + 3 * 2 + 1 + 1  # the status 400 is the prompt's own fault


def test_when_all_are_down_the_run_stops_with_a_sentence(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    generator = remote(*two)
    for each in two:
        each.kill()
    with pytest.warns(UserWarning), pytest.raises(UserError, match=r"cannot be reached .*: start it"):
        draw(generator, (5, 6))
    with pytest.raises(UserError, match=r"cannot be reached .*: start it, or correct policy\.url"):
        remote(*two)


def test_a_run_begins_with_the_servers_that_are_up(
    two: tuple[OpenAIServer, OpenAIServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    one.kill()
    with pytest.warns(UserWarning, match=re.escape(one.url)):
        generator = remote(one, other)
    mine = prompt_for(one, other)
    assert not isinstance(draw(generator, mine)[0], Failure)
    monkeypatch.setattr(pool, "_LEFT_OUT_SECONDS", 0.0)
    generator.servers[0].left_out_until = 1e-9
    with serving(made(), port_of(one)) as late:
        draw(generator, mine)
        assert late.asked[-1]["prompt"] == list(mine)


def test_every_server_must_fit(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    one, other = two
    other.context = 100
    assert remote(one, other).context == 100
    other.raw_logprobs = True
    config = RemoteConfig(url=(one.url, other.url))
    with pytest.raises(UserError, match=f"{re.escape(other.url)} leave out the temperature"):
        RemoteGenerator(config, "toy", 0.7)
    other.model = "another"
    with pytest.raises(UserError, match=f"{re.escape(other.url)} serves 'another', not 'toy'"):
        remote(one, other)


def test_conversations_are_spread_and_pass_on_too(two: tuple[OpenAIServer, OpenAIServer]) -> None:
    urls = tuple(each.url for each in two)
    chat = RemoteChat(RemoteConfig(url=urls), "toy")
    talks = [[Message("user", task.prompt)] for task in TASKS[:2]]
    # Which server a name goes to depends on their ports, so take one name for each server.
    names = [next(name for name in map(str, range(99)) if rendezvous_order(name, urls)[0] == first) for first in (0, 1)]
    told = chat.reply(talks, 1, range(2), max_new_tokens=4, temperature=1.0, trees=names)
    assert all(each.asked for each in two)
    two[0].kill()
    with pytest.warns(UserWarning):
        assert chat.reply(talks, 1, range(2), max_new_tokens=4, temperature=1.0, trees=names) == told


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ((), "empty"),
        (("http://a/v1", "http://b/v1", "http://a/v1/"), "http://a/v1"),
        (("http://a/v1", "ftp://b/v1"), "ftp://b/v1"),
        ("localhost:8000", "localhost:8000"),
        ("http://[::1", "http://[::1"),
        ("http:///v1", "http:///v1"),
        ("", "''"),
    ],
)
def test_a_list_that_names_no_servers_is_refused(url: str | tuple[str, ...], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        RemoteConfig(url=url)


def test_a_wrong_address_is_named_by_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"policy\.url: 'ftp://b/v1'"):
        load_config(None, ["policy.url=['http://a/v1','ftp://b/v1']"])


def test_one_address_or_several_are_settings() -> None:
    urls = ["http://a/v1", "https://b:1/v1"]
    assert load_config(None, [f"policy.url={urls}"]).policy.url == tuple(urls)
