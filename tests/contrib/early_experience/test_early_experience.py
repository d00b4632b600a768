"""Rows of early experience have loss either on observations only or on reflections only. No other view has loss on
either."""

import random
from pathlib import Path

from command import treeagent
from hand_trees import edges, hand_tree, random_tree
from hypothesis import given
from hypothesis import strategies as st

from treeagent.contrib.early_experience.rows import Reflection, reflection_rows, reflections, world_rows
from treeagent.generators.turn import ReAct
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Message, State, Task
from treeagent.views.tokens import TokenRow

ANY = 0.0
"""A least return that every path reaches."""


def restarting(shuffler: random.Random) -> Tree:
    """A random tree in which the prompt may restart at any state but the root, and states may be imagined."""
    tree = random_tree(shuffler)
    for each in edges(tree):
        if each.child is not None:
            each.child.left_out = (1,) if shuffler.random() < 0.3 else ()
            each.child.origin = "imagined" if shuffler.random() < 0.2 else "real"
    return tree


trees = st.randoms(use_true_random=False).map(restarting)


def test_world_rows_by_hand() -> None:
    """The observation after A is learnt once, in the row of A1. D was not tried."""
    assert list(world_rows(hand_tree())) == [
        TokenRow("hand-1", ids, tuple(mark == "+" for mark in mask))
        for ids, mask in [
            ((1, 2, 10, 11, 20, 21, 30, 40), "----++-+"),
            ((1, 2, 10, 11, 20, 21, 31, 32, 41), "--------+"),
            ((1, 2, 12, 22, 33, 42), "---+-+"),
            ((1, 2, 13, 23), "---+"),
        ]
    ]


@given(trees)
def test_world_rows_learn_every_real_answer_once_behind_its_own_prompt_and_nothing_else(tree: Tree) -> None:
    answers = {
        token: tree.prompt_ids(path)
        for path, here in tree.walk()
        if path and here.origin == "real" and not here.left_out
        for token in here.context_ids
    }
    learnt: list[int] = []
    for row in world_rows(tree):
        for place, kept in enumerate(row.mask):
            if kept:
                learnt.append(row.token_ids[place])
                assert answers[row.token_ids[place]][: place + 1] == row.token_ids[: place + 1]
    assert sorted(learnt) == sorted(answers)


def step(tree: Tree, path: tuple[Edge, ...], text: str, answer: str, reward: float | None = None) -> tuple[Edge, ...]:
    """Add an action, whose tokens spell its text, at the end of a path. With a reward it ends the task. Returns the new
    path."""
    parent = path[-1].child if path else tree.root
    assert parent is not None
    action = ReAct().read(text, encode(text))
    messages = (*parent.state.messages, Message("assistant", text, action.token_ids), Message("user", answer))
    child = Node(State(tree.task, messages), context_ids=encode(answer), terminated=reward is not None)
    parent.edges.append(Edge(action, 1.0, 1, reward or 0.0, reward or 0.0, child))
    return (*path, parent.edges[-1])


def encode(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def shop() -> Tree:
    """Line 1 is bought, in one path after looking at line 2. The kettle of line 2 is not the one that was asked for."""
    task = Task("shop", "buy a red kettle")
    opening = "buy a red kettle\n1 red kettle $9\n2 blue kettle $7"
    tree = Tree(task, 0, Node(State(task, (Message("user", opening),)), context_ids=encode(opening)))
    bad = step(tree, (), "Action: open[2]", "blue kettle\nprice $7")
    step(tree, bad, "Action: buy", "order placed", reward=0.5)
    back = step(tree, bad, "Action: back", "1 red kettle $9\n2 blue kettle $7")
    again = step(tree, back, "Action: open[1]", "red kettle\nprice $9")
    step(tree, again, "Action: buy", "order placed", reward=1.0)
    good = step(tree, (), "Thought: 1 fits\nAction: open[1]", "red kettle\nprice $9")
    step(tree, good, "Action: buy", "order placed", reward=1.0)
    return tree


BETTER = "Thought: 1 fits . not open[2] : names 2 blue kettle $7 . new , reward 1 in 4 . better : names 1 red kettle $9 . new , reward 1 in 2\nAction: open[1]"  # noqa: E501
BACK = "Thought: not buy : names nothing shown . new . buy missing a missing red missing kettle shown , reward 0.5 in 1 . better : names nothing shown . again 1 red kettle $9 , reward 1 in 3\nAction: back"  # noqa: E501


def test_reflections_by_hand() -> None:
    tree = shop()
    bad, good = tree.root.edges
    assert list(reflections(tree, 1.0, ReAct())) == [Reflection((), BETTER), Reflection((bad,), BACK)]
    first, second = reflection_rows(tree, 1.0, ReAct(), encode)
    start, seen = tree.root.context_ids, tree.prompt_ids((bad,))
    assert first == TokenRow("shop", start + encode(BETTER), (False,) * len(start) + (True,) * len(BETTER.encode()))
    assert second == TokenRow("shop", seen + encode(BACK), (False,) * len(seen) + (True,) * len(BACK.encode()))
    assert good.action.thought == "1 fits"


@given(trees)
def test_a_reflection_is_of_the_best_known_way_and_carries_all_the_loss(tree: Tree) -> None:
    for row in reflection_rows(tree, ANY, ReAct(), encode):
        start = row.mask.index(True)
        assert all(row.mask[start:])
        assert ReAct().read(bytes(row.token_ids[start:]).decode()).error == ""
    for one in reflections(tree, ANY, ReAct()):
        here = one.path[-1].child if one.path else tree.root
        assert here is not None
        [chosen] = [each for each in here.edges if each.action.call == ReAct().read(one.turn).call]
        assert chosen.child is not None and chosen.child.origin == "real"


def test_the_command_trains_the_policy_that_searched(finished_run: Path, tmp_path: Path) -> None:
    base = finished_run / "checkpoints" / "base"
    done = treeagent("early-experience", finished_run, base, "max_steps=1", "--out", tmp_path / "early")
    assert done.returncode == 0 and "has learnt from" in done.stdout, done.stderr
    assert (tmp_path / "early" / "config.json").is_file()
