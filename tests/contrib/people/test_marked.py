"""Effects of reviewers' marks on the tree of ``hand_tree``, by hand: Q is A 3/4, B 1/4, C 0; A1 1, A2 1/2."""

import random
from dataclasses import replace

import pytest
from hand_trees import TASK, edge, hand_tree, node, random_tree
from hypothesis import given
from hypothesis import strategies as st

from treeagent.contrib.people.marked import apply_marks
from treeagent.contrib.people.marks import Mark, deciding, new_mark, state_hash
from treeagent.search.node import Edge, Node, Tree, path_return
from treeagent.types import Message
from treeagent.views.advantages import AdvantageConfig, advantages
from treeagent.views.imitation import ImitationConfig, edited_rows, imitation_rows
from treeagent.views.pairs import PairConfig, preference_pairs

ALL = PairConfig(rule="all")


def say(tree: Tree, where: Node, verdict: str, *shown: str, choice: int | None = None, **more: object) -> Mark:
    state = state_hash(tree.task.id, where.state.messages)
    return new_mark("ada", verdict, state=state, shown=shown, choice=choice, **more)  # type: ignore[arg-type]


def pairs(tree: Tree, *marks: Mark, config: PairConfig = ALL) -> list[tuple[str, float, str]]:
    apply_marks(tree, deciding(marks))
    made = preference_pairs(tree, config)
    return [(f"{pair.chosen.text}>{pair.rejected.text}", pair.margin, pair.source) for pair in made]


RULE = [("A>C", 0.75, "rule"), ("A>B", 0.5, "rule"), ("B>C", 0.25, "rule"), ("A1>A2", 0.5, "rule")]


def test_without_marks_the_rule_decides() -> None:
    assert pairs(hand_tree()) == RULE


def test_a_person_reverses_a_pair_and_the_margin_is_the_least_one() -> None:
    tree = hand_tree()
    better = say(tree, tree.root, "better", "B", "A", choice=0)
    assert pairs(tree, better) == [("B>A", 0.2, "human"), RULE[0], *RULE[2:]]


def test_a_person_compares_an_action_that_was_not_tried() -> None:
    tree = hand_tree()
    better = say(tree, tree.root, "better", "D", "A", choice=1)
    assert pairs(tree, better, config=PairConfig()) == [("A>D", 0.75, "human"), RULE[0], RULE[3]]


def test_a_tie_makes_no_pair_of_the_two() -> None:
    tree = hand_tree()
    assert pairs(tree, say(tree, tree.root, "tie", "A", "C")) == RULE[1:]


def test_a_judge_outranks_the_rule_and_a_person_the_judge() -> None:
    tree = hand_tree()
    judge = replace(say(tree, tree.root, "better", "B", "A", choice=0), source="judge", id="other")
    assert pairs(tree, judge)[0] == ("B>A", 0.2, "judge")
    tree = hand_tree()
    assert pairs(tree, judge, say(tree, tree.root, "better", "B", "A", choice=1))[0] == ("A>B", 0.5, "human")


def test_a_vetoed_action_is_rejected_for_its_best_sibling_and_never_taught() -> None:
    tree = hand_tree()
    assert pairs(tree, say(tree, tree.root, "veto", "A", "B", choice=0)) == [
        ("B>A", 0.2, "human"),
        ("B>C", 0.25, "rule"),
        ("A1>A2", 0.5, "rule"),
    ]
    [row] = imitation_rows(tree, ImitationConfig())
    assert [token for token, kept in zip(row.token_ids, row.mask, strict=True) if kept] == [30]  # only A1, not A
    scored = advantages([tree], AdvantageConfig())
    assert id(tree.root.edges[0]) not in scored


def test_a_veto_of_both_leaves_neither_to_learn() -> None:
    tree = hand_tree()
    assert [name for name, *_ in pairs(tree, say(tree, tree.root, "veto", "A", "B"))] == ["C>A", "C>B", "A1>A2"]


def test_an_episode_called_failed_loses_its_return_up_to_the_root() -> None:
    """The end of A, A1 has one visit with return 1: W(A1) goes from 1 to 0, and W(A) from 3 to 2."""
    tree = hand_tree()
    a = tree.root.edges[0]
    assert a.child is not None
    won = a.child.edges[0]
    assert won.child is not None
    apply_marks(tree, deciding([say(tree, won.child, "failed", "A", "A1")]))
    assert (won.reward, won.value, a.value) == (0.0, 0.0, 0.5)
    assert list(imitation_rows(tree, ImitationConfig())) == []


def test_an_episode_called_solved_is_imitated_and_discounted_up_to_the_root() -> None:
    """B1 was cut off at V = 1/2. With γ = 1/2 its return goes from 1/4 to 1: W(B1) gains 3/4 and W(B) gains 3/8."""
    tree = hand_tree()
    tree.discount = 0.5
    b = tree.root.edges[1]
    assert b.child is not None
    limit = b.child.edges[0]
    assert limit.child is not None
    limit.value_sum, b.value_sum = 0.25, 0.125
    apply_marks(tree, deciding([say(tree, limit.child, "solved", "B", "B1")]))
    assert path_return([b, limit]) == 1.0
    assert (limit.value_sum, b.value_sum) == (1.0, 0.5)
    assert limit.child.final


