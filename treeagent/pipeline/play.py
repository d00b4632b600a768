"""Play held-out tasks: greedily, or by planning with a search and then executing the plan.

Nothing that chooses an action sees a reward of the environment: search plans on a dynamics that withholds rewards, and
only the execution of the plan is scored.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from treeagent.config import Mode, RunConfig
from treeagent.envs.base import Env
from treeagent.envs.dynamics import paid
from treeagent.pipeline.imagination import Imagination
from treeagent.pipeline.outcomes import Outcome, limits_met
from treeagent.seams import resolve
from treeagent.search.config import METHODS, Limits
from treeagent.search.decide import best_path, most_visited_path
from treeagent.search.node import Edge, Tree, reaches
from treeagent.search.searcher import Growth, Searcher, create_trees, last_node, make_search, take_step
from treeagent.types import Action, Dynamics, Policy, State, Task, Value, derive_seed, is_concurrent

Episode = tuple[Growth, list[Edge]]
"""An episode: a tree, and its only path, which is the steps so far."""
OnEnd = Callable[[Outcome, Tree], None]
"""Hears of each episode when it ends, before its plan's cost and limits are known."""
Played = tuple[list[Outcome], list[Tree], list[Tree]]
"""Outcomes, trees and episodes, each in the order of the tasks; no trees where nothing was planned."""


@dataclass(frozen=True, slots=True)
class Actors:
    """The policies and the value function with which a checkpoint plays."""

    sampling: Policy
    """Samples candidate actions for search."""
    greedy: Policy
    value: Value | None


def playable_together(env: Env, parallel: int, tasks: Sequence[Task]) -> list[Sequence[Task]]:
    """Split tasks into groups whose episodes may be played at the same time: all, or as many as there are ``parallel``
    instances of an environment that cannot go back to an earlier state."""
    size = parallel if env.snapshot_kind == "none" else len(tasks)
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


