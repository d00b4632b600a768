"""Calls that wait for a person's approval: no answer means no, answers are kept, and search asks once per call and
state."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

from faulty_envs import Stairs, WordsPolicy, stairs_task

from treeagent.contrib.guards.approval import Answer, Approval, ApprovedEnv, Request, answer, waiting
from treeagent.contrib.guards.shield import FORBIDDEN
from treeagent.envs import EnvDynamics
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search


def held(folder: Path, seconds: float = 20.0) -> ApprovedEnv:
    return ApprovedEnv(Stairs(), Approval(("^up$",), str(folder), seconds))


def answering(folder: Path, decide: Callable[[Request], bool], count: int) -> threading.Thread:
    """A person at another terminal who answers ``count`` requests."""

    def work() -> None:
        left, ends = count, time.monotonic() + 20
        while left and time.monotonic() < ends:
            for request in list(waiting(folder)) if folder.exists() else ():
                answer(folder, request.id, Answer(decide(request), "ada", note="too high"))
                left -= 1
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_no_answer_means_no_and_the_answer_of_a_late_person_does_not_count(tmp_path: Path) -> None:
    env = held(tmp_path / "asked", seconds=0.01)
    env.reset(options={"task": stairs_task(1)})
    first = env.step("up")[0]
    assert first == FORBIDDEN + "it was not approved: nobody answered in 0.01 s"
    [asked] = (tmp_path / "asked").glob("*.ask.json")
    assert not answer(tmp_path / "asked", asked.name.split(".")[0], Answer(True, "ada"))
    assert env.step("up")[0] == first
    assert env.step("down")[0] == "stair -1"  # a call that needs no approval


def test_a_call_is_held_until_a_person_says_yes_or_no(tmp_path: Path) -> None:
    person = answering(tmp_path, lambda request: request.observation != "stair 1", 2)
    env = held(tmp_path)
    env.reset(options={"task": stairs_task(1)})
    assert env.step("up")[0] == "stair 1"
    assert env.step("up")[0] == FORBIDDEN + "ada said no: too high"
    person.join()
    again = held(tmp_path, seconds=0.01)  # as in a resumed run: the answers are kept
    again.reset(options={"task": stairs_task(1)})
    assert [again.step("up")[0], again.step("up")[0]] == ["stair 1", FORBIDDEN + "ada said no: too high"]


def test_search_asks_once_for_a_call_at_a_state_however_often_it_is_replayed(tmp_path: Path) -> None:
    """The person only approves going up from the ground; every path is replayed from the start."""
    env = ApprovedEnv(Stairs("none"), Approval(("^up$",), str(tmp_path), 20))
    person = answering(tmp_path, lambda request: request.observation == "stair 0", 4)
    search = Search(
        WordsPolicy("up", "down"), EnvDynamics(env, max_steps=3), SearchConfig(Limits(simulations=12), candidates=2)
    )
    [tree] = asyncio.run(search.run([stairs_task(1)], [0]))
    assert tree.error == "" and tree.budget.environment_steps > tree.budget.simulations
    tried = [edge for node in tree.nodes() for edge in node.edges if edge.child is not None]
    allowed = [edge.child.invalid for edge in tried if edge.action.call == "up" and edge.child is not None]
    assert {True, False} == set(allowed)
    states = {
        str(node.state.key).split()[-1]
        for node in tree.nodes()
        for edge in node.edges
        if edge.action.call == "up" and edge.child is not None
    }
    assert len(list(tmp_path.glob("*.ask.json"))) == len(states) == 4 < len(allowed)
    person.join()
