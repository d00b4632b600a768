"""Advantages of a tree's actions, packed into rows in which every sampled token is trained at most once."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Node, Tree, path_origin, path_return
from treeagent.types import Origin, UserError

Path = tuple[Edge, ...]


_TINY = 1e-9
"""Differences up to here are roundings: the mean of equal numbers may be off by one."""


@dataclass(frozen=True, slots=True)
class AdvantageRow:
    """One root-to-leaf path, or a segment of one. All tuples after ``prompt_ids`` are aligned with
    ``completion_ids``."""

    task_id: str
    prompt_ids: tuple[int, ...]
    """What the root adds, or the state at which the prompt starts anew."""
    completion_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True where a token was sampled by the policy and is trained in this row: observations and steps that an
    earlier row already trains are False."""
    advantages: tuple[float, ...]
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities in nats; 0 where ``mask`` is False."""
    origin: Origin = "real"
    """Imagined, where a step of its path, which may go on behind it, leads to an imagined state."""


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AdvantageConfig:
    """What an action is compared with, and which actions are scored."""

    kind: Literal["q", "tree_grpo", "treerl", "gigpo", "grpo", "rloo", "gae"] = "q"
    """"q" compares siblings by their search values, "gae" (PPO) each step with V(s), the others the trajectories of a
    task's trees with each other."""
    baseline: Literal["siblings", "value"] = "siblings"
    """For "q": the visit-weighted mean of the siblings' Q, or V(s). V(s), for "gae" too, is the value function's word
    when search came to s, 0 where it was not asked: MCTS asks everywhere, chains at their ends alone."""
    scale: Literal["std", "none"] = "std"
    """For "grpo", "tree_grpo" and "gigpo": what a group's mean leaves is divided by the group's standard deviation, or
    not (Dr. GRPO)."""
    step_weight: Annotated[float, Field(ge=0)] = 1.0
    """ω, the weight of "gigpo"'s comparison of steps beside that of episodes."""
    lambda_: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ of "gae": 0 trusts the value function after one step, 1 never before the end."""
    min_visits: Annotated[int, Field(gt=0)] = 1
    """Edges tried less often are left out."""
    min_siblings: Annotated[int, Field(ge=2)] = 2
    """For "q" among siblings: nodes with fewer tried edges give no advantage, as there is nothing to compare with."""
    keep_invalid: bool = True
    """Train trajectories that hold a malformed action too. Otherwise edges on no other trajectory are left out
    (void-turn filtering, Xue et al. 2025); what the others are compared with still counts them."""


def advantages(trees: Sequence[Tree], config: AdvantageConfig) -> dict[int, float]:
    """A(s,a) in the trees of one task, by ``id`` of the edge; edges without one, or with 0, are left out.

    A trajectory is a tried path from the root to where nothing further was tried; its return closes with V(s) unless
    its end is known. An edge that several trajectories share gets the mean of what each gives it, every one counting
    once: the papers' groups are of sampled trajectories, and a visit more is not a trajectory more. What
    ``tree.may_prefer`` forbids to prefer has an advantage of at most 0.

    Raises:
        UserError: the trees are of several tasks.
    """
    tasks = sorted({tree.task.id for tree in trees})
    if len(tasks) > 1:
        raise UserError(f"advantages compare the trees of one task, not of {', '.join(tasks)}: call once for each task")
    kept = {
        id(edge)
        for tree in trees
        for path in _trajectories(tree)
        if config.keep_invalid or not any(edge.action.error for edge in path)
        for edge in path
        if edge.visits >= config.min_visits
    }
    unproven = {id(edge) for tree in trees for node in tree.nodes() for edge in node.edges if not tree.may_prefer(edge)}
    scored = {edge: min(each, 0.0) if edge in unproven else each for edge, each in _score(trees, config).items()}
    return {edge: advantage for edge, advantage in scored.items() if edge in kept and abs(advantage) > _TINY}


def _score(trees: Sequence[Tree], config: AdvantageConfig) -> dict[int, float]:
    match config.kind:
        case "q":
            return {edge: advantage for tree in trees for edge, advantage in q_advantages(tree, config).items()}
        case "tree_grpo":
            return tree_grpo_advantages(trees, config)
        case "treerl":
            return treerl_advantages(trees)
        case "gigpo":
            return gigpo_advantages(trees, config)
        case "grpo":
            return grpo_advantages(trees, config)
        case "rloo":
            return rloo_advantages(trees)
        case "gae":
            return gae_advantages(trees, config)


def _trajectories(tree: Tree) -> list[Path]:
    """The tried paths from the root to where nothing further was tried, in the order of the tree."""
    return [path for path, node in tree.walk() if path and path[-1].visits and not any(map(_tried, node.edges))]


def _tried(edge: Edge) -> bool:
    return edge.visits > 0 and edge.child is not None


def q_advantages(tree: Tree, config: AdvantageConfig) -> dict[int, float]:
    """A(s,a) = Q(s,a) - Σ_b N(s,b) Q(s,b) / Σ_b N(s,b), or Q(s,a) - V(s).

    Weighted by visits, the former sum to 0 at every node.
    """
    scored: dict[int, float] = {}
    for node in tree.nodes():
        tried = [edge for edge in node.edges if edge.visits >= config.min_visits]
        if config.baseline == "value":
            baseline = node.value
        elif len(tried) >= config.min_siblings:
            baseline = sum(edge.value_sum for edge in tried) / sum(edge.visits for edge in tried)
        else:
            continue
        scored.update({id(edge): edge.value - baseline for edge in tried})
    return scored


def grpo_advantages(trees: Sequence[Tree], config: AdvantageConfig) -> dict[int, float]:
    """A(τ) = (R(τ) - mean) / std over the trajectories of the task (GRPO, Shao et al. 2024, section 4.1.2), or
    undivided (Dr. GRPO, Liu et al. 2025)."""
    paths, returns = _outcomes(trees)
    return _whole(paths, _relative(returns, config))


def rloo_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """A(τ_i) = R(τ_i) - Σ_{j≠i} R(τ_j) / (n - 1) = (n R(τ_i) - Σ_j R(τ_j)) / (n - 1) over the n trajectories of the
    task (RLOO, Ahmadian et al. 2024)."""
    paths, returns = _outcomes(trees)
    total, count = sum(returns), len(returns)
    return _whole(paths, [(count * each - total) / max(count - 1, 1) for each in returns])


def tree_grpo_advantages(trees: Sequence[Tree], config: AdvantageConfig) -> dict[int, float]:
    """A(τ) = A_intra(τ) + A_inter(τ): GRPO's within the trajectory's own tree, and over all trees of the task
    (Tree-GRPO, Ji et al. 2025)."""
    paths, returns = _outcomes(trees)
    intra = [each for tree in trees for each in _relative(_outcomes([tree])[1], config)]
    return _whole(paths, [own + group for own, group in zip(intra, _relative(returns, config), strict=True)])


def treerl_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """([V(s) - V(root)] + [V(s) - V(parent)]) / sqrt(leaves below s) for the edge that leads to s, V being the mean
    return of the leaves below (TreeRL, Hou et al. 2025). The roots of the trees are one state, with one V(root)."""
    paths, returns = _outcomes(trees)
    values = _whole(paths, returns)
    leaves = Counter(id(edge) for path in paths for edge in path)
    root = fmean(returns) if returns else 0.0
    scored: dict[int, float] = {}
    for path in paths:
        parent = root
        for edge in path:
            value = values[id(edge)]
            scored[id(edge)] = (value - root + value - parent) / sqrt(leaves[id(edge)])
            parent = value
    return scored


def gigpo_advantages(trees: Sequence[Tree], config: AdvantageConfig) -> dict[int, float]:
    """A = A_E + ω A_S: GRPO's over whole episodes, and the same over the returns R_t = Σ_k γ^(k-t) r_k of all steps
    taken at equal states (GiGPO, Feng et al. 2025, equations 3 and 5 to 8). States are equal by their key; a state
    without one equals itself alone. An environment's keys tell how many steps are left, too, so that a place that is
    come to at another time is another state, unlike in the paper."""
    paths, returns = _outcomes(trees)
    given = [[each] * len(path) for path, each in zip(paths, _relative(returns, config), strict=True)]
    anchors: defaultdict[str | int, list[tuple[int, int, float]]] = defaultdict(list)
    episodes = ((tree, path) for tree in trees for path in _trajectories(tree))
    for number, (tree, path) in enumerate(episodes):
        for place, node in enumerate(_states(tree, path)):
            key = id(node) if node.state.key is None else node.state.key
            anchors[key].append((number, place, path_return(path[place:], tree.discount)))
    for steps in anchors.values():
        for (number, place, _), each in zip(steps, _relative([step[2] for step in steps], config), strict=True):
            given[number][place] += config.step_weight * each
    return _average(paths, given)


def gae_advantages(trees: Sequence[Tree], config: AdvantageConfig) -> dict[int, float]:
    """A_t = Σ_l (γλ)^l δ_{t+l} with δ_t = r_t + γ V(s_{t+1}) - V(s_t) (GAE, Schulman et al. 2016, equation 16); V is
    the value function's word on each state, 0 after a known end."""
    given: list[list[float]] = []
    for tree in trees:
        for path in _trajectories(tree):
            advantage = 0.0
            along: list[float] = []
            for edge, node in zip(reversed(path), reversed(_states(tree, path)), strict=True):
                assert edge.child is not None
                discount = 1.0 if edge.thought else tree.discount
                surprise = (edge.reward or 0.0) + discount * edge.child.leaf_value(edge.reward) - node.value
                advantage = surprise + discount * config.lambda_ * advantage
                along.append(advantage)
            given.append(along[::-1])
    return _average(_outcomes(trees)[0], given)


