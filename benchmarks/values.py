"""Ways to fit V(s), tested on trees that no head was fitted to, and then in search.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies and grows the trees
    .venv/bin/python -m benchmarks.values --runs runs/store_short --seeds 0 1 2

A head is fitted to the trees of a run's first training tasks, and ``views.signal`` measures it on the trees of the
tasks after them. The policy stays fixed. "best return" is what a run fits to
each of two layers. The arms "in search" then plan validation tasks under one limit of generated tokens, without
rewards.
"""

import argparse
import copy
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.command import options_digest, record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import Record, Row, digest
from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.learners.common import pad
from treeagent.learners.config import ValueConfig
from treeagent.learners.packed import Model
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.search.config import Limits
from treeagent.search.node import Node, Tree
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.views.signal import signal_figures, value_signal
from treeagent.views.tokens import TokenRow, path_rows
from treeagent.views.values import ValueTargetConfig, found_success, state_outcome

QUESTION = "Which way to fit V tells states from which a success was found from the others?"
_FIT = ValueConfig()
_FORWARD = 64
"""Rows per forward pass."""

Reads = Literal["last layer", "middle layer", "all layers", "mean over tokens", "last and mean"]
Aim = Literal["best", "lambda", "success"]


_RETURNS: tuple[Literal["best", "lambda"], ...] = ("best", "lambda")


@dataclass(frozen=True)
class Way:
    """A way to fit V."""

    reads: Reads = "last layer"
    """What the head reads: hidden states at a state's last token, or their mean over all tokens up to it."""
    target: Aim = "best"
    """As in ``ValueTargetConfig``. "success" targets the upper end of the range for a success, and its lower end
    otherwise."""
    standardised: bool = True
    """Whether the head standardises what it reads."""
    linear: bool = False
    """Whether the head has no hidden layer."""
    heads: int = 1
    """Number of heads in an ensemble, each with a seed of its own."""
    lower: bool = False
    """Whether V is the ensemble's mean minus its standard deviation."""
    ends_apart: bool = False
    """Whether terminal states have a head of their own."""
    share: float = 1.0
    """Share of the training trees that is used."""
    solved: bool = False
    """Whether trees without a success are left out."""


WAYS: dict[str, Way] = {
    "best return": Way(),
    "λ-return, λ = 0.95": Way(target="lambda"),
    "success": Way(target="success"),
    "not standardised": Way(standardised=False),
    "linear head": Way(linear=True),
    "middle layer": Way("middle layer"),
    "all layers": Way("all layers"),
    "mean over tokens": Way("mean over tokens"),
    "last and mean": Way("last and mean"),
    "ends apart": Way(ends_apart=True),
    "ends apart, success": Way(target="success", ends_apart=True),
    "5 heads": Way(heads=5),
    "5 heads, lower bound": Way(heads=5, lower=True),
    "all layers, success, 5 heads": Way("all layers", "success", heads=5),
    "half of the trees": Way(share=0.5),
    "without failed trees": Way(solved=True),
}
SEARCHED = ("best return", "success")
"""The ways that are also tried in search. A checkpoint can hold their heads."""


