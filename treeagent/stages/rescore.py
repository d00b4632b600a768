"""Rescore stored trees: the rewards that other settings give their components, as a view that can be learned from."""

import asyncio
from collections.abc import Iterator, Sequence

from treeagent.config import RunConfig
from treeagent.marks import FILE
from treeagent.rewards.components import ComponentSums, components_of, read_rules, steps
from treeagent.rewards.config import JUDGED, TOOL_SCORES, RewardsConfig
from treeagent.rewards.judge import Judge, judged
from treeagent.rewards.ledger import FILE as LEDGER
from treeagent.rewards.ledger import Ledger
from treeagent.rewards.reweigh import rescored
from treeagent.run.folder import Run
from treeagent.run.progress import Progress
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import from_record, to_records
from treeagent.stages.judging import judge_figures, judge_of
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
    rules, judge = read_rules(config.rewards), _judge(config.rewards, source, view)
    jobs = [(name, index) for name in source.collections() for index, _ in enumerate(shards(source.trees, name))]
    require_stored(config.rewards, (tree for name in source.collections() for tree in _read(source, name)))
    with progress.track("rescore", len(jobs)) as advance:
        for name in source.collections():
            for path in shards(source.trees, name):
                _, index = shard_place(path)
                if not shards(view.trees, name, index):
                    trees = list(read_as(from_record, source.trees, name, index))
                    if judge is not None:
                        asyncio.run(judge_trees(trees, judge))
                    told = rescored(trees, config.rewards, rules, source.config.search.process_weight)
                    write_shard(view.trees, name, index, to_records(told))
                advance(1)
    if (marks := source.path / FILE).exists():
        write_atomic(view.path / FILE, regular(marks).read_bytes())
    sums = ComponentSums()
    found = [tree for name in view.collections() for tree in sums.reading(_read(view, name))]
    judging, alarms = judge_figures(config.rewards, view.path, "rescore")
    figures = tree_figures(found) | sums.figures() | judging
    if not view.is_done("rescore"):
        view.log("rescore", {"step": 0, **figures})
        view.finish("rescore", figures | ({"alarms": alarms} if judging else {}))
    return figures


def _judge(config: RewardsConfig, source: Run, view: Run) -> Judge | None:
    """The judge of a view, whose ledger begins as the run's: what the run's judge has said is not paid for again."""
    if config.judge is not None and (source.path / LEDGER).is_file() and not (view.path / LEDGER).exists():
        Ledger(regular(source.path / LEDGER), "rescore").lend(view.path / LEDGER)
    return judge_of(config, view.path, "rescore")


async def judge_trees(trees: Sequence[Tree], judge: Judge) -> None:
    """Write the judge's components to the ends of episodes in trees, in place of those of an earlier judge. An end on
    which it gives no verdict has none."""

    async def one(edge: Edge, node: Node) -> None:
        verdict = await judge.ask(node.state.task, node.state.messages)
        kept = {name: value for name, value in components_of(edge).items() if name not in JUDGED}
        edge.components = kept | judged(verdict)

    ends = [
        (path[-1], node) for tree in trees for path, node in tree.walk() if path and node.ended and not node.unknown
    ]
    await asyncio.gather(*(one(edge, node) for edge, node in ends))


def require_stored(config: RewardsConfig, trees: Iterator[Tree]) -> None:
    """Check that some tree has each component that ``config`` names; the trees are read as far as that takes.

    Raises:
        UserError: none has one of them.
    """
    made = {*config.rules, *(JUDGED if config.judge else ())}
    wanted = {name for name in (*config.weights, *config.budgets) if name not in made}
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