def _outcomes(trees: Sequence[Tree]) -> tuple[list[Path], list[float]]:
    """Every trajectory of the trees, and its return."""
    paths = [(tree, path) for tree in trees for path in _trajectories(tree)]
    return [path for _, path in paths], [path_return(path, tree.discount) for tree, path in paths]


def _states(tree: Tree, path: Path) -> list[Node]:
    """Where each step of a path was taken."""
    return [tree.root, *(edge.child for edge in path[:-1] if edge.child is not None)]


def _relative(returns: Sequence[float], config: AdvantageConfig) -> list[float]:
    """(R - mean) / std of a sample, or undivided; 0 in a group of one, or of equals."""
    spread = stdev(returns) if len(returns) > 1 else 0.0
    if spread <= _TINY:
        return [0.0] * len(returns)
    mean, unit = fmean(returns), spread if config.scale == "std" else 1.0
    return [(each - mean) / unit for each in returns]


def _whole(paths: Sequence[Path], given: Sequence[float]) -> dict[int, float]:
    """What each trajectory gives to all its edges alike, averaged where they share one."""
    return _average(paths, [[each] * len(path) for path, each in zip(paths, given, strict=True)])


def _average(paths: Sequence[Path], given: Sequence[Sequence[float]]) -> dict[int, float]:
    """By ``id`` of the edge: the mean of what the trajectories through it give it, each counting once."""
    sums: defaultdict[int, float] = defaultdict(float)
    counts: Counter[int] = Counter()
    for path, along in zip(paths, given, strict=True):
        for edge, each in zip(path, along, strict=True):
            sums[id(edge)] += each
            counts[id(edge)] += 1
    return {edge: total / counts[edge] for edge, total in sums.items()}


