"""The advantages of SimpleTIR and ASPO by hand, through the seam."""

from math import sqrt

import pytest

from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task
from treeagent.views.advantages import AdvantageConfig, advantages

TASK = Task("hand", "do it")


def chain(name: str, tokens: int, reward: float, error: str = "") -> Edge:
    """A turn of so many tokens, then one of four tokens that ends the episode with the reward."""
    state = State(TASK, (Message("user", name),))
    last = Edge(Action("go", "go", "", (1,) * 4, (-0.1,) * 4), 1.0, 1, reward, reward, Node(state, terminated=True))
    call = "" if error else name
    action = Action(name, call, "", (1,) * tokens, (-0.1,) * tokens, error)
    return Edge(action, 0.25, 1, reward, 0.0, Node(state, edges=[last]))


def scored(kind: str, **options: float) -> dict[str, float]:
    """Of chains with returns 1, 1, 0 and 0, whose mean is 1/2 and whose deviation is 1/sqrt(3); "void" has no call."""
    starts = [chain("early", 2, 1.0), chain("late", 6, 1.0), chain("wrong", 3, 0.0), chain("void", 3, 0.0, "no call")]
    tree = Tree(TASK, 0, Node(State(TASK, ()), edges=starts))
    found = advantages([tree], AdvantageConfig(kind, options))
    assert all(found.get(id(each)) == found.get(id(each.child.edges[0])) for each in starts if each.child)
    return {each.action.text: found[id(each)] for each in starts if id(each) in found}


def test_simpletir_leaves_out_trajectories_with_a_void_turn_by_hand() -> None:
    half = sqrt(3) / 2
    assert scored("grpo") == pytest.approx({"early": half, "late": half, "wrong": -half, "void": -half})
    assert scored("simpletir") == pytest.approx({"early": half, "late": half, "wrong": -half})


def test_aspo_shapes_the_advantages_of_successes_by_hand() -> None:
    """First calls end after 2 and 6 tokens, mean 4; the lengths are 6 and 10, mean 8: the term is ±2 · 2/8 = ±1/2, or
    with k = 0.1 at most a tenth of the advantage."""
    half = sqrt(3) / 2
    rest = {"wrong": -half, "void": -half}
    assert scored("aspo") == pytest.approx({"early": half + 0.5, "late": half - 0.5} | rest)
    assert scored("aspo", clip=0.1) == pytest.approx({"early": 1.1 * half, "late": 0.9 * half} | rest)
