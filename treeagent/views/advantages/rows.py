"""Advantages as rows of tokens. Every sampled token is trained on at most once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from treeagent.search.node import Tree, path_origin
from treeagent.types import Origin
from treeagent.views.advantages.common import trajectories
from treeagent.views.tokens import require_logprobs, turn_tokens


@dataclass(frozen=True, slots=True)
class AdvantageRow:
    """A path, or a part of one, as tokens. All tuples after ``prompt_ids`` are aligned with ``completion_ids``."""

    task_id: str
    prompt_ids: tuple[int, ...]
    """The prompt of the root, or of the state at which the prompt starts anew."""
    completion_ids: tuple[int, ...]
    """Everything that follows the prompt: actions and observations."""
    mask: tuple[bool, ...]
    """True if this row trains the token: not at observations, at inserted tokens (``Action.forced``), and at actions
    that an earlier row trains or that have no advantage."""
    advantages: tuple[float, ...]
    """The advantage of the token's action; 0 where this row does not train."""
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities in nats; 0 if ``mask`` is False."""
    origin: Origin = "real"
    """``imagined`` if any step of the path that the row comes from is, even one after the row's last token."""


def advantage_rows(tree: Tree, scored: Mapping[int, float]) -> Iterator[AdvantageRow]:
    """Rows that cover every edge of a tree that ``advantages`` scored; the tokens of an edge are trained in the first
    row that holds it."""
    trained: set[int] = set()
    for path in trajectories(tree):
        for start, edges in tree.segments(path):
            new = {id(edge) for edge in edges if id(edge) in scored} - trained
            if not new:
                continue
            trained |= new
            last = max(index for index, edge in enumerate(edges) if id(edge) in new)
            require_logprobs(tree.task.id, edges[: last + 1])
            tokens = turn_tokens(edges[: last + 1], new, closing=False)
            yield AdvantageRow(
                tree.task.id,
                start.context_ids,
                tokens.token_ids,
                tokens.mask,
                tuple(scored[id(edge)] if id(edge) in new else 0.0 for edge in tokens.actions),
                tokens.logprobs,
                path_origin(path),
            )
