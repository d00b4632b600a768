"""Episodes as conversations, and counts of why the failed ones failed, by hand."""

import io

import pytest

from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.pipeline.report.describe import ending, is_solved, steps
from treeagent.pipeline.report.show import Kind, show_episodes
from treeagent.pipeline.terminal import Terminal
from treeagent.pipeline.trees import write_trees
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task

Turn = tuple[str, str, str]
"""A call or, if it is malformed, the reason; the environment's answer; and how the step went."""


def episode(name: str, *turns: Turn, reward: float = 0.0, error: str = "") -> Tree:
    """An episode of turns that are "fine", "malformed" or "refused". The last turn may also be an "end", a "limit", or
    "lost" by an error of the environment."""
    task = Task(name, f"prompt of {name}", "test")
    node = root = Node(State(task, (Message("user", f"prompt of {name}"),)))
    for said, answer, how in turns:
        action = Action(f"Action: {said}", said, f"thinking of {said}")
        if how == "malformed":
            action = Action(f"babble {said}", "", error=said)
        edge = Edge(action, 1.0)
        node.edges.append(edge)
        if how == "lost":
            break
        told = (*node.state.messages, Message("assistant", action.text), Message("user", answer))
        edge.child = node = Node(
            State(task, told),
            terminated=how == "end",
            truncated=how == "limit",
            invalid=how in ("malformed", "refused"),
        )
        edge.reward = reward if how == "end" else 0.0
    return Tree(task, 0, root, error=error)


EPISODES = [
    episode("good", ("look", "a door", "fine"), ("open", "gold", "end"), reward=1.0),
    episode("half", ("open", "silver", "end"), reward=0.5),
    episode(
        "confused",
        ("no 1", "say it again", "malformed"),
        ("no 22", "say it again", "malformed"),
        ("fly", "you cannot\n fly", "refused"),
        ("swim", "a wall", "limit"),
    ),
    episode("lost", ("look", "a door", "fine"), ("jump", "", "lost"), error="OSError: gone"),
    episode("unread", error="the prompt has 90 tokens"),
    episode("unread2", error="the prompt has 91 tokens"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with Run.create(tmp_path_factory.mktemp("episodes") / "run", RunConfig(), resume=False) as made:
        made.episodes.mkdir()
        write_trees(made.episodes, "evaluate-base-greedy", 0, EPISODES[:4])
        write_trees(made.episodes, "evaluate-base-greedy", 1, EPISODES[4:])
        write_trees(made.episodes, "evaluate-base-mcts", 0, [EPISODES[0]])
    return Run.open(made.path)


def shown(run: Run, kind: Kind, **options: object) -> str:
    stream = io.StringIO()
    show_episodes(run, kind, Terminal(file=stream, width=80), **options)  # type: ignore[arg-type]
    return stream.getvalue()


def test_each_episode_tells_how_it_ended() -> None:
    assert [(len(steps(each)), is_solved(each), ending(each)) for each in EPISODES] == [
        (2, True, "solved"),
        (1, False, "wrong end"),
        (4, False, "cut off by a limit"),
        (2, False, "broke off: OSError: gone"),
        (0, False, "broke off: the prompt has 90 tokens"),
        (0, False, "broke off: the prompt has 91 tokens"),
    ]


@pytest.mark.parametrize(
    ("kind", "there", "absent"),
    [
        ("failed", ["half", "confused", "lost", "unread"], ["good"]),
        ("solved", ["good"], ["half", "confused", "lost", "unread"]),
    ],
)
def test_the_episodes_asked_for_are_shown(run: Run, kind: Kind, there: list[str], absent: list[str]) -> None:
    said = shown(run, kind)
    assert all(f"prompt of {name}" in said for name in there)
    assert not any(f"prompt of {name}\n" in said for name in absent)
    assert "5 of 6 episodes failed" in said and "0 of 1 episodes failed" in said


def test_an_episode_reads_as_a_conversation(run: Run) -> None:
    said = shown(run, "failed", task_id="confused")
    told = ["environment", "  prompt of confused", "agent", "  babble no 1", "environment refuses", "  say it again"]
    assert [line.rstrip() for line in said.splitlines()][2:8] == told
    assert "agent thinks\n  thinking of fly" in "\n".join(line.rstrip() for line in said.splitlines())
    assert "reward 0.000, cut off by a limit" in said and "prompt of half" not in said
    assert "… 3 more turns" in shown(run, "failed", task_id="confused", depth=1)
