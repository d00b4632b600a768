"""Is training going well? Figures of the trees that a policy searched, and the alarms that their course raises.

The signs are those of agents that collapse: the echo trap of RAGEN (Wang et al. 2025), where the spread of returns and
the entropy fall before the reward does; repetition; malformed calls; process rewards that rise while verified success
falls.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from treeagent.envs.shield import FORBIDDEN
from treeagent.search.node import Edge, Node, Tree, path_return, succeeds

Figures = Mapping[str, float]
_GRAM = 3
"""Tokens that count as a repetition when an agent says them again."""


def tree_figures(trees: Sequence[Tree]) -> dict[str, float]:
    """What a policy's trees show of it; empty for no trees.

    ``success``: share of tasks for which a finished path returned 1. ``reward``: mean return of finished paths.
    ``reward_std``: their standard deviation within a tree, mean over trees. ``entropy``: mean -log μ of a sampled
    token, in nats, an estimate of the policy's. ``invalid``: share of steps malformed or refused. ``forbidden``: share
    of steps that a shield refused. ``repetition``: share of an agent's three-token sequences that it said before on the
    same path. ``process``: mean process reward of a finished path. ``steps``: its mean number of steps. ``failed``:
    share of trees that broke off with an error. ``restarts``: share of states at which old observations were left out,
    so that the prompt starts anew.
    """
    if not trees:
        return {}
    ends = [[(path, path_return(path, tree.discount)) for path in finished_paths(tree)] for tree in trees]
    paths = [path for found in ends for path, _ in found]
    returns = [[value for _, value in found] for found in ends]
    drawn = [edge for tree in trees for node in tree.nodes() for edge in node.edges]
    stepped = [edge.child for edge in drawn if edge.child is not None]
    tokens = sum(len(edge.action.token_ids) for edge in drawn)
    return {
        "success": _mean([float(solved(tree)) for tree in trees]),
        "reward": _mean([value for values in returns for value in values]),
        "reward_std": _mean([statistics.pstdev(values) for values in returns if values]),
        "entropy": -sum(edge.action.logprob for edge in drawn) / max(tokens, 1),
        "invalid": _mean([float(node.invalid) for node in stepped]),
        "forbidden": _mean([float(_forbidden(node)) for node in stepped]),
        "repetition": _mean([repetition(path) for path in paths]),
        "process": _mean([sum(edge.process for edge in path) for path in paths]),
        "steps": _mean([float(len(path)) for path in paths]),
        "failed": _mean([float(bool(tree.error)) for tree in trees]),
        "restarts": _mean([float(bool(node.left_out)) for tree in trees for node in tree.nodes()]),
    }


def finished_paths(tree: Tree) -> Iterator[Sequence[Edge]]:
    """Paths to an end of the task: its last word, not a limit."""
    return (path for path, node in tree.walk() if path and node.terminated)


def solved(tree: Tree) -> bool:
    """Whether a finished path succeeds."""
    return any(map(succeeds, finished_paths(tree)))


def accuracy(tree: Tree) -> float:
    """Share of finished paths that succeed; 0 where none finished."""
    return _mean([float(succeeds(path)) for path in finished_paths(tree)])


def return_spread(tree: Tree) -> float:
    """Standard deviation of the returns of finished paths: 0 where all went equally, and nothing can be compared."""
    returns = [path_return(path, tree.discount) for path in finished_paths(tree)]
    return statistics.pstdev(returns) if returns else 0.0


def repetition(path: Sequence[Edge]) -> float:
    """Share of the agent's three-token sequences that occurred before on the path, within one action or another."""
    seen: set[tuple[int, ...]] = set()
    said = again = 0
    for edge in path:
        ids = edge.action.token_ids
        grams = [ids[start : start + _GRAM] for start in range(len(ids) - _GRAM + 1)]
        said += len(grams)
        for gram in grams:
            again += gram in seen
            seen.add(gram)
    return again / said if said else 0.0


