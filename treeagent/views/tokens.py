"""Where a path of a tree becomes token ids and a mask: the one form in which learners read trees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treeagent.search.node import Edge, Tree, path_origin
from treeagent.types import Origin


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One conversation with the tokens to be imitated and the positions whose value is known."""

    task_id: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True where the token carries likelihood loss: the agent's own tokens, never an observation's but in
    ``early_experience.world_rows``."""
    value_positions: tuple[int, ...] = ()
    """Indices into ``token_ids``: the last token of each state, from which V(s) is read."""
    value_targets: tuple[float, ...] = ()
    """The return from that state, in reward units; aligned with ``value_positions``."""
    weight: float = 1.0
    """Factor of this row's likelihood loss."""
    origin: Origin = "real"
    """Imagined, where a step of its path, which may go on behind it, leads to an imagined state."""


def path_rows(
    tree: Tree, path: Sequence[Edge], value_targets: Sequence[float | None] = (), *, imitate_from: int = 0
) -> Iterator[TokenRow]:
    """The tokens of a path, those of its actions from the one numbered ``imitate_from`` on with likelihood loss;
    ``value_targets`` belong to its states, root first, None where unknown.

    One row for each segment of the path that has anything to learn, so that every action stands behind the prompt that
    it was sampled behind, and every state is valued behind its own.
    """
    first = 0
    for start, edges in tree.segments(path):
        ids = list(start.context_ids)
        mask = [False] * len(ids)
        ends = [len(ids) - 1]
        for place, edge in enumerate(edges, start=first):
            ids += edge.action.token_ids
            mask += [place >= imitate_from] * len(edge.action.token_ids)
            if edge.child is None or not edge.child.left_out:
                context = edge.child.context_ids if edge.child is not None else ()
                ids += context
                mask += [False] * len(context)
                ends.append(len(ids) - 1)
        targets = zip(ends, value_targets[first:], strict=False)
        known = [(end, target) for end, target in targets if target is not None]
        first += len(edges)
        if any(mask) or known:
            yield TokenRow(
                tree.task.id,
                tuple(ids),
                tuple(mask),
                tuple(end for end, _ in known),
                tuple(target for _, target in known),
                origin=path_origin(path),
            )
