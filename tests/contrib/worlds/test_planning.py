"""Planning: its rules by hand, its planner against exhaustive search, problems from files, and the contract."""

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import pytest

from treeagent.contrib.worlds.planning import PlanningEnv, PlanningOptions
from treeagent.contrib.worlds.planning.domains import DRAW, draw_tireworld, problem_of, read_domain
from treeagent.contrib.worlds.planning.planner import Planner
from treeagent.contrib.worlds.planning.problem import Problem, State
from treeagent.envs import check_env, make_env
from treeagent.envs.check import check_tasks
from treeagent.types import Task, ToolCall

DOMAINS = ("blocks", "tireworld")
BLOCKS = ["object a block", "object b block", "init on a b", "init ontable b", "init clear a", "init handempty"]
SWAP = [*BLOCKS, "goal on b a"]


def begun(lines: Sequence[str], domain: str = "blocks", **options: object) -> PlanningEnv:
    env = PlanningEnv(PlanningOptions(domain=domain, **options))  # type: ignore[arg-type]
    env.reset(options={"task": Task("own", "plan", data={"problem": list(lines)})})
    return env


def generated(name: str, size: int, count: int) -> Iterator[Problem]:
    domain = read_domain(name)
    for seed in range(count):
        yield problem_of(domain, DRAW[name](size, random.Random(seed)))


def distances(problem: Problem, start: State) -> Mapping[State, int]:
    """Fewest actions to every state that can be reached, by breadth-first search."""
    found, queue = {start: 0}, deque([start])
    while queue:
        state = queue.popleft()
        for name in problem.possible(state):
            then = problem.steps[name].after(state)
            if then not in found:
                found[then] = found[state] + 1
                queue.append(then)
    return found


@pytest.mark.parametrize("domain", DOMAINS)
def test_check_env_finds_nothing(domain: str) -> None:
    env, other = (make_env("planning", {"domain": domain, "size": 3}) for _ in range(2))
    report = check_env(env, env.tasks("train", 1)[0], other=other)
    assert report.passed and not report.skipped, report.violations
    assert report.equal_branches == report.branches > 2
    assert check_tasks(env, 8) == []


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("jump", "no such action, use: pick-up, put-down, stack, unstack, finish"),
        ("unstack a", "write unstack x y"),
        ("unstack b a", "not possible now, this must hold: b is clear, b is on a"),
        ("stack a robot", "stack a robot is never possible"),
        (ToolCall("act", {}), "act needs command"),
    ],
)
def test_a_refused_action_says_what_it_lacks_and_changes_nothing(call: str | ToolCall, reason: str) -> None:
    env = begun(SWAP)
    before = env.state_key()
    assert env.step(call) == (reason, 0.0, False, False, {"tool_error": reason})
    assert env.state_key() == before


@pytest.mark.parametrize(("name", "size"), [("blocks", 4), ("tireworld", 4)])
def test_the_planner_finds_a_plan_where_there_is_one_and_hardly_a_longer_one(name: str, size: int) -> None:
    fewest, planned = 0, 0
    for problem in generated(name, size, 10):
        found = distances(problem, problem.start)
        shortest = min(steps for state, steps in found.items() if problem.solved(state))
        state, plan = problem.start, Planner(problem).plan(problem.start)
        assert plan is not None and len(plan) >= shortest
        for action in plan:
            assert action in problem.possible(state)
            state = problem.steps[action].after(state)
        assert problem.solved(state)
        fewest, planned = fewest + shortest, planned + len(plan)
    assert planned <= 1.05 * fewest


def test_a_wrong_way_in_tireworld_is_a_dead_end_that_nothing_tells() -> None:
    dead = 0
    for seed in range(12):
        env = begun(draw_tireworld(4, random.Random(seed)), "tireworld")
        planner, steps = Planner(env.problem), env.problem.steps
        place = env.visit
        plan = planner.plan(place.state)
        assert plan is not None and len(plan) == 7
        for action in (each for each in env.legal_actions() if each not in (plan[0], "finish")):
            env.restore((env.task, place))
            assert env.step(action)[1:] == (0.0, False, False, {})
            state = steps[action].after(place.state)
            assert planner.plan(state) is None
            assert not any(env.problem.solved(each) for each in distances(env.problem, state))
            assert env.demonstrator(0.0).act(random.Random(0)) == ("stuck", "finish")
            dead += 1
    assert dead == 12


@pytest.mark.parametrize("name", DOMAINS)
def test_without_noise_the_demonstrator_wins_and_with_noise_it_does_not_always(name: str) -> None:
    env = PlanningEnv(PlanningOptions(domain=name, size=3))  # type: ignore[arg-type]
    won = {0.0: 0.0, 0.3: 0.0}
    for noise in won:
        player = env.demonstrator(noise)
        for number, task in enumerate(env.tasks("train", 20)):
            calls = []
            for _ in range(2):  # equal seeds give equal episodes
                env.reset(options={"task": task})
                rng, made = random.Random(number), []
                while env.legal_actions():
                    made.append(player.act(rng))
                    assert "tool_error" not in env.step(made[-1][1])[4]
                calls.append(made)
            assert calls[0] == calls[1]
            won[noise] += env.verify()
    assert won[0.0] == 20
    assert 5 <= won[0.3] < 20
