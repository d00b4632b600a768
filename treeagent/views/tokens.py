"""The only place where a path of a tree becomes token ids, a loss mask and behaviour log-probabilities. Nothing is
tokenised here: the ids are those that the policy read and sampled while the tree was searched."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from treeagent.search.node import Edge, Tree, path_origin
from treeagent.types import Origin, UserError


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One conversation as tokens, with the tokens to imitate and the states with a known value."""

    task_id: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True if the token, one of the agent's turns, carries likelihood loss; aligned with ``token_ids``."""
    value_positions: tuple[int, ...] = ()
    """Indices into ``token_ids``: the last token of each state, from which V(s) is read."""
    value_targets: tuple[float, ...] = ()
    """For each of these states, the known outcome: the reward on the way there plus the return from there."""
    origin: Origin = "real"
    """``imagined`` if any step of the path that the row comes from is, even one after the row's last token."""


def within(row: TokenRow, context: int) -> TokenRow:
    """The part of a row that a model with a context of so many tokens reads."""
    if len(row.token_ids) <= context:
        return row
    kept = sum(position < context for position in row.value_positions)
    return replace(
        row,
        token_ids=row.token_ids[:context],
        mask=row.mask[:context],
        value_positions=row.value_positions[:kept],
        value_targets=row.value_targets[:kept],
    )


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The tokens that follow a prompt along a path. The first four tuples are aligned with each other."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities log μ in nats; 0 if ``mask`` is False and at observations."""
    actions: tuple[Edge | None, ...]
    """For each token the edge of its action; None for a token of an observation."""
    ends: tuple[int, ...]
    """For each edge with a following state in this prompt, the number of tokens up to the end of that state."""


def turn_tokens(edges: Sequence[Edge], trained: Collection[int] | None = None, *, closing: bool = True) -> TurnTokens:
    """The tokens of consecutive actions after one prompt (``Tree.segments``), with the observations between them.

    Args:
        trained: ``id`` of the edges whose tokens carry loss; None for all.
        closing: whether the observation after the last action belongs to the row.
    """
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    actions: list[Edge | None] = []
    ends: list[int] = []
    for index, edge in enumerate(edges, start=1):
        action, child, last = edge.action, edge.child, index == len(edges)
        is_trained = trained is None or id(edge) in trained
        ids += action.token_ids
        mask += [is_trained and position not in action.forced for position in range(len(action.token_ids))]
        logprobs += action.logprobs if is_trained else [0.0] * len(action.logprobs)
        actions += [edge] * len(action.token_ids)
        if child is not None and child.left_out:
            if not last:
                raise UserError(
                    f"old observations are left out on a path of task {child.state.task.id}, so that no one prompt "
                    "stands before its actions: compare siblings (update.pairs.rule), or collect trees with "
                    "policy.context='refuse'"
                )
            continue
        if child is not None and (closing or not last):
            ids += child.context_ids
            mask += [False] * len(child.context_ids)
            logprobs += [0.0] * len(child.context_ids)
            actions += [None] * len(child.context_ids)
        ends.append(len(ids))
    return TurnTokens(tuple(ids), tuple(mask), tuple(logprobs), tuple(actions), tuple(ends))


def require_logprobs(task_id: str, edges: Sequence[Edge]) -> None:
    if any(len(edge.action.logprobs) < len(edge.action.token_ids) for edge in edges):
        raise UserError(
            f"the tree of task {task_id} holds no log-probabilities: it was imported, and can only be imitated, as by "
            "treeagent update rft"
        )


def path_rows(
    tree: Tree,
    path: Sequence[Edge],
    value_targets: Sequence[float | None] = (),
    *,
    imitated: Collection[Edge] | None = None,
) -> Iterator[TokenRow]:
    """A path as rows for imitation and for fitting values, cut where the prompt starts anew.

    Args:
        path: edges from the root on.
        value_targets: the known outcomes from the states of the path, root first, in reward units; None if unknown.
        imitated: the edges whose actions carry likelihood loss; None for all.
    """
    trained = {id(edge) for edge in (path if imitated is None else imitated)}
    first = 0
    for start, edges in tree.segments(path):
        prompt = start.context_ids
        tokens = turn_tokens(edges, trained)
        ends = [len(prompt) - 1, *(len(prompt) + end - 1 for end in tokens.ends)]
        targets = zip(ends, value_targets[first:], strict=False)
        known = [(end, target) for end, target in targets if target is not None]
        first += len(edges)
        if any(tokens.mask) or known:
            yield TokenRow(
                tree.task.id,
                prompt + tokens.token_ids,
                (False,) * len(prompt) + tokens.mask,
                tuple(end for end, _ in known),
                tuple(target for _, target in known),
                origin=path_origin(path),
            )
