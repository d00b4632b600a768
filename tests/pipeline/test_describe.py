import html
import io
from collections.abc import Sequence

import pytest
from report_sample import ROWS

from treeagent.pipeline.outcomes import Outcome, limits_in_words, limits_met
from treeagent.pipeline.report.describe import Row, limits, notes
from treeagent.pipeline.report.page import Content, render
from treeagent.pipeline.report.show import print_results
from treeagent.pipeline.terminal import Terminal
from treeagent.search.config import Limits
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, State, Task


def printed(rows: Sequence[Row], width: int = 200) -> str:
    console = Terminal(file=io.StringIO(), width=width)
    print_results(rows, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_search_found_is_told_from_what_it_took_and_what_the_policy_solved() -> None:
    rows = [
        ROWS[0],
        {**ROWS[1], "found": 0.75, "taken": 0.8},
        {**ROWS[3], "found": 0.0, "planning_tokens": 3951, "token_limit": 800},
    ]
    assert notes(rows) == [
        "base with mcts: search found a success for 75.0 % of the tasks and took one in 80.0 % of these.",
        "dpo with mcts: search found a success for 0.0 % of the tasks; 83.5 % were solved by the policy, which goes on "
        "greedily after a plan.",
        "dpo with mcts: 3,951 of the generated tokens are of planning, whose limit is 800 a task; the policy sampled "
        "the others after it.",
    ]
    assert notes(ROWS) == [] and set(notes(rows)) <= set(printed(rows).splitlines())


@pytest.mark.parametrize(
    ("limit", "cure"),
    [
        ("environment.max_steps", "raise it"),
        ("policy.max_new_tokens", "policy.structured=true"),
        ("the model's context", "policy.context=drop"),
        ("search.limits", "raise the other limits"),
    ],
)
def test_a_limit_that_bites_is_named_with_its_share_and_cure_before_notes(limit: str, cure: str) -> None:
    rows = [{**ROWS[0], "limits": {limit: 0.1}}, {**ROWS[1], "limits": {limit: 0.88}, "pass_at_n": True}]
    [sentence] = limits(rows)
    assert sentence.startswith(f"Cut off by {limit}: base with mcts 88.0 % of the episodes: ") and cure in sentence
    said = printed(rows)
    assert said.index("solves") < said.index(sentence) < said.index("* pass@N")
    page = html.unescape(render(Content(rows=rows, alarms=[("warm_start", "learn more")])).decode())
    assert page.index(sentence) < page.index("learn more") and sentence not in notes(rows)


def test_the_limits_that_an_episode_met_are_named() -> None:
    task = Task("a", "")
    played, plan = (Tree(task, 0, Node(State(task, ()))) for _ in range(2))
    played.root.edges.append(Edge(Action("rambling", "", error="the turn was cut off after 8 tokens"), 1.0))
    plan.budget.simulations, plan.budget.generated_tokens = 3, 20
    lost = Outcome("a", 0.0, 4, error="the prompt has 9 tokens, but the model's context holds 8: lower", cut_off=True)
    budget = Limits(simulations=8, generated_tokens=20)
    every = ("environment.max_steps", "policy.max_new_tokens", "the model's context", "search.limits")
    assert limits_met(lost, played, plan, budget) == every
    assert limits_met(lost, played, None, budget) == every[:3]
    assert limits_met(lost, plan, plan, Limits(simulations=3)) == (every[0], every[2])
    assert limits_met(Outcome("a", 1.0, 4, cut_off=True), played, plan, budget) == ()
    [sentence] = limits_in_words({"environment.max_steps": 7, "search.limits": 1}, 8)
    assert sentence.startswith("88% of the episodes were cut off by environment.max_steps: raise it")