@dataclass(frozen=True)
class States:
    """The states of some trees."""

    trees: Sequence[Tree]
    nodes: Sequence[Node]
    """Nodes of all trees, in the order of ``Tree.walk``."""
    tree: Tensor
    """(states): the index of each state's tree."""
    ends: Tensor
    """(states): whether the episode is over in this state."""
    read: Tensor
    """(states): whether the policy has read it."""
    layers: Tensor
    """(layers + 1, states, width): hidden states at each state's last token; index 0 is the embedding."""
    mean: Tensor
    """(states, width): the mean of the last layer over all tokens up to the state."""
    targets: dict[Aim, Tensor]
    """For each target (states), rescaled to [0, 1]; NaN where unknown."""

    def features(self, reads: Reads) -> Tensor:
        """The hidden states that a head reads: (states, width of the features)."""
        match reads:
            case "last layer":
                return self.layers[-1]
            case "middle layer":
                return self.layers[len(self.layers) // 2]
            case "all layers":
                return torch.cat([*self.layers], -1)
            case "mean over tokens":
                return self.mean
            case "last and mean":
                return torch.cat([self.layers[-1], self.mean], -1)


class LinearHead(ValueHead):
    """A value head without a hidden layer."""

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output((features - self.mean) / self.deviation)
        return logits.squeeze(-1)


def indexed_rows(tree: Tree, index_of: dict[int, int]) -> Iterator[TokenRow]:
    """The rows of ``views.value_rows`` with indices of states as targets. ``index_of`` maps the ``id`` of a node to its
    index."""
    targeted: set[int] = set()
    for path, node in tree.walk():
        if any(edge.child is not None for edge in node.edges):
            continue
        nodes = [tree.root, *(edge.child for edge in path if edge.child is not None)]
        indices = [
            float(index_of[id(each)]) if each.context_ids and id(each) not in targeted else None for each in nodes
        ]
        targeted.update(map(id, nodes))
        yield from path_rows(tree, path, indices, imitated=())


@torch.no_grad()
def states_of(trees: Sequence[Tree], model: Model, returns: tuple[float, float]) -> States:
    """Run the policy's model over the states of trees, and collect its hidden states and the targets."""
    low, high = returns
    nodes: list[Node] = []
    numbers: list[int] = []
    values_by_aim: dict[Aim, list[float]] = {"best": [], "lambda": [], "success": []}
    rows: list[list[TokenRow]] = []
    for number, tree in enumerate(trees):
        found, index_of = found_success(tree), dict[int, int]()
        for path, node in tree.walk():
            index_of[id(node)] = len(nodes)
            nodes.append(node)
            numbers.append(number)
            for aim in _RETURNS:
                value = state_outcome(node, path, ValueTargetConfig(aim), tree.discount)
                values_by_aim[aim].append(
                    math.nan if value is None else (min(max(value, low), high) - low) / (high - low)
                )
            values_by_aim["success"].append(float(found[id(node)]) if id(node) in found else math.nan)
        rows.append(list(indexed_rows(tree, index_of)))
    ordered = sorted((row for of_tree in rows for row in of_tree), key=lambda row: len(row.token_ids))
    read = torch.zeros(len(nodes), dtype=torch.bool)
    config = model.config.get_text_config()
    layers = torch.zeros(config.num_hidden_layers + 1, len(nodes), config.hidden_size)
    mean = torch.zeros(len(nodes), config.hidden_size)
    model.eval()
    for start in range(0, len(ordered), _FORWARD):
        batch = ordered[start : start + _FORWARD]
        hidden = model(
            input_ids=pad([row.token_ids for row in batch], torch.long),
            attention_mask=pad([[1] * len(row.token_ids) for row in batch], torch.long),
            use_cache=False,
            output_hidden_states=True,
            logits_to_keep=1,
        ).hidden_states
        sums = hidden[-1].cumsum(1)
        for row_index, row in enumerate(batch):
            at, indices = torch.tensor(row.value_positions), [int(index) for index in row.value_targets]
            layers[:, indices] = torch.stack([layer[row_index, at] for layer in hidden])
            mean[indices] = sums[row_index, at] / (at[:, None] + 1)
            read[indices] = True
    ends = torch.tensor([node.final for node in nodes])
    targets = {aim: torch.tensor(values) for aim, values in values_by_aim.items()}
    return States(trees, nodes, torch.tensor(numbers), ends, read, layers, mean, targets)


def fit(
    head: ValueHead, features: Tensor, targets: Tensor, trees: Tensor, seed: int, standardised: bool = True
) -> None:
    """Fit a head in place, as ``learners.value.fit_value`` does: whole trees are held out, and the weights of the epoch
    with the lowest held-out loss are kept.

    Args:
        features: (states, width).
        targets: (states), in [0, 1].
        trees: (states), the index of each state's tree.
        standardised: whether the head standardises its features first.
    """
    numbers = sorted(set(trees.tolist()))
    random.Random(seed).shuffle(numbers)
    held_out = torch.isin(trees, torch.tensor(numbers[: math.ceil(_FIT.held_out * len(numbers))]))
    states, train_targets = features[~held_out], targets[~held_out]
    if standardised:
        head.standardise(states)
    optimiser = torch.optim.AdamW(head.parameters(), lr=_FIT.learning_rate)
    shuffler = torch.Generator().manual_seed(seed)
    best, best_state, since = math.inf, copy.deepcopy(head.state_dict()), 0
    for _ in range(_FIT.epochs):
        for batch in torch.randperm(len(train_targets), generator=shuffler).split(_FIT.batch_size):  # type: ignore[no-untyped-call]
            loss = functional.binary_cross_entropy_with_logits(head(states[batch]), train_targets[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
        with torch.no_grad():
            after = functional.binary_cross_entropy_with_logits(head(features[held_out]), targets[held_out]).item()
        since = 0 if after < best else since + 1
        if not since:
            best, best_state = after, copy.deepcopy(head.state_dict())
        if since == _FIT.patience:
            break
    head.load_state_dict(best_state)


def fit_way(way: Way, states: States, train: int, returns: tuple[float, float], seed: int) -> tuple[Tensor, ValueHead]:
    """Fit one way to the first ``train`` trees. Returns V of all states, rescaled to [0, 1], and the last head."""
    features, targets = states.features(way.reads), states.targets[way.target]
    usable = states.read & ~targets.isnan() & (states.tree < math.ceil(way.share * train))
    if way.solved:
        failed = [number for number, tree in enumerate(states.trees) if not any(found_success(tree).values())]
        usable &= ~torch.isin(states.tree, torch.tensor(failed, dtype=torch.long))
    values = torch.zeros(way.heads, len(features))
    kinds = [states.ends, ~states.ends] if way.ends_apart else [torch.ones_like(states.ends)]
    head = ValueHead(features.shape[1], returns, seed)
    for number in range(way.heads):
        for kind in kinds:
            head_type = LinearHead if way.linear else ValueHead
            head, learnt = head_type(features.shape[1], returns, seed + number), usable & kind
            fit(head, features[learnt], targets[learnt], states.tree[learnt], seed + number, way.standardised)
            with torch.no_grad():
                values[number, kind] = torch.sigmoid(head(features[kind]))
    mean = values.mean(0)
    return mean - values.std(0, correction=0) if way.lower else mean, head


def signal_of(states: States, values: Tensor, train: int) -> dict[str, float]:
    """The signal of V on the trees after the first ``train``: over all depths, of terminal states, and AUC and siblings
    by depth."""
    for node, value in zip(states.nodes, values.tolist(), strict=True):
        node.value = value
    rows = value_signal(states.trees[train:])
    figures = signal_figures(rows)
    for row in rows:
        if isinstance(row.depth, int):
            by_depth = {f"auc, depth {row.depth}": row.auc, f"siblings, depth {row.depth}": row.siblings}
            figures |= {name: figure for name, figure in by_depth.items() if figure is not None}
    return figures


def judge(record: Record, arguments: argparse.Namespace, seed: int) -> None:
    """Record every way on one seed's trees, and those of ``SEARCHED`` in search."""
    run = Run.open(arguments.runs / f"seed{seed}")
    options = options_digest(arguments, "runs", "tasks", "tokens")
    settings_hash = digest({"options": options, "run": settings_of(run.config)})
    limited = replace(
        run.config, workers=1, search=replace(run.config.search, limits=Limits(generated_tokens=arguments.tokens))
    )
    played_as = digest({"options": options, "run": settings_of(limited), "tasks": arguments.tasks})
    searched = {f"in search, {name}": name for name in SEARCHED}
    arms = ["as searched", *WAYS]
    if all(record.has(arm, seed, settings_hash) for arm in arms) and all(
        record.has(a, seed, played_as) for a in searched
    ):
        return
    checkpoint = load_checkpoint(start_of(arguments.runs, seed, "warm"))
    trees = list(islice(read_as(from_record, run.trees, COLLECTED), arguments.trees + arguments.judged))
    returns = run.config.environment.returns
    states = states_of(trees, checkpoint.model, returns)
    before = torch.tensor([node.value for node in states.nodes])

    def add(arm: str, values: Tensor) -> None:
        figures = signal_of(states, values, arguments.trees)
        record.add(Row(arm, seed, settings_hash, figures=figures))
        listed = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items() if "depth" not in name)
        print(f"seed {seed} {arm}: {listed}", flush=True)

    if not record.has("as searched", seed, settings_hash):
        add("as searched", before)
    heads: dict[str, ValueHead] = {}
    for arm, way in WAYS.items():
        if not record.has(arm, seed, settings_hash) or arm in SEARCHED:
            values, heads[arm] = fit_way(way, states, arguments.trees, returns, seed)
            if not record.has(arm, seed, settings_hash):
                add(arm, values)
    for arm, name in searched.items():
        if record.has(arm, seed, played_as):
            continue
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(Checkpoint(checkpoint.model, checkpoint.tokenizer, heads[name]), Path(folder) / "policy")
            policy = Path(folder) / "policy"
            row = evaluate_arm(limited, policy, "mcts", arm, seed, played_as, arguments.tasks, split="validation")
        record.add(row)
        print(f"seed {seed} {arm}: {100 * row.success:.1f} %", flush=True)


def main() -> None:
    options = starting(__doc__, "values")
    options.add_argument("--trees", type=int, default=300, help="of training tasks, to fit heads to")
    options.add_argument("--judged", type=int, default=100, help="trees of the tasks after them, to judge V on")
    options.add_argument("--tokens", type=int, default=800, help="generated tokens a validation task")
    options.add_argument("--tasks", type=int, default=100, help="validation tasks of each seed")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, generated_tokens=arguments.tokens) as record:
        for seed in arguments.seeds:
            judge(record, arguments, seed)


if __name__ == "__main__":
    main()