def test_a_judgement_leaves_the_process_rewards_in_the_return() -> None:
    """With η = 1/2, an outcome of 1 and a process reward of 0.2 return 0.6. Without the outcome they return 0.1."""
    last = edge("a", (2,), 1, 0.6, node((3,), end="terminated"), 1.0)
    last.process = 0.2
    tree = Tree(TASK, 0, node((1,), last))
    assert last.child is not None
    apply_marks(tree, deciding([say(tree, last.child, "failed", "a")]), process_weight=0.5)
    assert last.reward == 0.0 and last.value == pytest.approx(0.1)


def test_a_thought_discounts_no_judgement() -> None:
    """Two turns of a thought and an action each, with γ = 1/2. The return is 0 and becomes 1: it is 1 from the last
    thought on, and 1/2 from both steps before."""
    act = edge("act", (5,), 1, 0.0, node((6,), end="terminated"))
    think = edge("think", (4,), 1, 0.0, node((), act))
    go = edge("go", (3,), 1, 0.0, node((7,), think))
    plan = edge("plan", (2,), 1, 0.0, node((), go))
    for thought in (plan, think):
        thought.action = replace(thought.action, call="")
    tree = Tree(TASK, 0, node((1,), plan), discount=0.5)
    assert act.child is not None
    apply_marks(tree, deciding([say(tree, act.child, "solved", "plan", "go", "think", "act")]))
    path = [plan, go, think, act]
    assert [each.value for each in path] == [0.5, 0.5, 1.0, 1.0]
    assert [path_return(path[index:], 0.5) for index in range(4)] == [0.5, 0.5, 1.0, 1.0]


def test_a_judgement_replaces_the_estimate_of_an_end_whose_reward_was_withheld() -> None:
    """No judge gave a verdict, so the visit returned V = 1/2. A person calls the end failed."""
    last = edge("a", (2,), 1, 0.5, node((3,), value=0.5, end="terminated"), None)
    last.components = {"outcome": 1.0}
    tree = Tree(TASK, 0, node((1,), last))
    assert last.child is not None
    apply_marks(tree, deciding([say(tree, last.child, "failed", "a")]))
    assert last.value == last.reward


def test_an_edited_action_is_imitated_as_the_reviewer_wrote_it() -> None:
    tree = hand_tree()
    apply_marks(tree, deciding([say(tree, tree.root, "edit", "A", choice=0, text="Action: Z")]))
    [row] = edited_rows(tree, lambda text: (90, 91) if text == "Action: Z" else ())
    assert (row.token_ids, row.mask) == ((1, 2, 90, 91), (False, False, True, True))
    assert tree.root.edges[0].vetoed


def test_an_edit_at_a_state_that_two_chains_reached_is_imitated_once() -> None:
    """Chains keep equal samples apart. The state after A has the same conversation in both."""
    firsts = [edge("A", (2,), 1, 0.0, node((3,), edge("A1", (number,), 1, 0.0, None))) for number in (4, 5)]
    tree = Tree(TASK, 0, node((1,), *firsts))
    assert firsts[0].child is not None
    apply_marks(tree, deciding([say(tree, firsts[0].child, "edit", "A1", choice=0, text="Action: Z")]))
    assert [row.token_ids for row in edited_rows(tree, lambda text: (90,))] == [(1, 2, 3, 90)]


def test_a_vetoed_episode_is_not_imitated() -> None:
    tree = hand_tree()
    won = next(path for path, here in tree.walk() if path and path[-1].action.text == "A1")
    assert won[-1].child is not None
    apply_marks(tree, deciding([say(tree, won[-1].child, "veto", "A", "A1")]))
    assert list(imitation_rows(tree, ImitationConfig())) == []


def test_a_vetoed_episode_rejects_no_action_whatever_else_was_marked() -> None:
    tree = hand_tree()
    behind = tree.root.edges[0].child
    assert behind is not None
    won = behind.edges[0].child
    assert won is not None
    marks = [say(tree, won, "veto", "A", "A1"), say(tree, behind, "skip", "A1", "A2")]
    assert pairs(tree, *marks) == RULE[:3]


@given(st.randoms(use_true_random=False))
def test_labels_that_repeat_the_rewards_change_nothing(shuffler: random.Random) -> None:
    tree = random_tree(shuffler)
    for number, here in enumerate(tree.nodes()):
        here.state = replace(here.state, messages=(Message("user", str(number)),))
    ends = [path for path, here in tree.walk() if path and here.terminated]
    before = [(edge.value_sum, edge.reward) for here in tree.nodes() for edge in here.edges]
    marks = []
    for path in ends:
        end = path[-1].child
        assert end is not None
        verdict = "solved" if path_return(path) == 1 else "failed"
        marks.append(say(tree, end, verdict, *(edge.action.text for edge in path)))
    apply_marks(tree, deciding(marks))
    after = [(edge.value_sum, edge.reward) for here in tree.nodes() for edge in here.edges]
    assert [value for pair in after for value in pair] == pytest.approx([value for pair in before for value in pair])


def test_a_mark_holds_in_every_tree_with_the_same_conversation_of_its_task() -> None:
    tree, other = hand_tree(), hand_tree()
    other.task = replace(TASK, id="hand-2")
    marks = deciding([say(tree, tree.root, "tie", "A", "C")])
    for each, count in ((tree, 1), (hand_tree(), 1), (other, 0)):
        assert len(apply_marks(each, marks).root.marks) == count


def test_a_node_begins_without_marks() -> None:
    assert node((1,)).marks == [] and not Edge(hand_tree().root.edges[0].action, 0.5).vetoed
