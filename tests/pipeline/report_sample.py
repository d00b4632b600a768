"""A small tree and a few results, with text that breaks a page without escaping."""

from typing import Any

from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.types import Action, Message, State, Task, ToolCall

TASK = Task("shop-1", "Buy a <b>red</b> kettle under $40.", data={"answer": "secret-answer"})
HOSTILE = '<script>alert("x")</script>'
ROWS: list[dict[str, Any]] = [
    {"policy": policy, "mode": mode, "success": success, "success_low": success - 0.07, "success_high": success + 0.06}
    | {"reward": success + 0.05, "tasks": 200, "environment_steps": steps, "generated_tokens": tokens, "seconds": 12.5}
    for policy, mode, success, steps, tokens in [
        ("base", "greedy", 0.41, 912, 20480),
        ("base", "mcts", 0.6, 14820, 402211),
        ("dpo", "greedy", 0.63, 880, 19876),
        ("dpo", "mcts", 0.835, 13900, 390112),
    ]
]


def sample_tree() -> Tree:
    """Two candidates at the root, one of them imagined. Below the first are a malformed call and an untried one."""
    messages = (Message("system", "You are shopping."), Message("user", TASK.prompt))
    root = Node(State(TASK, messages), value=0.5, context_ids=(1, 2, 3))
    search = _step(root, "Thought: look.\nsearch[red kettle]", "search[red kettle]", f"3 found {HOSTILE}\nmore", 0.7)
    search.visits, search.value_sum = 5, 4.0
    tool = ToolCall("open", {"item": 3})
    imagined = _step(root, "open item 3", tool, "A blue kettle", 0.2)
    imagined.visits, imagined.value_sum = 1, 0.25
    assert search.child is not None and imagined.child is not None
    imagined.child.origin = "imagined"
    bad = _step(search.child, HOSTILE, "", "That is no call.", 0.1, error=f"no call in {HOSTILE}")
    bad.visits = 1
    buy = _step(search.child, "buy[1]", "buy[1]", "Thank you.", 0.6)
    buy.visits, buy.value_sum, buy.reward = 3, 3.0, 1.0
    assert bad.child is not None and buy.child is not None
    bad.child.invalid, buy.child.terminated = True, True
    search.child.edges.append(Edge(Action("back", "back"), prior=0.3))
    return Tree(TASK, 7, root, Budget(simulations=6, environment_steps=6, generated_tokens=120, seconds=0.5))


def _step(parent: Node, text: str, call: str | ToolCall, said: str, prior: float, *, error: str = "") -> Edge:
    thought = "I should look first." if call == "search[red kettle]" else ""
    action = Action(text, call, thought, (5, 6), (-0.1, -0.2), error)
    state = State(TASK, (*parent.state.messages, Message("assistant", text), Message("user", said)))
    edge = Edge(action, prior, child=Node(state, value=0.6, context_ids=(7,)))
    parent.edges.append(edge)
    return edge
