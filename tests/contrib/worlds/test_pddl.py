"""Planning problems in files."""

import random
from pathlib import Path

import pytest

from treeagent.config import load_config
from treeagent.contrib.worlds.pddl import read_domain, read_problem
from treeagent.contrib.worlds.planning.planner import Planner
from treeagent.contrib.worlds.planning.problem import prompt_of
from treeagent.envs import Env, check_env, make_env
from treeagent.envs.check import check_tasks
from treeagent.types import UserError

LAMPS = """
(define (domain Lamps)  ; a switch is shut away in a dark attic
  (:requirements :strips :typing :negative-preconditions :equality)
  (:types lamp room - thing ball)
  (:constants hall - room)
  (:predicates (lit ?l - lamp) (dark ?r - room) (in ?l - lamp ?r - room) (open))
  (:action toggle :parameters (?l - lamp ?r - room)
    :precondition (and (in ?l ?r) (not (dark ?r)) (not (lit ?l))) :effect (lit ?l))
  (:action enter :parameters (?r ?s - room)
    :precondition (and (not (= ?r ?s)) (dark ?s)) :effect (and (open) (not (dark ?s)))))
"""
DUSK = """
(define (problem dusk) (:domain lamps)
  (:objects one two - lamp attic - room it)
  (:init (in one hall) (in two attic) (dark attic))
  (:goal (and (lit one) (not (dark attic)))))
"""


def demonstrated(env: Env) -> str:
    player = env.demonstrator(0.0)
    assert player is not None
    return player.act(random.Random(0))[1]


def problem_files(folder: Path, count: int) -> Path:
    """A domain and problems of one lamp to light, of as many as there are problems."""
    folder.mkdir()
    (folder / "domain.pddl").write_text(LAMPS)
    for number in range(count):
        (folder / f"p{number:02}.pddl").write_text(
            f"(define (problem P{number}) (:domain lamps) (:objects l{number} - lamp attic - room)\n"
            f"; a comment\n(:init (in l{number} attic) (dark attic))\n(:goal (and (LIT l{number}))))"
        )
    return folder


def test_strips_with_types_negation_and_equality_does_what_pddl_says() -> None:
    problem = read_problem(read_domain(LAMPS), DUSK)
    assert problem.start == {("dark", "attic")}
    assert sorted(problem.steps) == ["enter hall attic", "toggle one hall", "toggle two attic"]
    assert problem.possible(problem.start) == ["enter hall attic", "toggle one hall"]
    entered = problem.steps["enter hall attic"].after(problem.start)
    assert entered == {("open",)} and problem.possible(entered) == ["toggle one hall", "toggle two attic"]
    end = problem.steps["toggle one hall"].after(entered)
    assert problem.goal.holds(end) and not problem.goal.holds(entered)
    assert prompt_of(problem, ()).split("\n") == [
        "Goal: lit one, not dark attic",
        "Always: one is in hall, two is in attic",
        "Actions: toggle l r, enter r s, finish",
    ]
    plan = Planner(problem).plan(problem.start)
    assert plan is not None and sorted(plan) == ["enter hall attic", "toggle one hall"]


def test_problems_come_from_your_files(tmp_path: Path) -> None:
    folder = problem_files(tmp_path / "mine", 12)
    env = make_env("pddl", {"domain_file": str(folder / "domain.pddl"), "problems": str(folder)})
    with pytest.raises(UserError, match=r"validation has \d problem files, not 12"):
        env.tasks("validation", 12)
    assert check_tasks(env, 20) == []
    task = env.tasks("train", 1)[0]
    assert task.prompt.startswith("Goal: ") and task.prompt.count("\n") == 2
    env.reset(options={"task": task})
    while env.legal_actions():
        env.step(demonstrated(env))
    assert env.verify() == 1.0
    report = check_env(env, task)
    assert report.passed, report.violations

    split = f"{{train='{folder}/p03.pddl', test=['{folder}/p05.pddl', '{folder}/p01.pddl']}}"
    options = f"environment.options={{domain_file='{folder}/domain.pddl', problems={split}}}"
    env = make_env("pddl", load_config(None, [options]).environment.options)
    assert [each.id for each in env.tasks("test", 2)] == ["lamps-test-p05", "lamps-test-p01"]
    assert check_tasks(env, 5) == []  # also if a split is empty
