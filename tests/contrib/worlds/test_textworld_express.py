"""TextWorldExpress's games: the contract, solutions that win, states that commands taken back return to."""

import random
import shutil
from typing import get_args

import pytest

from treeagent.contrib.worlds.tasksets.textworld_express import Game, Play, TextWorldExpressEnv, TextWorldExpressOptions
from treeagent.envs import check_env, make_env
from treeagent.envs.calls import as_call
from treeagent.envs.check import check_tasks
from treeagent.types import ToolCall, UserError

pytest.importorskip("textworld_express", reason="the textworld-express extra is not installed")
pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the package's connections to Java, which last
]


@pytest.mark.parametrize("game", get_args(Game))
def test_a_game_keeps_the_contract_and_its_solution_wins(game: Game) -> None:
    env, other = (TextWorldExpressEnv(TextWorldExpressOptions(game)) for _ in range(2))
    for task in env.tasks("validation", 2):
        report = check_env(env, task, other=other, branches=8)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 0  # simonsays ends at the first mistake
        env.reset(options={"task": task})
        player = env.demonstrator(0.0)
        while env.verdict() is None:
            assert "tool_error" not in env.step(as_call(player.act(random.Random(0))[1], env.tools()))[4]
        assert env.verify() == 1.0
    assert check_tasks(env) == []


def test_commands_taken_back_and_commands_without_effect_lead_to_the_same_state() -> None:
    env = make_env("textworld_express", {"game": "coin", "params": "numLocations=5,includeDoors=1"})
    env.reset(options={"task": env.tasks("train", 1)[0]})
    start, key, legal = env.snapshot(), env.state_key(), env.legal_actions()
    way = next(command.removeprefix("open door to ") for command in legal or () if command.startswith("open door"))
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[way]
    for command in (f"open door to {way}", f"move {way}", "look around", "inventory", f"move {back}"):
        assert env.step(ToolCall("act", {"command": command}))[4] == {}
    assert env.state_key() != key
    env.step(f"close door to {way}")
    assert (env.snapshot(), env.state_key(), env.legal_actions()) == (start, key, legal)
    assert env.step("dance")[4] == {"tool_error": "that is not possible here"}
    assert env.snapshot() == start


def test_what_is_missing_or_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"params 'rooms=1' is refused by coin \(Unrecognized property name"):
        TextWorldExpressEnv(TextWorldExpressOptions(params="rooms=1"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="needs Java: apt-get install"):
        Play("coin", "")