def advantage_rows(tree: Tree, scored: Mapping[int, float]) -> Iterator[AdvantageRow]:
    """Root-to-leaf rows, one a segment, that cover every scored edge, each edge's tokens trained in the first row that
    holds it."""
    trained: set[int] = set()
    for path in _trajectories(tree):
        for start, edges in tree.segments(path):
            new = {id(edge) for edge in edges if id(edge) in scored} - trained
            if not new:
                continue
            trained |= new
            last = max(place for place, edge in enumerate(edges) if id(edge) in new)
            row = _row(tree, start, edges[: last + 1], scored, new)
            yield replace(row, origin=path_origin(path))


def _row(tree: Tree, start: Node, path: Sequence[Edge], scored: Mapping[int, float], new: set[int]) -> AdvantageRow:
    ids: list[int] = []
    mask: list[bool] = []
    advantages: list[float] = []
    logprobs: list[float] = []
    for place, edge in enumerate(path):
        action, trains = edge.action, id(edge) in new
        context = edge.child.context_ids if edge.child is not None and place + 1 < len(path) else ()
        ids += [*action.token_ids, *context]
        mask += [trains] * len(action.token_ids) + [False] * len(context)
        advantages += [scored[id(edge)] if trains else 0.0] * len(action.token_ids) + [0.0] * len(context)
        logprobs += [logprob if trains else 0.0 for logprob in action.logprobs] + [0.0] * len(context)
    return AdvantageRow(tree.task.id, start.context_ids, tuple(ids), tuple(mask), tuple(advantages), tuple(logprobs))