async def play(
    actors: Actors,
    blind: Dynamics,
    verified: Dynamics,
    tasks: Sequence[Task],
    mode: Mode,
    config: RunConfig,
    on_end: OnEnd = lambda outcome, episode: None,
) -> Played:
    """Plan on ``blind``, execute the plan on ``verified``, and continue greedily if a plan ends before its task does.

    If planning failed, the outcome holds the error, whatever the greedy continuation achieved.
    """
    seeds, trees, limits = episode_seeds(config, mode, tasks), list[Tree](), config.search.limits
    if mode != "greedy":
        searcher = _searcher(actors, blind, mode, config)
        limits = searcher.config.limits
        # Every mode runs the same number of simulations at a time, so that none needs more memory than another.
        size = max(len(tasks) * config.search.leaves // searcher.config.leaves, 1)
        for start in range(0, len(tasks), size):
            trees += await searcher.run(tasks[start : start + size], seeds[start : start + size])
    plans = [_plan(mode, tree, config) for tree in trees] or [()] * len(tasks)
    outcomes, episodes = await execute(actors.greedy, verified, tasks, seeds, plans, on_end)
    planned: Sequence[Tree | None] = trees or [None] * len(tasks)
    for outcome, episode, tree in zip(outcomes, episodes, planned, strict=True):
        if tree is not None:
            outcome.budget.add(tree.budget)
            outcome.planning_tokens = tree.budget.generated_tokens
            outcome.error = episode.error = outcome.error or (f"planning failed: {tree.error}" if tree.error else "")
            # This reads withheld rewards, but the episodes are over, so no action can change.
            outcome.found = _found_success(tree)
        outcome.limits = limits_met(outcome, episode, tree, limits)
    return outcomes, trees, episodes


def episode_seeds(config: RunConfig, mode: Mode, tasks: Sequence[Task]) -> list[int]:
    seed = derive_seed(config.seed, "evaluate")
    return [derive_seed(seed, mode, task.id) for task in tasks]


def _searcher(actors: Actors, dynamics: Dynamics, mode: Mode, config: RunConfig) -> Searcher:
    """The search of a mode, without the noise at the root, which is for training only."""
    search = config.search.by(mode)
    if mode == "best_of_n":
        best_of = config.evaluate.best_of
        limits = replace(search.limits, simulations=best_of)
        # Parallel chains share the encoding of their prompt, but only chains that have not started can be left out.
        all_run = limits == Limits(simulations=best_of)
        search = replace(search, limits=limits, leaves=best_of if all_run else config.search.leaves)
    return make_search(actors.sampling, dynamics, search, actors.value, noise=False)


def _plan(mode: Mode, tree: Tree, config: RunConfig) -> Sequence[Edge]:
    """The edges of a finished tree to take."""
    if resolve("search.method", mode, METHODS).takes_visited:
        return most_visited_path(tree)
    return best_path(tree, config.evaluate.decision, config.evaluate.weight)


def _found_success(tree: Tree) -> bool | None:
    """Whether some path of a planned tree ends in a success, by the rewards withheld from planning. They are written to
    the ends."""
    if paid(tree.root.state) is None:
        return None
    totals = list[float | None]()
    for path, node in tree.walk():
        if path and node.final:
            path[-1].own_reward = paid(node.state)
            totals.append(path[-1].own_reward)
    return any(total is not None and reaches(total, 1.0) for total in totals)


async def execute(
    policy: Policy,
    dynamics: Dynamics,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    plans: Sequence[Sequence[Edge]],
    on_end: OnEnd = lambda outcome, episode: None,
) -> tuple[list[Outcome], list[Tree]]:
    """Take the actions of each plan, then those of the policy, until the task ends, or until a step fails or leads to
    a state that the policy cannot read. Returns outcomes and episodes (trees with a single path) in the order of the
    tasks."""
    growths = await create_trees(dynamics, tasks, seeds)
    planned = {id(growth): [edge.action for edge in plan] for growth, plan in zip(growths, plans, strict=True)}

    async def choose(active: Sequence[Episode]) -> dict[int, Action]:
        left = {id(growth): planned[id(growth)][len(path) :] for growth, path in active}
        proposed = await _propose(policy, [one for one in active if not left[id(one[0])]])
        return {growth: actions[0] for growth, actions in left.items() if actions} | proposed

    return await _episodes(dynamics, growths, choose, [policy], on_end)


async def replan(
    actors: Actors,
    model: Dynamics,
    verified: Dynamics,
    tasks: Sequence[Task],
    mode: Mode,
    config: RunConfig,
    on_end: OnEnd = lambda outcome, episode: None,
) -> Played:
    """Model predictive control: search in ``model`` from the episode's real state, take the first action of the best
    path (or, without one, the greedy action) in the environment ``verified``, and search again from there, until the
    task ends. Rewards of the model may guide the choice. Returns the first tree of each task."""
    first: dict[str, Tree] = {}
    broken: dict[str, str] = {}
    predicted = defaultdict[str, float](float)
    """The sum of the model's rewards so far, in place of those that the environment paid, which V(s) must not know."""

    async def choose(active: Sequence[Episode]) -> dict[int, Action]:
        nodes = {growth.tree.task.id: last_node(growth, path) for growth, path in active}

        async def reached(task: Task) -> State:
            return replace(nodes[task.id].state, paid=predicted[task.id])

        searcher = _searcher(actors, Imagination(reached, model), mode, config)
        trees = await searcher.run([growth.tree.task for growth, _ in active], [one.next_seed() for one, _ in active])
        chosen: dict[int, Action] = {}
        for (growth, _), tree in zip(active, trees, strict=True):
            growth.tree.budget.add(tree.budget)
            first.setdefault(tree.task.id, tree)
            if tree.error:
                broken.setdefault(tree.task.id, f"planning failed: {tree.error}")
            if plan := _plan(mode, tree, config):
                chosen[id(growth)] = plan[0].action
                predicted[tree.task.id] += plan[0].reward or 0.0
        return chosen | await _propose(actors.greedy, [one for one in active if id(one[0]) not in chosen])

    seeds = episode_seeds(config, mode, tasks)
    growths = await create_trees(verified, tasks, seeds)
    policies = [each for each in (actors.sampling, actors.greedy, actors.value) if each is not None]
    outcomes, episodes = await _episodes(verified, growths, choose, policies, on_end)
    for outcome, episode in zip(outcomes, episodes, strict=True):
        outcome.error = episode.error = outcome.error or broken.get(outcome.task_id, "")
        outcome.limits = limits_met(outcome, episode, None, config.search.limits)
    return outcomes, [first.get(episode.task.id, episode) for episode in episodes], episodes


async def _episodes(
    dynamics: Dynamics,
    growths: Sequence[Growth],
    choose: Callable[[Sequence[Episode]], Awaitable[dict[int, Action]]],
    policies: Sequence[object],
    on_end: OnEnd,
) -> tuple[list[Outcome], list[Tree]]:
    """Play until each task ends or fails. With concurrent policies, no episode waits for another."""
    runs: list[Episode] = [(growth, []) for growth in growths]

    async def play_until_end(active: list[Episode]) -> None:
        active = [run for run in active if not run[0].tree.error]
        while active:
            chosen = await choose(active)
            active = [run for run in active if not run[0].tree.error]
            for growth, path in active:
                edge = Edge(chosen[id(growth)], prior=1.0)
                last_node(growth, path).edges.append(edge)
                path.append(edge)
            await asyncio.gather(*(take_step(dynamics, growth, path) for growth, path in active))
            playing: list[Episode] = []
            for growth, path in active:
                if (last := path[-1].child) is None or last.ended:
                    on_end(_outcome(growth, path), growth.tree)
                else:
                    playing.append((growth, path))
            active = playing

    independent = all(map(is_concurrent, policies))
    await asyncio.gather(*map(play_until_end, [[run] for run in runs] if independent else [runs]))
    return [_outcome(growth, path) for growth, path in runs], [growth.tree for growth in growths]


def _outcome(growth: Growth, path: Sequence[Edge]) -> Outcome:
    """The outcome of an episode. Its tree gets the same error."""
    tree, nodes = growth.tree, [edge.child for edge in path if edge.child is not None]
    last = nodes[-1] if nodes else tree.root
    if last.unknown and not tree.error:
        tree.error = f"the dynamics has no answer after step {len(path)}"
    return Outcome(
        tree.task.id,
        sum(edge.outcome or 0.0 for edge in path),
        sum(not edge.thought for edge in path),
        tree.budget,
        tree.error,
        invalid=sum(node.invalid for node in nodes),
        cut_off=bool(path) and path[-1].child is last and last.truncated and not last.unknown,
        reasoned=sum(bool(edge.action.thought.strip()) for edge in path),
    )


async def _propose(policy: Policy, active: Sequence[Episode]) -> dict[int, Action]:
    """One action for each episode, by the ``id`` of its growth, or an error of the episode."""
    if not active:
        return {}
    states = [last_node(growth, path).state for growth, path in active]
    proposals = await policy.propose(states, 1, [growth.next_seed() for growth, _ in active])
    actions: dict[int, Action] = {}
    for (growth, _), proposal in zip(active, proposals, strict=True):
        growth.tree.budget.proposals += 1
        growth.tree.budget.generated_tokens += proposal.generated_tokens
        if proposal.error:
            growth.tree.error = proposal.error
        else:
            actions[id(growth)] = proposal.actions[0]
    return actions