def alarms(history: Sequence[Figures]) -> list[str]:
    """What the last of a course of ``tree_figures`` warns of, a sentence each, against the first of them. One that had
    no tree to tell of, such as a round in imagination alone, neither warns nor is a first."""
    searched = [figures for figures in history if "success" in figures]
    if len(searched) < 2 or "success" not in history[-1]:
        return []
    first, last = searched[0], searched[-1]
    warnings: list[str] = []
    if _fell(first, last, "entropy") and _fell(first, last, "reward_std") and last["reward"] <= first["reward"] + 0.02:
        warnings.append(
            f"echo trap: entropy fell from {first['entropy']:.2f} to {last['entropy']:.2f} and the spread of returns "
            f"from {first['reward_std']:.2f} to {last['reward_std']:.2f} while the reward did not rise: take smaller "
            "steps, stronger anchors or more diverse tasks"
        )
    if last["process"] > first["process"] + 0.05 and last["success"] < first["success"] - 0.05:
        warnings.append(
            f"reward hacking: process rewards rose from {first['process']:.2f} to {last['process']:.2f} while verified "
            f"success fell from {first['success']:.2f} to {last['success']:.2f}: weigh them less "
            "(search.process_weight)"
        )
    if last["invalid"] > max(0.2, 2 * first["invalid"]):
        warnings.append(
            f"format: {last['invalid']:.0%} of the steps are malformed or refused ({first['invalid']:.0%} at first): "
            "anchor the update, or imitate valid steps for a while"
        )
    if last["repetition"] > max(0.3, 2 * first["repetition"]):
        warnings.append(
            f"repetition: {last['repetition']:.0%} of what the agent says it said before ({first['repetition']:.0%} at "
            "first): take smaller steps"
        )
    return warnings + _plateau(history, first)


def _plateau(history: Sequence[Figures], first: Figures) -> list[str]:
    """Where the last update is no better on validation tasks than an earlier one: why, as far as its trees tell."""
    last = history[-1]
    earlier = [figures["validation"] for figures in history[:-1] if "validation" in figures]
    if "validation" not in last or not earlier or last["validation"] > max(earlier):
        return []
    if last["success"] > 0.95:
        why = f"search solves {last['success']:.0%} of the tasks already: give it harder ones (adapt.variations)"
    elif _fell(first, last, "reward_std"):
        why = (
            f"the returns within a tree spread by {last['reward_std']:.2f} ({first['reward_std']:.2f} at first), "
            "so that little can be told apart: raise policy.temperature, search.limits or adapt.curriculum"
        )
    else:
        why = (
            f"search solves {last['success']:.0%} of the tasks and their returns still differ, but the update does not "
            "carry over to other tasks: search more of them (collect.tasks), or learn from more rounds (adapt.replay)"
        )
    return [f"plateau: {last['validation']:.0%} of the validation tasks succeed, {max(earlier):.0%} before; {why}"]


def imagination_alarms(wanted: float, allowed: float) -> list[str]:
    """What the audit of a world model warns of: it allows a smaller share of imagined trees than is wanted."""
    if allowed >= wanted:
        return []
    return [
        f"imagination: {wanted:.0%} of the trees were to grow in the world model, but its audit allows {allowed:.0%}: "
        "the others are real; give it more steps to learn from (adapt.seed_tasks, world.sft)"
    ]


def training_alarms(rows: Sequence[Figures]) -> list[str]:
    """What the metrics of one update warn of: clipped ratios, distance from the behaviour policy, a gradient that
    jumps."""
    warnings: list[str] = []
    clipped = _mean([row["clip_ratio/region_mean"] for row in rows if "clip_ratio/region_mean" in row])
    if clipped > 0.3:
        warnings.append(
            f"clipping: {clipped:.0%} of the ratios are clipped: lower the learning rate, or learn from newer trees"
        )
    distances = [row["kl"] for row in rows if "kl" in row]
    if distances and max(distances) > 1.0:
        warnings.append(
            f"distance: KL from the behaviour policy reached {max(distances):.2f} nats a token: raise beta, or lower "
            "the learning rate"
        )
    norms = [row["grad_norm"] for row in rows if "grad_norm" in row]
    if norms and max(norms) > 20 * statistics.median(norms):
        warnings.append(
            f"gradient: its norm jumped to {max(norms):.1f} where {statistics.median(norms):.2f} is usual: lower "
            "max_grad_norm"
        )
    return warnings


def _forbidden(node: Node) -> bool:
    return node.invalid and node.state.messages[-1].content.startswith(FORBIDDEN)


def _fell(first: Figures, last: Figures, name: str, share: float = 0.3) -> bool:
    return last[name] < (1 - share) * first[name]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
