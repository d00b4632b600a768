"""The comparisons that a reward model learns from a tree, by hand."""

from hand_trees import hand_tree

from treeagent.contrib.judging.comparisons import Comparison, ends
from treeagent.contrib.judging.comparisons import comparisons as compared
from treeagent.search.node import finished_paths
from treeagent.views.pairs import PairConfig

WON, LOST = (1, 2, 10, 11, 20, 21, 30, 40), (1, 2, 13, 23)


def test_ends_and_siblings_by_hand() -> None:
    found = {end.token_ids: (end.paid, end.success, end.tokens) for end in ends(hand_tree())}
    assert found == {WON: (1.0, True, 6), LOST: (0.0, False, 2)}
    assert list(compared([hand_tree()], PairConfig())) == [
        Comparison("hand-1", WON, LOST, 1.0, "ends"),
        Comparison("hand-1", (1, 2, 10, 11, 20, 21), (1, 2, 13, 23), 0.75, "siblings"),
        Comparison("hand-1", WON, (1, 2, 10, 11, 20, 21, 31, 32, 41), 0.5, "siblings"),
    ]


def test_withheld_rewards_and_imagined_steps_are_left_out() -> None:
    withheld, imagined = hand_tree(), hand_tree()
    for path in finished_paths(withheld):
        path[-1].reward = None
    for node in imagined.nodes():
        node.origin = "imagined"
    assert not list(ends(withheld)) and not list(ends(imagined)) and not list(compared([imagined], PairConfig()))
