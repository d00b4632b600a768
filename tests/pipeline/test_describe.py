import io
from collections.abc import Sequence

from report_sample import ROWS, long_tree, sample_tree

from treeagent.pipeline.report.describe import (
    Row,
    cell,
    headline,
    marks,
    notes,
    observation,
)
from treeagent.pipeline.report.show import print_results, show_tree
from treeagent.pipeline.terminal import Terminal
from treeagent.search.node import Node
from treeagent.types import Message, State, Task


def printed(rows: Sequence[Row], width: int = 200) -> str:
    console = Terminal(file=io.StringIO(), width=width)
    print_results(rows, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_headline_compares_the_best_with_the_start() -> None:
    assert headline(ROWS) == (
        "dpo with mcts solves 83.5 % of 200 held-out tasks, base with greedy 41.0 %: +42.5 points; "
        "the 95 % intervals do not overlap."
    )


def test_the_headline_admits_overlap_and_that_nothing_was_gained() -> None:
    close = [ROWS[0], {**ROWS[2], "success": 0.45, "success_low": 0.38, "success_high": 0.52}]
    assert headline(close).endswith("+4.0 points; the 95 % intervals overlap.")
    assert headline([ROWS[3], ROWS[0]]) == "dpo with mcts solves 83.5 % of 200 held-out tasks; nothing else did better."
    assert headline([]) == "Nothing has been evaluated yet."


def test_of_equally_good_rows_the_cheaper_one_is_named() -> None:
    dear, cheap = {**ROWS[3], "mode": "best_of_n", "generated_tokens": 10**6}, ROWS[3]
    assert headline([ROWS[0], dear, cheap]).startswith("dpo with mcts ")


def test_a_missing_figure_is_a_dash() -> None:
    assert cell({"policy": "base"}, "seconds") == "–"
    assert cell(ROWS[3], "success") == "83.5 % [76.5, 89.5]"


def test_the_table_shows_every_row() -> None:
    text = printed(ROWS)
    for row in ROWS:
        assert f"{row['generated_tokens']:,}" in text


FAILED = [
    {**row, "errors": place, "error": "the server [at x] answered 500" * (place > 0)} for place, row in enumerate(ROWS)
]


def test_errors_are_shown_where_there_are_some() -> None:
    assert "errors" not in printed([{**row, "errors": 0, "error": ""} for row in ROWS])
    told = printed(FAILED, width=80)
    assert "errors" in told and "…" not in told and "base with greedy: 0" not in told
    assert "dpo with mcts: 3 of 200 episodes failed, the first: the server [at x] answered 500\n" in told


def test_the_table_fits_a_narrow_terminal() -> None:
    told = printed([{**row, "mode": "best_of_n"} for row in ROWS], width=80)
    assert "…" not in told and "environment" in told


def test_what_search_found_is_told_from_what_it_took() -> None:
    rows = [ROWS[0], {**ROWS[1], "found": 0.75, "taken": 0.8}, {**ROWS[3], "found": 0.0}]
    assert notes(rows) == [
        "base with mcts: search found a success for 75.0 % of the tasks and took one in 80.0 % of these.",
        "dpo with mcts: search found a success for 0.0 % of the tasks.",
    ]
    assert notes(ROWS) == [] and set(notes(rows)) <= set(printed(rows).splitlines())


def test_a_row_whose_ends_betray_success_is_marked() -> None:
    rows = [ROWS[0], {**ROWS[1], "pass_at_n": True}]
    assert [cell(row, "mode") for row in rows] == ["greedy", "mcts *"]
    [sentence] = notes(rows)
    assert sentence.startswith("* pass@N") and sentence in printed(rows)


def test_a_tree_is_printed_with_its_figures_and_marks() -> None:
    console = Terminal(file=io.StringIO(), width=200)
    show_tree(sample_tree(), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "search[red kettle]   N 5  Q 0.800  P 0.700  V 0.600  r 0.000" in text
    assert "back   N 0  Q –  P 0.300  untried" in text
    assert "r 1.000  terminated" in text and "imagined" in text and "malformed: no call in" in text
    assert "→ 3 found" in text and "6 simulations, 6 environment steps, 120 generated tokens" in text
    assert "more" not in text  # later lines of an observation


def test_what_a_turn_of_thought_and_action_was_answered_is_printed() -> None:
    """The state in between holds the beginning of the turn, which the message of the action replaces."""
    task, begun = Task("door", "Go."), Message("assistant", "Thought: go\nAction:", partial=True)
    asked, said = Message("user", "Go."), Message("assistant", "Thought: go\nAction: open")
    thought = Node(State(task, (asked, begun)))
    opened = Node(State(task, (asked, said, Message("user", "The door opens."))))
    assert observation(Node(State(task, (asked,))), thought) == ""
    assert observation(thought, opened) == "The door opens."


def test_as_many_steps_of_a_long_path_are_printed_as_fit_the_console() -> None:
    console = Terminal(file=io.StringIO(), width=80)
    show_tree(long_tree(1200), console)
    assert isinstance(console.file, io.StringIO)
    text = " ".join(console.file.getvalue().split())
    # Each step is indented by 4 columns, and 20 are kept for its text: (80 - 20) / 4 = 15.
    assert "go 14" in text and "go 15" not in text and "1,185 more steps" in text


def test_withheld_rewards_and_broken_off_trees_are_told() -> None:
    tree = sample_tree()
    tree.root.edges[0].reward = None
    tree.error = "TimeoutError: [too] slow"
    console = Terminal(file=io.StringIO(), width=200)
    show_tree(tree, console, depth=1)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "r withheld" in text and "broke off: TimeoutError: [too] slow" in text and "3 more steps" in text
    assert marks(tree.root.edges[1]) == ["imagined"]
