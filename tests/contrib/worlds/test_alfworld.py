"""ALFWorld: a small game by the package's rules, which the package itself plays."""

import json
import random
from importlib.resources import files
from pathlib import Path

import pytest

from treeagent.contrib.worlds.alfworld import AlfworldEnv, AlfworldOptions
from treeagent.envs import check_env
from treeagent.types import UserError

pytest.importorskip("alfworld", reason="the alfworld extra is not installed")

PROBLEM = """(define (problem small) (:domain alfred)
(:objects agent1 - agent loc_bar_0 loc_bar_1 loc_bar_2 - location Desk_bar_01 Drawer_bar_01 - receptacle
  Book_bar_01 - object DeskType DrawerType SinkBasinType MicrowaveType FridgeType - rtype
  BookType KnifeType ButterKnifeType - otype)
(:init (atLocation agent1 loc_bar_0) (receptacleAtLocation Desk_bar_01 loc_bar_1) (openable Drawer_bar_01)
  (receptacleAtLocation Drawer_bar_01 loc_bar_2) (receptacleType Desk_bar_01 DeskType) (pickupable Book_bar_01)
  (receptacleType Drawer_bar_01 DrawerType) (canContain DeskType BookType) (canContain DrawerType BookType)
  (objectType Book_bar_01 BookType) (inReceptacle Book_bar_01 Drawer_bar_01) (objectAtLocation Book_bar_01 loc_bar_2))
(:goal (and (exists (?r - receptacle) (exists (?o - object)
  (and (inReceptacle ?o ?r) (objectType ?o BookType) (receptacleType ?r DeskType)))))))"""
PLAN = ["go to drawer 1", "open drawer 1", "take book 1 from drawer 1", "go to desk 1", "move book 1 to desk 1"]


def test_a_game_is_played_replayed_and_won_by_the_packages_own_planner(tmp_path: Path) -> None:
    rules = files("alfworld") / "data"
    grammar = (rules / "alfred.twl2").read_text().replace("UNKNOWN GOAL", "put a book on desk")
    game = {"pddl_domain": (rules / "alfred.pddl").read_text(), "grammar": grammar, "pddl_problem": PROBLEM}
    for name in ("pick_and_place_simple-a", "pick_and_place_simple-movable", "look_at_obj_in_light-b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "game.tw-pddl").write_text(json.dumps({**game, "solvable": True}))
    options = AlfworldOptions(games=str(tmp_path), kinds=("pick_and_place_simple",))
    env, other = AlfworldEnv(options), AlfworldEnv(options)
    (task,) = env.tasks("train", 1)
    assert task.prompt == "Your task is to: put a book on desk."
    report = check_env(env, task, other=other, branches=4, depth=3)
    assert report.passed and report.equal_branches == report.branches > 0, report.violations
    observation, _ = env.reset(options={"task": task})
    assert observation.startswith("You are in the middle of a room.") and task.prompt in observation
    assert env.step("dance") == ("Nothing happens.", 0.0, False, False, {"tool_error": "Nothing happens."})
    before, player, rewards = env.state_key(), env.demonstrator(0.0), list[float]()
    for command in PLAN:
        assert player.act(random.Random(0))[1] == command
        rewards.append(env.step(command)[1])
    assert rewards == [0.0] * 4 + [1.0]
    assert env.verify() == 1.0 and env.legal_actions() == [] and env.state_key() != before
    with pytest.raises(UserError, match="has 1 tasks, not 2"):
        env.tasks("train", 2)
    with pytest.raises(UserError, match="alfworld-download"):
        AlfworldEnv(AlfworldOptions(games=str(tmp_path / "none")))
