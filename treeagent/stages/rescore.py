"""Rescore stored trees: the rewards that other settings give their components, as a view that can be learned from."""

from collections.abc import Iterator

from treeagent.config import RunConfig
from treeagent.marks import FILE
from treeagent.rewards.components import ComponentSums, components_of, read_rules, steps
from treeagent.rewards.config import TOOL_SCORES, RewardsConfig
from treeagent.rewards.reweigh import rescored
from treeagent.run.folder import Run
from treeagent.run.progress import Progress
from treeagent.search.node import Tree
from treeagent.search.record import from_record, to_records
from treeagent.store import read_as, regular, shard_place, shards, write_atomic, write_shard
from treeagent.types import UserError
from treeagent.views.figures import tree_figures


def rescore(config: RunConfig, source: Run, view: Run, progress: Progress) -> dict[str, float]:
    """Write the trees of ``source``, with the rewards that ``config.rewards`` gives them, to ``view``. Finished shards
    are kept, so that a killed command goes on after them. The marks of reviewers are copied, since an update lays them
    on the trees that it learns from. Nothing is written to ``source``.

    Returns:
        ``tree_figures`` and ``component_figures`` of all trees.

    Raises:
        UserError: a weight or a budget names a component that no tree has.
        RunError: the view was begun with other trees.
    """
    view.take_trees("rescore", source)
    rules = read_rules(config.rewards)
    jobs = [(name, index) for name in source.collections() for index, _ in enumerate(shards(source.trees, name))]
    require_stored(config.rewards, (tree for name in source.collections() for tree in _read(source, name)))
    with progress.track("rescore", len(jobs)) as advance:
        for name in source.collections():
            for path in shards(source.trees, name):
                _, index = shard_place(path)
                if not shards(view.trees, name, index):
                    trees = list(read_as(from_record, source.trees, name, index))
                    told = rescored(trees, config.rewards, rules, source.config.search.process_weight)
                    write_shard(view.trees, name, index, to_records(told))
                advance(1)
    if (marks := source.path / FILE).exists():
        write_atomic(view.path / FILE, regular(marks).read_bytes())
    sums = ComponentSums()
    found = [tree for name in view.collections() for tree in sums.reading(_read(view, name))]
    figures = tree_figures(found) | sums.figures()
    if not view.is_done("rescore"):
        view.log("rescore", {"step": 0, **figures})
        view.finish("rescore", figures)
    return figures


def require_stored(config: RewardsConfig, trees: Iterator[Tree]) -> None:
    """Check that some tree has each component that ``config`` names; the trees are read as far as that takes.

    Raises:
        UserError: none has one of them.
    """
    wanted = {name for name in (*config.weights, *config.budgets) if name not in config.rules}
    if not wanted:
        return
    seen: set[str] = set()
    for tree in trees:
        for _, edge in steps(tree):
            if edge.child is not None:
                seen |= components_of(edge).keys()
        if seen.intersection(TOOL_SCORES):
            seen |= {*TOOL_SCORES}  # calls were scored, and an error that nobody made pays nothing
        if wanted <= seen:
            return
    for name in sorted(wanted - seen):
        fix = "collect trees with rewards.tools=true" if name in TOOL_SCORES else f"they have {', '.join(sorted(seen))}"
        raise UserError(f"the component {name!r} of rewards.weights or rewards.budgets is in no stored step: {fix}")


def _read(run: Run, name: str) -> Iterator[Tree]:
    return read_as(from_record, run.trees, name)
