"""A planner and a player that follows it: weighted A* (Pohl 1970) with the heuristic of FF (Hoffmann and Nebel
2001)."""

import heapq
import math
import random
from collections.abc import Callable
from itertools import count as numbers

from treeagent.contrib.worlds.planning.problem import Fact, Problem, State, Step, sentence
from treeagent.envs.base import probability

_PATIENCE = 20_000
"""States that the planner expands before it gives up."""
_WEIGHT = 2
"""Weight of the heuristic: 1 takes ten times as long for hardly shorter plans, 5 gives plans a fifth longer."""


class Planner:
    """Finds plans, which can be longer than necessary, for the states of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._plans: dict[State, tuple[str, ...] | None] = {}
        """Plans by state. A plan is known for every state on its path, so following it needs no further planning."""

    def plan(self, state: State) -> tuple[str, ...] | None:
        """Return actions that lead from ``state`` to the goal; ``None`` if none were found."""
        if state not in self._plans:
            self._plans[state] = left = self._search(state)
            current = state
            while left:
                current, left = self.problem.steps[left[0]].after(current), left[1:]
                self._plans.setdefault(current, left)
        return self._plans[state]

    def _search(self, start: State) -> tuple[str, ...] | None:
        problem, order, expanded = self.problem, numbers(), 0
        costs: dict[State, int] = {start: 0}
        queue: list[tuple[float, int, State, tuple[str, ...]]] = [(0.0, next(order), start, ())]
        while queue and expanded < _PATIENCE:
            _, _, state, plan = heapq.heappop(queue)
            if problem.solved(state):
                return plan
            if len(plan) > costs[state]:  # a shorter way to it was found since
                continue
            expanded += 1
            for name in problem.possible(state):
                then, cost = problem.steps[name].after(state), len(plan) + 1
                if cost < costs.get(then, math.inf):
                    costs[then] = cost
                    if (left := steps_left(problem, then)) < math.inf:
                        heapq.heappush(queue, (cost + _WEIGHT * left, next(order), then, (*plan, name)))
        return None


def steps_left(problem: Problem, state: State) -> float:
    """Return the number of actions of a relaxed plan to the goal, in which no action makes a fact false; infinite if
    there is none. The plan achieves each fact as early as it can."""
    reached, best, left = set(state), dict[Fact, Step](), list(problem.steps.values())
    while not reached.issuperset(problem.goal):
        ready = [step for step in left if step.needs <= reached]
        if not ready:
            return math.inf
        left = [step for step in left if not step.needs <= reached]
        for step in ready:
            for fact in step.adds - reached:
                best.setdefault(fact, step)
        reached |= best.keys()
    actions, pending = set[str](), list(problem.goal)
    while pending:
        step_to = best.get(pending.pop())
        if step_to is not None and step_to.name not in actions:
            actions.add(step_to.name)
            pending += step_to.needs
    return len(actions)


FINISH = "finish"
STUCK = "stuck"
"""The thought if no plan leads to the goal."""
_ENDS = 0.1
"""Probability that an error is to finish too early: often enough that a value model learns that finishing may fail."""


class PlanningDemonstrator:
    """Follows a plan, plans again after an error, and finishes at the goal. Its thought is the next fact of the goal
    that the plan achieves and keeps. If there is no plan, it thinks ``STUCK`` and finishes.

    With probability ``noise`` it errs: one time in ten it finishes, otherwise it takes another possible action.

    Args:
        position: returns the planner of the current problem and the state.
    """

    def __init__(self, position: Callable[[], tuple[Planner, State]], noise: float) -> None:
        self._position, self._noise = position, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        planner, state = self._position()
        problem = planner.problem
        plan = planner.plan(state)
        thought = STUCK if plan is None else _next_goal(problem, state, plan) if plan else "done"
        meant = plan[0] if plan else FINISH
        if rng.random() < self._noise:
            others = [name for name in problem.possible(state) if name != meant]
            if rng.random() < _ENDS:
                return thought, FINISH
            return thought, rng.choice(others or [meant])
        return thought, meant


def _next_goal(problem: Problem, state: State, plan: tuple[str, ...]) -> str:
    states = [state]
    for name in plan:
        states.append(problem.steps[name].after(states[-1]))
    since: dict[str, int] = {}
    for fact in problem.goal:
        wrong = [number for number, each in enumerate(states) if fact not in each]
        if wrong:
            since[sentence(fact)] = wrong[-1]
    return min(since, key=lambda goal: (since[goal], goal))
