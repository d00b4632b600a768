"""Ask/tell: an external loop grows the same trees as ``run``."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import pytest
from tangle import HashCritic
from toy_search import HashValue, Maze, TablePolicy, digest, plain, task

from treeagent.search import (
    Enough,
    Request,
    SearchConfig,
    WantActions,
    WantScores,
    WantStep,
    WantValue,
    ask_tell,
    make_search,
)
from treeagent.search.config import SearchMethod
from treeagent.search.limits import Limits
from treeagent.search.requests import Answer
from treeagent.types import Estimate, Policy, Proposal, State, Transition, UserError

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
TASKS = [task(f"task {number}") for number in range(4)]
MAZE = Maze(0.2, 0.1)
ROOTS = [asyncio.run(MAZE.reset(each)) for each in TASKS]


@dataclass(frozen=True)
class Outside:
    """Answers one question at a time, without batches."""

    policy: Policy

    def __call__(self, wanted: Request) -> Answer:
        match wanted:
            case WantActions(state, count, seed):
                return asyncio.run(self.policy.propose([state], count, [seed]))[0]
            case WantStep(state, action):
                return asyncio.run(MAZE.step(state, action))
            case WantValue(state):
                return asyncio.run(HashValue().estimate([state]))[0]
            case WantScores(state, actions):
                return asyncio.run(HashCritic().rank([state], [actions]))[0]


@pytest.mark.parametrize("method", get_args(SearchMethod))
@pytest.mark.parametrize("estimate_all", [False, True])
def test_a_loop_from_outside_grows_the_trees_of_run(method: SearchMethod, estimate_all: bool) -> None:
    config = SearchConfig(Limits(simulations=12), method=method, critic_weight=0.3, leaves=2, estimate_all=estimate_all)
    enough = Enough(0.0, 1.0, least_gain=0.4)
    grower = make_search(TablePolicy(WORDS), MAZE, config, HashValue(), HashCritic(), enough=enough)
    run = asyncio.run(grower.run(TASKS, range(4)))
    search = ask_tell(config, ROOTS, range(4), critic=True, enough=enough)
    answer, kinds = Outside(TablePolicy(WORDS)), set[type]()
    while wanted := search.ask():
        assert len({type(each) for each in wanted}) == 1
        kinds.add(type(wanted[0]))
        search.tell([answer(each) for each in wanted])
    assert [digest(tree) for tree in search.trees] == [digest(tree) for tree in run]
    assert kinds >= {WantActions, WantStep, WantValue}


def test_what_is_not_there_is_not_asked_for() -> None:
    search, answer = (
        ask_tell(SearchConfig(critic_weight=0.3), ROOTS, range(4), value=False),
        Outside(TablePolicy(WORDS)),
    )
    while wanted := search.ask():
        assert not any(isinstance(each, WantValue | WantScores) for each in wanted)
        search.tell([answer(each) for each in wanted])
    assert all(tree.budget.estimates == 0 < tree.budget.simulations for tree in search.trees)


def test_a_step_that_failed_ends_its_own_tree() -> None:
    search, answer = ask_tell(SearchConfig(), ROOTS, range(4)), Outside(TablePolicy(WORDS))
    while wanted := search.ask():
        search.tell(
            [
                TimeoutError("the page is down")
                if isinstance(each, WantStep) and each.state.task == TASKS[1]
                else answer(each)
                for each in wanted
            ]
        )
    assert [tree.error for tree in search.trees] == ["", "TimeoutError: the page is down", "", ""]
    assert plain(search.trees[1])["budget"]["simulations"] == 0


def answers(states: Sequence[State]) -> list[tuple[list[Answer], str]]:
    root = states[0]
    return [
        ([], "4 answers"),
        ([Estimate(0.5)] * 5, "4 answers"),
        ([Transition(root)] * 4, "Estimate"),
        ([Estimate(0.5), Estimate(0.5), Proposal(), Estimate(0.5)], "WantValue"),
    ]


@pytest.mark.parametrize(("told", "named"), answers(ROOTS))
def test_a_wrong_answer_is_refused_and_may_be_told_again(told: list[Answer], named: str) -> None:
    search = ask_tell(SearchConfig(), ROOTS, range(4))
    assert all(isinstance(each, WantValue) for each in search.ask())
    with pytest.raises(UserError, match=named):
        search.tell(told)
    search.tell([Estimate(0.5)] * 4)
    assert all(isinstance(each, WantActions) for each in search.ask())


def test_an_estimate_that_is_no_number_is_refused() -> None:
    search = ask_tell(SearchConfig(), ROOTS, range(4))
    with pytest.raises(ValueError, match="nan"):
        search.tell([Estimate(math.nan)] * 4)
