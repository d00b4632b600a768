"""A planner and a player that follows it: weighted A* (Pohl 1970) with the heuristic of FF (Hoffmann and Nebel
2001)."""

import heapq
import math
import random
from collections.abc import Callable
from itertools import count as numbers

from treeagent.contrib.worlds.planning.problem import Fact, Problem, State, sentence
from treeagent.envs.base import probability

_PATIENCE = 20_000
"""States that the planner expands before it gives up."""
_WEIGHT = 2
"""Weight of the heuristic: 1 takes ten times as long for hardly shorter plans, 5 gives plans a fifth longer."""


class Planner:
    """Finds plans, which can be longer than necessary, for the states of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self._relaxed = problem, _Relaxed(problem)
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
        problem, order = self.problem, numbers()
        predecessors: dict[State, tuple[State, str] | None] = {start: None}
        costs, estimates, closed = {start: 0}, dict[State, float](), set[State]()
        queue = [(0.0, next(order), start)]
        while queue and len(closed) < _PATIENCE:
            _, _, state = heapq.heappop(queue)
            if state in closed:
                continue
            closed.add(state)
            if problem.solved(state):
                names = list[str]()
                while (before := predecessors[state]) is not None:
                    state, name = before
                    names.append(name)
                return tuple(reversed(names))
            for name in problem.possible(state):
                then = problem.steps[name].after(state)
                cost = costs[state] + 1
                if cost >= costs.get(then, math.inf):
                    continue
                if then not in estimates:
                    estimates[then] = self._relaxed.steps_left(then)
                if estimates[then] < math.inf:
                    costs[then], predecessors[then] = cost, (state, name)
                    closed.discard(then)
                    heapq.heappush(queue, (cost + _WEIGHT * estimates[then], next(order), then))
        return None


class _Relaxed:
    """The delete relaxation of the problem: actions make no fact false, and negative conditions are ignored."""

    def __init__(self, problem: Problem) -> None:
        self._numbers: dict[Fact, int] = {}
        needs, adds = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for step in problem.steps.values():
            if step.adds:
                needs.append(self._fact_numbers(step.when.yes))
                adds.append(self._fact_numbers(step.adds))
        self._needs, self._adds = needs, adds
        self._goal = self._fact_numbers(frozenset(problem.goal))
        self._users: list[list[int]] = [[] for _ in self._numbers]
        for number, facts in enumerate(needs):
            for fact in facts:
                self._users[fact].append(number)

    def steps_left(self, state: State) -> float:
        """Return the number of actions of a relaxed plan to the goal, infinite if there is none. In this plan the
        cheapest action achieves each fact; an action costs 1 plus the sum of the costs of the facts it needs."""
        known = self._numbers
        costs = [math.inf] * len(known)
        by: list[int] = [-1] * len(known)
        missing = [len(facts) for facts in self._needs]
        sums = [1.0] * len(missing)
        # Sorted, since the order of a set, and with it the choice among equal plans, differs between processes.
        queue = sorted((0.0, known[fact]) for fact in state if fact in known)
        for _, fact in queue:
            costs[fact] = 0.0
        ready = [number for number, count in enumerate(missing) if not count]
        while queue or ready:
            if ready:
                number = ready.pop()
                for fact in self._adds[number]:
                    if sums[number] < costs[fact]:
                        costs[fact], by[fact] = sums[number], number
                        heapq.heappush(queue, (sums[number], fact))
                continue
            cost, fact = heapq.heappop(queue)
            if cost > costs[fact]:
                continue
            for number in self._users[fact]:
                missing[number] -= 1
                sums[number] += cost
                if not missing[number]:
                    ready.append(number)
        if any(costs[fact] == math.inf for fact in self._goal):
            return math.inf
        actions, pending, seen = set[int](), list(self._goal), set[int]()
        while pending:
            fact = pending.pop()
            if fact not in seen and by[fact] >= 0:
                seen.add(fact)
                actions.add(by[fact])
                pending += self._needs[by[fact]]
        return len(actions)

    def _fact_numbers(self, facts: State) -> tuple[int, ...]:
        return tuple(self._numbers.setdefault(fact, len(self._numbers)) for fact in sorted(facts))


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
