"""Rescore stored trees: compute their rewards anew under other settings, and store the trees in a run of their own,
from which updates can learn."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from treeagent.config import RunConfig
from treeagent.contrib.judging.agreement import Assessments
from treeagent.contrib.judging.assess import assessor, judge_figures
from treeagent.contrib.judging.cascade import Assessor, value_of
from treeagent.contrib.judging.components import (
    ComponentSums,
    Rule,
    components_of,
    read_rules,
    steps,
    stored_step,
    whole_turn,
    with_rules,
)
from treeagent.contrib.judging.config import ASSESSED, TOOL_SCORES, RewardsConfig
from treeagent.contrib.judging.dynamics import read_only_caller
from treeagent.contrib.judging.judge import ToolCaller
from treeagent.contrib.judging.ledger import FILE as LEDGER
from treeagent.contrib.judging.ledger import Ledger
from treeagent.contrib.judging.reweigh import rescored
from treeagent.envs.dynamics import EnvDynamics
from treeagent.pipeline.build import env_dynamics, environment, reward_value
from treeagent.pipeline.folder import Run
from treeagent.pipeline.index import append, write_trees
from treeagent.pipeline.progress import Progress
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, regular, shard_place, shards
from treeagent.types import ToolCall, UserError, Value
from treeagent.views.figures import tree_figures


def rescore(config: RunConfig, source: Run, view: Run, progress: Progress) -> dict[str, float]:
    """Write the trees of ``source`` to ``view``, with the rewards that ``config.rewards`` gives them. Finished shards
    are kept, so a command that was killed continues after them. Nothing is written to ``source``.

    Returns:
        ``tree_figures`` and ``ComponentSums.figures`` of all trees.

    Raises:
        UserError: a weight or a budget names a component that no tree has.
        RunError: the view was begun with other trees.
    """
    view.record_trees("rescore", source)
    rules, real = read_rules(config.rewards), _real_environment(config)
    ends = _ends(config.rewards, source, view, real)
    jobs = [(name, index) for name in source.collections() for index, _ in enumerate(shards(source.trees, name))]
    require_stored(config.rewards, (tree for name in source.collections() for tree in _read(source, name)))
    with progress.track("rescore", len(jobs)) as advance:
        for name in source.collections():
            for path in shards(source.trees, name):
                _, index = shard_place(path)
                if not shards(view.trees, name, index):
                    trees = list(read_as(from_record, source.trees, name, index))
                    if ends is not None:
                        asyncio.run(assess_trees(trees, ends, rules, real, reward_value(config)))
                    again = rescored(trees, config.rewards, rules, source.config.search.process_weight)
                    append(view.trees, name, write_trees(view.trees, name, index, again))
                advance(1)
            if (bases := source.stages().get(name, {}).get("bases")) is not None:
                view.finish(name, {"bases": bases})  # variations are held out together with the tasks that they vary
    sums, assessed = ComponentSums(), Assessments(config.rewards)
    stored = (tree for name in view.collections() for tree in _read(view, name))
    tree_metrics = tree_figures(assessed.reading(sums.reading(stored)))
    costs, alarms = judge_figures(config.rewards, view.path, "rescore")
    judging = costs | assessed.figures()
    figures = tree_metrics | sums.figures() | judging
    if not view.is_done("rescore"):
        view.log("rescore", {"step": 0, **figures})
        view.finish("rescore", figures | ({"alarms": alarms + assessed.doubts()} if judging else {}))
    return figures


def _ends(config: RewardsConfig, source: Run, view: Run, real: EnvDynamics | None) -> Assessor | None:
    """The assessor of the ends of episodes in ``view``. The view's ledger starts as a copy of the run's ledger, so that
    replies that the run's judge has given are not paid for again."""
    theirs, ours = source.path / LEDGER, view.path / LEDGER
    if config.judge is not None and theirs.is_file() and not ours.exists():
        Ledger(regular(theirs), "rescore").copy_replies(ours)
    return assessor(config, view.path, "rescore", None if real is None else real.env)


def _real_environment(config: RunConfig) -> EnvDynamics | None:
    """The environment in which the judge's tools are called; None if the judge has no tools.

    Raises:
        UserError: the trees hold thoughts as separate steps.
    """
    if config.rewards.judge is None or not config.rewards.judge.tools:
        return None
    if config.search.granularity == "split":
        raise UserError("rewards.judge.tools replays stored episodes, but search.granularity is 'split': leave it out")
    return env_dynamics(environment(config), config, "rescore")


async def assess_trees(
    trees: Sequence[Tree],
    ends: Assessor,
    rules: Mapping[str, Rule],
    real: EnvDynamics | None = None,
    value: Value | None = None,
) -> None:
    """Assess the ends of episodes in trees with ``ends``, and write the resulting reward components in place of those
    of an earlier judge. Rules are evaluated again first. The component ``learned`` is V(s) of the reward model
    ``value``, or the stored V(s) without one. If the judge calls tools, the episode is replayed in ``real``."""

    async def one(tree: Tree, path: Sequence[Edge], node: Node) -> None:
        edge, turn = path[-1], whole_turn(path)

        async def stored() -> float | None:
            return node.value if tree.budget.estimates else None

        unassessed = {name: value for name, value in components_of(edge, turn).items() if name not in ASSESSED}
        components = with_rules(unassessed, rules, stored_step(tree, path))
        learned = stored if value is None else value_of(value, node.state)
        edge.components = components | await ends.assess(
            node.state, components, learned, None if real is None else _tool_caller(real, tree, path)
        )

    found = [
        one(tree, path, node)
        for tree in trees
        for path, node in tree.walk()
        if path and node.ended and not node.unknown and not path[-1].thought
    ]
    await asyncio.gather(*found)


def _tool_caller(real: EnvDynamics, tree: Tree, path: Sequence[Edge]) -> ToolCaller:
    """A function that replays a stored episode and makes the judge's call in its final state."""

    async def call_tool(call: ToolCall) -> str:
        before = state = await real.reset(tree.task)
        for edge in path:
            before, transition = state, await real.step(state, edge.action)
            state = transition.state
            if edge.child is None or state.messages[-1].content != edge.child.state.messages[-1].content:
                return "refused: the environment does not repeat this episode"
        return await read_only_caller(real, before, path[-1].action, state)(call)

    return call_tool


def require_stored(config: RewardsConfig, trees: Iterator[Tree]) -> None:
    """Check that every component that ``config`` names occurs in some tree. Trees are read only until all were found.

    Raises:
        UserError: a component is in no tree.
    """
    computed = {*config.rules, *(ASSESSED if config.assesses else ())}
    rule = (config.rule,) if "rule" in config.tiers else ()
    required = {name for name in (*config.weights, *config.budgets, *rule) if name not in computed}
    if not required:
        return
    seen: set[str] = set()
    for tree in trees:
        for _, edge in steps(tree):
            if edge.child is not None:
                seen |= components_of(edge).keys()
        if seen.intersection(TOOL_SCORES):
            seen |= {*TOOL_SCORES}  # calls were scored; a kind of error that never occurred leaves no component
        if required <= seen:
            return
    for name in sorted(required - seen):
        fix = "collect trees with rewards.tools=true" if name in TOOL_SCORES else f"they have {', '.join(sorted(seen))}"
        raise UserError(
            f"the component {name!r} of rewards.weights, rewards.budgets or rewards.rule is in no stored step: {fix}"
        )


def _read(run: Run, name: str) -> Iterator[Tree]:
    return read_as(from_record, run.trees, name)
