"""A scripted player that follows the planner."""

import random
from collections.abc import Callable

from treeagent.envs.base import probability
from treeagent.envs.planning.planner import Planner
from treeagent.envs.planning.problem import Problem, State
from treeagent.envs.planning.words import sentence

FINISH = "finish"
STUCK = "stuck"
"""The thought if no plan leads to the goal."""
_ENDS = 0.1
"""Probability that an error is to finish too early. If errors were drawn uniformly, most episodes would end with such
an error. If it never happened, every finished episode would be a success, and a value model could not learn that
finishing may fail."""


class PlanningDemonstrator:
    """Follows a plan, plans again after an error, and finishes at the goal. Its thought is the next fact of the goal
    that the plan achieves and keeps. If there is no plan, it thinks ``STUCK`` and finishes.

    With probability ``noise`` it errs: one time in ten it finishes, otherwise it takes another possible action.

    Args:
        position: returns the current problem, its planner and the state.
    """

    def __init__(self, position: Callable[[], tuple[Problem, Planner, State]], noise: float) -> None:
        self._position, self._noise = position, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        problem, planner, state = self._position()
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
    """Return the first fact of the goal that the plan achieves and keeps."""
    states = [state]
    for name in plan:
        states.append(problem.steps[name].after(states[-1]))
    case = next(case for case in problem.goal if case.holds(states[-1]))
    since: dict[str, int] = {}
    for fact, truth in [*((fact, True) for fact in case.yes), *((fact, False) for fact in case.no)]:
        wrong = [number for number, each in enumerate(states) if (fact in each) != truth]
        if wrong:
            since[sentence(fact) if truth else f"not {sentence(fact)}"] = wrong[-1]
    return min(since, key=lambda goal: (since[goal], goal))
