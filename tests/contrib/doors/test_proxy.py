"""The proxy: what any client says through it becomes trees of the very tokens that were sampled."""

import copy
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from door import ADD, SETTINGS, Scripted, client, door, play
from toy_llama import tokenizer

from treeagent.agent.policy import LLMPolicy
from treeagent.contrib.doors import capture, send_outcome
from treeagent.contrib.doors.capture import JOURNAL
from treeagent.contrib.doors.speaker import Format
from treeagent.generators.base import Sample
from treeagent.generators.chat import ChatFormat
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.trees import stored_trees
from treeagent.search.node import Tree, finished_paths
from treeagent.types import UserError
from treeagent.views.advantages import AdvantageConfig, advantages
from treeagent.views.imitation import ImitationConfig, imitation_rows
from treeagent.views.pairs import PairConfig, preference_pairs

URL = "/v1/chat/completions"


def trees_in(run: Path) -> list[Tree]:
    return list(stored_trees(run / "trees"))


def turns(tree: Tree) -> list[tuple[tuple[int, ...], Any]]:
    """The prompt and the edge of every turn of a tree."""
    return [(tree.prompt_ids(path), edge) for path, node in tree.walk() for edge in node.edges]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def asked(text: str, *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [user(text), *more], **fields}


def sentence(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


def test_200_conversations_100_at_a_time_keep_the_ids_of_the_generator_and_are_not_mixed(tmp_path: Path) -> None:
    model = Scripted()
    with door(tmp_path / "run", model, group=4) as address:

        def whole(number: int) -> int:
            name = f"sum-{number // 4}:{number}"
            answers = play(client(address, name), f"task {number // 4}")
            send_outcome(f"{address}/e/{name}/v1", float(number % 2))
            return len(answers)

        with ThreadPoolExecutor(100) as pool:
            said = sum(pool.map(whole, range(200)))
    trees = trees_in(tmp_path / "run")
    assert {tree.task.id for tree in trees} == {f"sum-{number}" for number in range(50)} and len(trees) == 50
    assert sum(tree.budget.simulations for tree in trees) == 200
    sampled = [(prompt, edge) for tree in trees for prompt, edge in turns(tree)]
    assert sum(edge.visits for _, edge in sampled) == sum(model.sizes) == said and max(model.sizes) > 10
    assert all(model.said[prompt, edge.action.token_ids] == edge.action.logprobs for prompt, edge in sampled)
    several = [edge for _, edge in sampled if edge.action.text.count("<tool_call>") > 1]
    assert several and not any(edge.action.error for edge in several)
    for tree in trees:
        number = tree.task.id.removeprefix("sum-")
        assert tree.task.prompt == f"task {number}"
        assert [message.content for message in tree.root.state.messages] == ["Be brief.", f"task {number}"]


def test_plays_of_a_task_become_one_tree_that_the_views_read(tmp_path: Path) -> None:
    with door(tmp_path / "run", group=6) as address:
        for number in range(6):
            play(client(address, f"sum:{number}"), "2+2")
            send_outcome(f"{address}/e/sum:{number}/v1", float(number % 2))
        answers = play(client(address, "other:0"), "open")  # never gets an outcome
    tree, left = trees_in(tmp_path / "run")
    assert len(list(finished_paths(tree))) == 6 and tree.root.visits == 6
    assert advantages([tree], AdvantageConfig("grpo")) and list(imitation_rows(tree, ImitationConfig()))
    assert list(preference_pairs(tree, PairConfig("trajectory")))
    assert left.task.id == "other" and len(turns(left)) == len(answers)
    assert not advantages([left], AdvantageConfig("grpo")) and not list(imitation_rows(left, ImitationConfig()))
    assert Run.open(tmp_path / "run").facts(COLLECTED)["tasks"] == 2


def test_a_request_that_is_sent_again_gets_the_same_answer(tmp_path: Path) -> None:
    model = Scripted()
    with door(tmp_path / "run", model) as address, ThreadPoolExecutor(4) as pool:
        ask = lambda _: httpx.post(f"{address}/e/a/v1/chat/completions", json=asked("hi")).json()["id"]  # noqa: E731
        assert len(set(pool.map(ask, range(4)))) == 1 and len(model.said) == 1
        # A client that leaves in the middle of a stream finds the turn when it comes again.
        with httpx.stream("POST", f"{address}/e/b/v1/chat/completions", json=asked("ho", stream=True)) as stream:
            first = next(stream.iter_lines())
        again = httpx.post(f"{address}/e/b/v1/chat/completions", json=asked("ho")).json()["id"]
        assert json.loads(first.removeprefix("data: "))["id"] == again and len(model.said) == 2
        send_outcome(f"{address}/e/a/v1", 1)
        send_outcome(f"{address}/e/a/v1", 1)  # so does an outcome
        assert "is 1 already" in sentence(httpx.post(f"{address}/e/a/v1/outcomes", json={"reward": 0}))
        assert "has its outcome" in sentence(httpx.post(f"{address}/e/a/v1/chat/completions", json=asked("more")))


def test_a_rewritten_history_begins_a_branch_where_the_ids_part(tmp_path: Path) -> None:
    with door(tmp_path / "run") as address:

        def post(*said: Any) -> dict[str, Any]:
            answer: dict[str, Any] = httpx.post(f"{address}/e/a/v1/chat/completions", json=asked(*said)).json()
            return answer

        def turn(answer: dict[str, Any], text: str) -> tuple[dict[str, Any], dict[str, Any]]:
            return {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, user(text)

        first = post("hi")
        second = post("hi", *turn(first, "long page"))
        post("hi", *turn(first, "long page"), *turn(second, "next"))
        post("hi", *turn(first, "[cut]"), *turn(second, "next"))
        post("hi", {"role": "assistant", "content": "what I never said"}, user("next"))
        send_outcome(f"{address}/e/a/v1", 1)
    (tree, other) = sorted(trees_in(tmp_path / "run"), key=lambda tree: -len(turns(tree)))
    one, cut = tree.root.edges
    assert one.action == cut.action and one.child and cut.child
    assert [message.content for message in one.child.state.messages[2:]] == ["long page"]
    assert [message.content for message in cut.child.state.messages[2:3]] == ["[cut]"]
    assert (one.visits, cut.visits, cut.value) == (0, 1, 1.0)  # the last conversation of each opening has the outcome
    assert len(other.root.state.messages) == 3 and other.root.edges[0].visits == 1


def test_a_client_without_a_name_for_its_episode_is_followed_by_what_it_sends(tmp_path: Path) -> None:
    with door(tmp_path / "run", group=2) as address:
        plays = [play(client(address), "2+2", most=3) for _ in range(2)]
        assert plays[0][0].id != plays[1][0].id or len(plays[0]) == 1
        for answers in plays:
            httpx.post(f"{address}/v1/outcomes", json={"answer": answers[-1].id, "reward": 1}).raise_for_status()
    (tree,) = trees_in(tmp_path / "run")
    assert tree.task.id.startswith("task-")


def test_a_stream_says_what_the_whole_answer_says(tmp_path: Path) -> None:
    with door(tmp_path / "run") as address:
        whole = play(client(address, "a"), "2+2", most=1)[0].choices[0].message
        messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2"}]
        options: Any = {"stream_options": {"include_usage": True}}
        parts = client(address, "a").chat.completions.stream(model="tiny", messages=messages, tools=[ADD], **options)
        with parts as events:
            final = events.get_final_completion()
        assert (final.choices[0].message.content or "") == (whole.content or "")
        assert [each.id for each in final.choices[0].message.tool_calls or ()] == [
            each.id for each in whole.tool_calls or ()
        ]
        assert final.usage is not None and final.usage.completion_tokens > 0


def test_a_verifier_reads_the_conversation(tmp_path: Path) -> None:
    def verifier(messages: list[dict[str, Any]], task: str) -> float | None:
        return None if messages[-1].get("tool_calls") else float("it is" in messages[-1]["content"])

    with door(tmp_path / "run", group=1, verifier=verifier) as address:
        play(client(address, "a:1"), "2+2", most=20)
    (tree,) = trees_in(tmp_path / "run")
    (path,) = finished_paths(tree)
    assert path[-1].reward == 1.0


def test_what_cannot_be_served_is_told_in_a_sentence(tmp_path: Path) -> None:
    with door(tmp_path / "run", key="secret") as address:
        headers = {"authorization": "Bearer secret"}

        def post(path: str, **what: Any) -> httpx.Response:
            return httpx.post(address + path, headers=headers, **what)

        with pytest.raises(openai.AuthenticationError, match="the key is wrong"):
            play(client(address, key="guess"), "hi")
        assert "OpenAIChatCompletionsModel" in sentence(post("/v1/responses", json={}))
        unknown = post(URL, json=asked("hi") | {"model": "gpt-4"})
        assert unknown.status_code == 404 and "name 'tiny'" in sentence(unknown)
        large = post(URL, content=b" " * 50_000_000)
        assert large.status_code == 413 and "send less" in sentence(large)
        assert "one answer" in sentence(post(URL, json=asked("hi", n=2)))
        assert "no chat completion" in sentence(post(URL, content=b"{"))
        assert "no episode" in sentence(post("/e/x/v1/outcomes", json={"reward": 1}))
        assert "NUMBER" in sentence(post("/v1/outcomes", json={"episode": "x", "reward": "much"}))
        assert "web pages" in sentence(httpx.get(f"{address}/v1/models", headers={"origin": "http://evil"}))
        assert "not served here" in sentence(httpx.get(f"{address}/v1/files"))
    assert trees_in(tmp_path / "run") == []


def test_a_template_that_rewrites_history_is_refused() -> None:
    policy = LLMPolicy(Scripted(), ChatFormat(tokenizer()))
    last = copy.deepcopy(tokenizer())
    last.chat_template = "{% for message in messages[-2:] %}{{ message.content }}\n{% endfor %}"
    policy.chat.tokenizer = last
    with pytest.raises(UserError, match="template"):
        Format(policy, SETTINGS, ())


def test_what_a_kill_leaves_is_taken_up_again(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    with door(tmp_path / "run", group=1) as address:
        for number in range(20):
            play(client(address, f"t{number}:1"), f"task {number}")
            if number != 18:
                send_outcome(f"{address}/e/t{number}:1/v1", 1)
        # All that is on disk while the server lives, and half of a line.
        killed.mkdir()
        (killed / "trees").mkdir()
        for file in ("config.toml", "given.json", "stages.json", JOURNAL, *(f"trees/{each.name}" for each in
                     (tmp_path / "run" / "trees").iterdir())):  # fmt: skip
            if (tmp_path / "run" / file).exists():
                (killed / file).write_bytes((tmp_path / "run" / file).read_bytes())
    with (killed / JOURNAL).open("ab") as journal:
        journal.write(b'{"turn": ')
    with door(killed, group=1, resume=True) as address:
        again = play(client(address, "t18:1"), "task 18")
        send_outcome(f"{address}/e/t18:1/v1", 1)
        play(client(address, "t20:1"), "task 20")
    trees = trees_in(killed)
    assert sorted(tree.task.id for tree in trees) == sorted(f"t{number}" for number in range(21))
    assert len({tree.seed for tree in trees}) == 21
    by_task = {tree.task.id: tree for tree in trees}
    assert len(turns(by_task["t18"])) == len(again) and by_task["t18"].budget.simulations == 1
    assert by_task["t20"].budget.simulations == 0
    whole = {tree.task.id: turns(tree)[0][1].action for tree in trees_in(tmp_path / "run")}
    assert all(by_task[name].root.edges[0].action == action for name, action in whole.items())


def test_memory_does_not_grow_with_the_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_OPEN", 8)
    seen = list[capture.Capture]()
    made = capture.Capture._replay

    def replay(self: capture.Capture) -> None:
        seen.append(self)
        made(self)

    monkeypatch.setattr(capture.Capture, "_replay", replay)
    with door(tmp_path / "run", group=1) as address, httpx.Client() as http:
        for number in range(150):
            name = f"{address}/e/t{number}:1/v1"
            http.post(f"{name}/chat/completions", json=asked(f"task {number}")).raise_for_status()
            if number % 3:
                http.post(f"{name}/outcomes", json={"reward": 1}).raise_for_status()
        (held,) = seen
        assert len(held.plays) <= 8 and len(held.groups) <= 8 and len(held.threads) <= 8 * 4
        assert len(held.closed) <= 16
    assert len(trees_in(tmp_path / "run")) == 150


class Brief(Scripted):
    """Says a short text. It keeps its latest prompt alone."""

    def _say(self, prompt: tuple[int, ...], seed: int) -> Sample:
        self.prompt, ids = prompt, (*self.chat.encode_within(f"it is {seed % 99}"), self.chat.stop_id)
        return Sample(ids, (-0.5,) * len(ids))


LONG = pytest.param(10_000, "/e/long:1", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


@pytest.mark.parametrize(("count", "name"), [(150, "/e/long:1"), (150, ""), LONG])
def test_a_long_conversation_keeps_its_ids(count: int, name: str, tmp_path: Path) -> None:
    model, body = Brief(), json.dumps(user("begin"))
    with door(tmp_path / "run", model, group=1) as address, httpx.Client(timeout=60) as http:
        for turn in range(count):
            content = '{"messages": [' + body + "]}"
            answer = http.post(f"{address}{name}{URL}", content=content).json()
            said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            body += f", {json.dumps(said)}, {json.dumps(user(f'page {turn}'))}"
        http.post(f"{address}/v1/outcomes", json={"answer": answer["id"], "reward": 1}).raise_for_status()
    (tree,) = trees_in(tmp_path / "run")
    *_, (path, node) = tree.walk()
    assert len(path) == count and tree.prompt_ids(path[:-1]) == model.prompt
    if count < 1000:  # the template writes the whole conversation in one go as turn by turn
        assert model.chat.prompt_ids(node.state.messages[:-1]) == model.prompt


def test_requests_of_many_conversations_go_through_the_model_together(tmp_path: Path) -> None:
    model, ready = Scripted(), threading.Barrier(32)
    with door(tmp_path / "run", model) as address:

        def ask(number: int) -> None:
            ready.wait()
            httpx.post(f"{address}/e/{number}/v1/chat/completions", json=asked(f"task {number}"), timeout=60)

        for _ in range(1):
            with ThreadPoolExecutor(32) as pool:
                list(pool.map(ask, range(32)))
    assert len(model.sizes) < 16 and sum(model.sizes) == 32
