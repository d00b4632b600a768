"""Play held-out tasks: greedily, or by planning with a search and then executing the plan.

Nothing that chooses an action sees a reward of the environment. Search plans on a dynamics that withholds rewards, and
values leaves by ``Actors.value``. The plan is then executed, and only that execution is scored.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from treeagent.config import EvaluateConfig, Mode
from treeagent.envs.base import Env
from treeagent.envs.dynamics import paid
from treeagent.pipeline.outcomes import Outcome
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.decide import best_path, most_visited_path
from treeagent.search.node import Edge, Tree, reaches
from treeagent.search.searcher import Growth, create_trees, last_node, make_search, take_step
from treeagent.types import Action, Dynamics, Policy, State, Task, Transition, Value, derive_seed, is_concurrent

Episode = tuple[Growth, list[Edge]]
"""An episode: a tree with its task, seeds and budget, and the only path of this tree, which is the steps so far."""


@dataclass(frozen=True, slots=True)
class Actors:
    """The policies and the value function with which a checkpoint plays."""

    sampling: Policy
    """Samples candidate actions for search."""
    greedy: Policy
    value: Value | None


def playable_together(env: Env, parallel: int, tasks: Sequence[Task]) -> list[Sequence[Task]]:
    """Split tasks into groups whose episodes may be played at the same time. These are all tasks, unless the
    environment cannot go back to an earlier state. Then each of its ``parallel`` instances plays one episode to its
    end."""
    size = parallel if env.snapshot_kind == "none" else len(tasks)
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


async def play(
    actors: Actors,
    blind: Dynamics,
    verified: Dynamics,
    tasks: Sequence[Task],
    mode: Mode,
    config: EvaluateConfig,
    search: SearchConfig,
    seed: int,
) -> tuple[list[Outcome], list[Tree], list[Tree]]:
    """Plan on ``blind``, execute the plan on ``verified``, and continue greedily if a plan ends before its task does.

    Every mode uses the settings ``search``, except for the method, the N of best-of-N, and the noise at the root, which
    is for training only. If planning failed, the outcome holds the error, whatever the greedy continuation achieved.

    Returns:
        outcomes, trees and episodes (see ``execute``), in the order of the tasks; no trees for greedy.
    """
    seeds = [derive_seed(seed, mode, task.id) for task in tasks]
    trees: list[Tree] = []
    plans: Sequence[Sequence[Edge]] = [()] * len(tasks)
    if mode != "greedy":
        settings = _settings(mode, config, search)
        searcher = make_search(actors.sampling, blind, settings, actors.value, noise=False)
        # Every mode runs the same number of simulations at a time, so that none needs more memory than another.
        size = max(len(tasks) * search.leaves // settings.leaves, 1)
        for start in range(0, len(tasks), size):
            trees += await searcher.run(tasks[start : start + size], seeds[start : start + size])
        plans = [_plan(mode, tree, config) for tree in trees]
    outcomes, episodes = await execute(actors.greedy, verified, tasks, seeds, plans, search.step_seconds)
    for outcome, tree in zip(outcomes, trees, strict=False):
        outcome.budget.add(tree.budget)
        outcome.error = outcome.error or _planning_error(tree)
        # This reads withheld rewards, but the episodes are over, so no action can change.
        outcome.found = _found_success(tree)
    return outcomes, trees, _with_errors(episodes, outcomes)


def _with_errors(episodes: list[Tree], outcomes: Sequence[Outcome]) -> list[Tree]:
    """The episodes with the errors of their outcomes."""
    for episode, outcome in zip(episodes, outcomes, strict=True):
        episode.error = outcome.error
    return episodes


def _found_success(tree: Tree) -> bool | None:
    """Whether some path of a planned tree ends in a success, by the rewards that were withheld from planning. These are
    written to the ends. In a stochastic environment the answer holds for the random outcomes drawn in planning, not for
    those in execution."""
    if paid(tree.root.state) is None:
        return None
    ends = [(path, paid(node.state)) for path, node in tree.walk() if path and node.final]
    for path, total in ends:
        path[-1].own_reward = total
    return any(total is not None and reaches(total, 1.0) for _, total in ends)


def _planning_error(tree: Tree) -> str:
    return f"planning failed: {tree.error}" if tree.error else ""


def _settings(mode: Mode, config: EvaluateConfig, search: SearchConfig) -> SearchConfig:
    settings = search.by(mode)
    if mode != "best_of_n":
        return settings
    limits = replace(search.limits, simulations=config.best_of)
    # Parallel chains share the encoding of their prompt. With any further limit, chains run
    # ``search.leaves`` at a time, because only chains that have not started can be left out.
    all_run = limits == Limits(simulations=config.best_of)
    return replace(settings, limits=limits, leaves=config.best_of if all_run else search.leaves)


async def execute(
    policy: Policy,
    dynamics: Dynamics,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    plans: Sequence[Sequence[Edge]],
    step_seconds: float | None = None,
) -> tuple[list[Outcome], list[Tree]]:
    """Take the actions of each plan, then those of the policy, until the task ends. An episode also ends, with an error
    in its outcome, when a step fails, takes more than ``step_seconds``, or leads to a state that the policy cannot
    read.

    Returns:
        outcomes and episodes in the order of the tasks. An episode is a tree with a single path. Its edges have rewards
        but no search statistics.
    """
    growths = await create_trees(dynamics, tasks, seeds, SearchConfig(step_seconds=step_seconds))
    planned = {id(growth): [edge.action for edge in plan] for growth, plan in zip(growths, plans, strict=True)}

    async def choose(active: Sequence[Episode]) -> dict[int, Action]:
        left = {id(growth): planned[id(growth)][len(path) :] for growth, path in active}
        proposed = await _propose(policy, [one for one in active if not left[id(one[0])]])
        return {growth: actions[0] for growth, actions in left.items() if actions} | proposed

    return await _episodes(dynamics, growths, choose, step_seconds, [policy])


async def replan(
    actors: Actors,
    model: Dynamics,
    verified: Dynamics,
    tasks: Sequence[Task],
    mode: Mode,
    config: EvaluateConfig,
    search: SearchConfig,
    seed: int,
) -> tuple[list[Outcome], list[Tree], list[Tree]]:
    """Model predictive control: search in ``model`` from the episode's real state, take the first action of the best
    path in the environment (``verified``), and search again from there, until the task ends. If search finds no action,
    the policy acts greedily.

    Rewards of the model may guide the choice, since they are its own predictions. Task ids must be distinct.

    Returns:
        outcomes, the first tree of each task (its episode if the reset failed), and episodes (see ``execute``), in the
        order of the tasks.
    """
    assert mode != "greedy"  # greedy does not plan
    settings = replace(_settings(mode, config, search), step_seconds=None)  # the time limit is for the environment
    first: dict[str, Tree] = {}
    broken: dict[str, str] = {}
    predicted = defaultdict[str, float](float)
    """The sum of the model's rewards for the actions taken so far. It replaces the rewards that the environment paid,
    which V(s) must not know."""

    async def choose(active: Sequence[Episode]) -> dict[int, Action]:
        nodes = {growth.tree.task.id: last_node(growth, path) for growth, path in active}
        states = {task_id: replace(node.state, paid=predicted[task_id]) for task_id, node in nodes.items()}
        resumed = _Resumed(model, states)
        searcher = make_search(actors.sampling, resumed, settings, actors.value, noise=False)
        trees = await searcher.run([growth.tree.task for growth, _ in active], [one.next_seed() for one, _ in active])
        chosen: dict[int, Action] = {}
        for (growth, _), tree in zip(active, trees, strict=True):
            growth.tree.budget.add(tree.budget)
            first.setdefault(tree.task.id, tree)
            if tree.error:
                broken.setdefault(tree.task.id, _planning_error(tree))
            if plan := _plan(mode, tree, config):
                chosen[id(growth)] = plan[0].action
                predicted[tree.task.id] += plan[0].reward or 0.0
        return chosen | await _propose(actors.greedy, [one for one in active if id(one[0]) not in chosen])

    seeds = [derive_seed(seed, mode, task.id) for task in tasks]
    growths = await create_trees(verified, tasks, seeds, SearchConfig(step_seconds=search.step_seconds))
    policies = [each for each in (actors.sampling, actors.greedy, actors.value) if each is not None]
    outcomes, episodes = await _episodes(verified, growths, choose, search.step_seconds, policies)
    for outcome in outcomes:
        outcome.error = outcome.error or broken.get(outcome.task_id, "")
    episodes = _with_errors(episodes, outcomes)
    return outcomes, [first.get(task.id, episode) for task, episode in zip(tasks, episodes, strict=True)], episodes


@dataclass(frozen=True, slots=True)
class _Resumed:
    """A dynamics in which the reset of a task returns the current state of its episode."""

    model: Dynamics
    states: Mapping[str, State]

    async def reset(self, task: Task) -> State:
        return self.states[task.id]

    async def step(self, state: State, action: Action) -> Transition:
        return await self.model.step(state, action)


def _plan(mode: Mode, tree: Tree, config: EvaluateConfig) -> Sequence[Edge]:
    """The edges of a finished tree to take."""
    return (
        most_visited_path(tree) if mode == "lookahead" else best_path(tree, config.decision, config.likelihood_weight)
    )


async def _episodes(
    dynamics: Dynamics,
    growths: Sequence[Growth],
    choose: Callable[[Sequence[Episode]], Awaitable[dict[int, Action]]],
    step_seconds: float | None,
    policies: Sequence[object],
) -> tuple[list[Outcome], list[Tree]]:
    """Play until each task ends or fails."""
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
            await asyncio.gather(*(take_step(dynamics, growth, path, step_seconds) for growth, path in active))
            active = [run for run in active if run[1][-1].child is not None and not run[1][-1].child.ended]

    independent = all(map(is_concurrent, policies))
    await asyncio.gather(*map(play_until_end, [[run] for run in runs] if independent else [runs]))
    outcomes = [
        Outcome(
            growth.tree.task.id,
            sum(edge.outcome or 0.0 for edge in path),
            sum(not edge.thought for edge in path),
            growth.tree.budget,
            growth.tree.error or f"the dynamics has no answer after step {len(path)}" * last_node(growth, path).unknown,
            cut_off=bool(path) and (last := path[-1].child) is not None and last.truncated and not last.unknown,
        )
        for growth, path in runs
    ]
    return outcomes, _with_errors([growth.tree for growth, _ in runs], outcomes)


async def _propose(policy: Policy, active: Sequence[Episode]) -> dict[int, Action]:
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
