"""The toolbox: pipelines of the requested length, references that lead to the answer, and the contract."""

import random

from treeagent.contrib.worlds.toolbox import ToolboxEnv, ToolboxOptions
from treeagent.envs import check_env, make_env
from treeagent.types import Task

TABLES = {
    "team_of": {"mira": "red", "tom": "blue"},
    "badge_of": {"mira": "41", "tom": "17"},
    "lead_of": {"red": "tom", "blue": "mira"},
    "room_of": {"red": "lab", "blue": "hall"},
    "floor_of": {"lab": "10", "hall": "20"},
    "phone_of": {"lab": "55", "hall": "66"},
}


def begun(question: list[object], noted: bool = False) -> ToolboxEnv:
    env = ToolboxEnv()
    data = {"tables": TABLES, "question": question, "noted": noted}
    env.reset(options={"task": Task("one", "?", data=data)})
    return env


def test_a_pipeline_by_hand() -> None:
    """The floor of the room of mira's team plus tom's badge: 10 + 17. Two calls are due at first."""
    env = begun(["add", ["floor_of", ["room_of", ["team_of", "mira"]]], ["badge_of", "tom"]])
    assert env.key.due(()) == [("team_of", ("mira",)), ("badge_of", ("tom",))]
    calls = ("badge_of[tom]", "17"), ("team_of[mira]", "red"), ("room_of[red]", "lab"), ("floor_of[lab]", "10")
    for call, said in calls:
        assert env.step(call)[:4] == (said, 0.0, False, False)
    assert env.key.due(env.visit.made) == [("add", ("10", "17"))]
    before = env.snapshot()
    for call in ("add[10, 17]", "add[17, 10]"):
        env.restore(before)
        assert env.step(call)[0] == "27"
        assert env.key.due(env.visit.made) == []
    assert env.step("answer[27]")[:3] == ("answered", 1.0, True)


def test_a_task_takes_the_calls_of_its_pipeline() -> None:
    env, seen = ToolboxEnv(ToolboxOptions(8)), set[int]()
    for task in env.tasks("test", 60):
        env.reset(options={"task": task})
        player, taken, ended = env.demonstrator(0.0), 0, False
        while not ended:
            _, reward, ended, _, _ = env.step(player.act(random.Random(0))[1])
            taken += 1
        wanted = 0 if env.key.noted else len(env.key.calls(env.key.question))
        assert (reward, taken) == (1.0, wanted + 1)
        seen.add(wanted)
    assert seen == set(range(9))


def test_it_keeps_the_contract() -> None:
    env = make_env("toolbox", {"most_calls": 4})
    report = check_env(env, env.tasks("train", 3)[2], other=make_env("toolbox", {"most_calls": 4}))
    assert not report.violations, report.violations
