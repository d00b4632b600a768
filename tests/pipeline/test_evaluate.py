"""How policies are evaluated: labels influence no choice, plans are continued greedily, and intervals are Wilson's."""

import asyncio
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from toy_doors import BothDoors, Doors, Teller, teller_model

from treeagent.config import EvaluateConfig, Mode, RunConfig
from treeagent.envs import EnvDynamics
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.generators.turn import ReAct
from treeagent.pipeline.evaluate import transcript
from treeagent.pipeline.outcomes import Outcome, summarise
from treeagent.pipeline.play import Actors, execute, play, replan
from treeagent.pipeline.report.describe import ending, steps
from treeagent.seams import names
from treeagent.search.config import METHODS, Limits, SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.node import Budget, Edge, Tree
from treeagent.types import (
    Action,
    Dynamics,
    Estimate,
    Message,
    Proposal,
    State,
    Task,
    Transition,
    UserError,
    derive_seed,
)
from treeagent.world_model.fidelity import wilson_interval

SHOP = ShopEnv(ShopOptions(products=200))
SEARCH = SearchConfig(limits=Limits(simulations=24), candidates=5)
EVALUATE = EvaluateConfig(best_of=6, likelihood_weight=0.3)
RUN = RunConfig(seed=1, search=SEARCH, evaluate=EVALUATE)
MODES: tuple[Mode, ...] = ("greedy", *(name for name in names("search.method", METHODS) if name != "critic"))
SEARCHES = tuple(mode for mode in MODES if mode != "greedy")


def act(call: str, logprob: float = -1.0) -> Action:
    return Action(call, call, token_ids=(1, 2), logprobs=(logprob / 2,) * 2)


@dataclass(frozen=True)
class Shopper:
    """Reads the last page and takes one of the actions that it offers; ``greedy`` takes the first."""

    greedy: bool = False

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [self._draw(state, count, random.Random(seed)) for state, seed in zip(states, seeds, strict=True)]

    def _draw(self, state: State, count: int, luck: random.Random) -> Proposal:
        calls = self.offers(state)
        drawn = calls[:1] * count if self.greedy else luck.choices(calls, k=count)
        return Proposal((1,), tuple(act(call, -math.log(len(calls))) for call in drawn))

    @staticmethod
    def offers(state: State) -> list[str]:
        page = state.messages[-1].content
        products = re.findall(r"^\[?(B\d{4})\b", page, re.MULTILINE)
        if "features:" in page:
            groups = [
                values.split("/") for name, values in re.findall(r"^(\w+): (.*)$", page, re.M) if name != "features"
            ]
            return [*(f"click[{value}]" for values in groups for value in values), "click[buy now]"]
        if products:
            return [f"click[{product}]" for product in products]
        if page.startswith("chosen:"):
            return ["click[buy now]"]
        wanted = re.split(" ,| under| with", state.task.prompt)[0].split()[2:]  # the words after "find a"
        return [f"search[{' '.join(wanted[start:])}]" for start in range(len(wanted))]


@dataclass(frozen=True)
class Taste:
    """V(s) from the words of the conversation alone; with ``flat``, all states have the same value."""

    flat: bool = False

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [
            Estimate(0.5 if self.flat else derive_seed(*(each.content for each in state.messages)) / 2**63)
            for state in states
        ]


@dataclass
class Recorder:
    """Wraps a dynamics and records the actions taken in each task."""

    inner: Dynamics
    actions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    async def reset(self, task: Task) -> State:
        self.actions[task.id] = []
        return await self.inner.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        self.actions[state.task.id].append(action.text)
        return await self.inner.step(state, action)


def relabelled(task: Task) -> Task:
    """The same instruction with another answer key."""
    other = {"attributes": ["unheard of"], "options": ["nowhere to be had"], "price_limit": 1.0}
    return replace(task, data={**task.data, **other})


def played(
    tasks: Sequence[Task], mode: Mode, value: Taste | None, *, reveal: bool = False
) -> tuple[list[Outcome], Mapping[str, list[str]], list[Tree]]:
    actors = Actors(Shopper(), Shopper(greedy=True), value)
    blind = EnvDynamics(SHOP, max_steps=8, reveal_reward=reveal)
    verified = Recorder(EnvDynamics(SHOP, max_steps=8))
    outcomes, trees, _ = asyncio.run(play(actors, blind, verified, tasks, mode, RUN))
    return outcomes, verified.actions, trees


@pytest.mark.parametrize(
    ("mode", "value"),
    [
        (mode, value)
        for mode in MODES
        for value in (Taste(), Taste(flat=True), None)
        if value or mode != "rollouts"  # which want a value where no reward is seen
    ],
)
def test_no_label_reaches_a_choice(mode: Mode, value: Taste | None) -> None:
    tasks = SHOP.tasks("test", 6)
    true, actions, trees = played(tasks, mode, value)
    false, others, other_trees = played([relabelled(task) for task in tasks], mode, value)
    assert actions == others
    assert all(len(taken) >= 2 for taken in actions.values())
    assert sum(one.reward != two.reward for one, two in zip(true, false, strict=True)) >= 2
    for tree, other in zip(trees, other_trees, strict=True):
        for (path, node), (other_path, twin) in zip(tree.walk(), other.walk(), strict=True):
            assert [edge.action for edge in path] == [edge.action for edge in other_path]
            assert [(edge.visits, edge.value_sum) for edge in node.edges] == [
                (edge.visits, edge.value_sum) for edge in twin.edges
            ]
            assert all(edge.reward is None for edge in path)


def replayed(tree: Tree) -> list[float]:
    """The returns of all paths to an end in a planned tree, replayed in an environment that reveals rewards."""
    dynamics, returns = EnvDynamics(SHOP, max_steps=8), list[float]()

    async def play_path(path: Sequence[Edge]) -> float:
        state, total = await dynamics.reset(tree.task), 0.0
        for edge in path:
            transition = await dynamics.step(state, edge.action)
            state, total = transition.state, total + (transition.reward or 0.0)
        return total

    for path, node in tree.walk():
        if path and node.ended:
            returns.append(asyncio.run(play_path(path)))
    return returns


@pytest.mark.parametrize("mode", MODES)
def test_what_planning_found_is_told_afterwards_and_reaches_no_choice(mode: Mode) -> None:
    """With the true labels, ``found`` agrees with a replay of every end. With labels that nothing meets, nothing is
    found, after the same choices."""
    tasks = SHOP.tasks("test", 12)
    true, actions, trees = played(tasks, mode, Taste())
    false, others, _ = played([relabelled(task) for task in tasks], mode, Taste())
    assert actions == others
    if mode == "greedy":
        assert {outcome.found for outcome in (*true, *false)} == {None}
        return
    assert [outcome.found for outcome in true] == [max(replayed(tree), default=0.0) == 1.0 for tree in trees]
    assert any(outcome.found for outcome in true) or mode in (
        "beam",
        "best_first",
        "ab_mcts",
        "rebase",
    )  # with a random V they reach few ends
    assert not any(outcome.found for outcome in false)
    for tree in trees:
        ends = [path for path, node in tree.walk() if path and node.ended]
        assert [path[-1].own_reward for path in ends] == pytest.approx(replayed(tree))


@pytest.mark.parametrize("mode", SEARCHES)
def test_that_leak_would_be_seen(mode: Mode) -> None:
    """The same comparison with a dynamics that reveals rewards: here the choices follow the labels."""
    tasks = SHOP.tasks("test", 12)
    _, actions, _ = played(tasks, mode, Taste(flat=True), reveal=True)
    _, others, _ = played([relabelled(task) for task in tasks], mode, Taste(flat=True), reveal=True)
    assert actions != others


@pytest.mark.parametrize("mode", SEARCHES)
def test_the_plan_is_what_is_executed(mode: Mode) -> None:
    tasks = SHOP.tasks("test", 5)
    outcomes, actions, trees = played(tasks, mode, Taste())
    assert [tree.task for tree in trees] == list(tasks)
    for task, tree, outcome in zip(tasks, trees, outcomes, strict=True):
        decision = "visits" if mode == "lookahead" else EVALUATE.decision
        plan = [edge.action.text for edge in best_path(tree, decision, likelihood_weight=EVALUATE.weight)]
        assert plan and actions[task.id][: len(plan)] == plan
        assert outcome.steps == len(actions[task.id])
        assert outcome.budget.environment_steps == tree.budget.environment_steps + outcome.steps
        assert outcome.budget.simulations == tree.budget.simulations
        assert 0 < tree.budget.simulations <= (6 if mode == "best_of_n" else 24)


@dataclass(frozen=True)
class Stairs:
    """Five steps up, each worth 0.25 except the last, which ends the task. ``stuck`` raises at the third step."""

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", "0"),))

    async def step(self, state: State, action: Action) -> Transition:
        height = len(state.messages) // 2 + 1
        if state.task.id == "stuck" and height == 3:
            raise OSError("a step is missing")
        said = (Message("assistant", action.text, action.token_ids), Message("user", str(height)))
        after = State(state.task, (*state.messages, *said))
        return Transition(after, 0.0 if height == 5 else 0.25, terminated=height == 5)


@dataclass
class Climber:
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        assert count == 1
        self.asked += [(state.task.id, state.messages[-1].content) for state in states]
        return [Proposal((1,), (act("climb"),)) for _ in states]


@dataclass(frozen=True)
class RightDoor:
    """Always takes the right door."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        both = await BothDoors().propose(states, count, seeds)
        return [replace(proposal, actions=proposal.actions[1:]) for proposal in both]


def replanned(model: Dynamics, mode: Mode = "mcts") -> tuple[Outcome, list[str], list[Tree]]:
    """Plan a task of the doors in ``model``. Returns the outcome, the doors taken and the trees."""
    env = Doors()
    [goal] = env.tasks("test", 1)
    verified = Recorder(EnvDynamics(env, max_steps=2))
    search = SearchConfig(limits=Limits(simulations=16), candidates=2)
    actors = Actors(BothDoors(), RightDoor(), None)
    [outcome], trees, _ = asyncio.run(replan(actors, model, verified, [goal], mode, replace(RUN, search=search)))
    return outcome, [ReAct().read(text).call for text in verified.actions[goal.id]], trees  # type: ignore[misc]


@pytest.mark.parametrize("mode", ["mcts", "lookahead"])
def test_a_plan_in_a_world_model_takes_no_step_of_the_environment_but_its_own(mode: Mode) -> None:
    outcome, doors, [tree] = replanned(teller_model(Teller()), mode)
    assert (outcome.success, doors) == (True, ["r", "r"])
    assert outcome.found is None  # nothing was planned in the environment itself
    assert (outcome.budget.environment_steps, outcome.steps) == (2, 2)
    assert outcome.budget.imagined_steps > 2
    assert tree.root.origin == "real"
    assert {node.origin for node in tree.nodes() if node is not tree.root} == {"imagined"}


@dataclass(frozen=True)
class Broken:
    """Resets like another dynamics, and fails at every step."""

    inner: Dynamics

    async def reset(self, task: Task) -> State:
        return await self.inner.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        raise OSError("a stair is missing")


def test_planning_that_broke_off_is_an_error_however_the_episode_went() -> None:
    actors, tasks = Actors(Climber(), Climber(), None), [Task("free", ""), Task("other", "")]
    outcomes, _, episodes = asyncio.run(play(actors, Broken(Stairs()), Stairs(), tasks, "best_of_n", RUN))
    assert [outcome.reward for outcome in outcomes] == [1.0, 1.0]
    assert all("planning failed: OSError: a stair is missing (test_evaluate.py" in one.error for one in outcomes)
    assert summarise("climber", "best_of_n", outcomes, 1.0)["errors"] == 2
    assert [episode.error for episode in episodes] == [outcome.error for outcome in outcomes]
    again, _, _ = asyncio.run(replan(actors, Broken(Stairs()), Stairs(), tasks, "best_of_n", RUN))
    assert [(outcome.reward, outcome.error) for outcome in again] == [(one.reward, one.error) for one in outcomes]


@dataclass(frozen=True)
class Toll:
    """The first step pays ``toll``. Then "stop" pays 0.2 and ends the task. "on" pays nothing; it ends the task if
    ``ends``."""

    toll: float
    ends: bool

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", "go"),))

    async def step(self, state: State, action: Action) -> Transition:
        begins = len(state.messages) == 1
        said = (Message("assistant", action.text, action.token_ids), Message("user", "stop or on"))
        reward = self.toll if begins else 0.2 * (action.call == "stop")
        after = State(state.task, (*state.messages, *said))
        return Transition(after, reward, terminated=not begins and (self.ends or action.call == "stop"))


@dataclass(frozen=True)
class AtTheToll:
    """Says "go" at first, then "stop" and "on"."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        calls = [("go",) if len(state.messages) == 1 else ("stop", "on") for state in states]
        return [Proposal(actions=tuple(map(act, each))) for each in calls]


@dataclass(frozen=True)
class Expecting:
    """Expects an outcome of 0.9, as a value head does: V(s) is 0.9 less what was paid."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(0.9 - state.paid) for state in states]


@pytest.mark.parametrize("toll", [0.0, 0.5, 0.8])
def test_a_plan_in_a_world_model_sees_no_reward_that_was_really_paid(toll: float) -> None:
    """The model expects that the first step pays 0.5. To go on is then worth 0.9 - 0.5 = 0.4, which is more than the
    0.2 for a stop, whatever the environment paid."""
    actors = Actors(AtTheToll(), AtTheToll(), Expecting())
    search = SearchConfig(limits=Limits(simulations=6), candidates=2, options={"widening": 0})
    config = RunConfig(search=search, evaluate=EvaluateConfig(decision="value"))
    outcomes, _, [episode] = asyncio.run(
        replan(actors, Toll(0.5, ends=False), Toll(toll, ends=True), [Task("t", "")], "mcts", config)
    )
    assert [edge.action.call for node in episode.nodes() for edge in node.edges] == ["go", "on"]
    assert outcomes[0].reward == toll


def test_where_a_plan_stops_the_policy_goes_on() -> None:
    climber, stairs = Climber(), Recorder(Stairs())
    tasks = [Task("planned", ""), Task("half", ""), Task("free", ""), Task("stuck", "")]
    plans = [[Edge(act(f"plan {place}"), 1.0) for place in range(length)] for length in (7, 2, 0, 1)]
    outcomes, episodes = asyncio.run(execute(climber, stairs, tasks, [0] * 4, plans))
    assert stairs.actions == {
        "planned": [f"plan {place}" for place in range(5)],  # no step after the end
        "half": ["plan 0", "plan 1", "climb", "climb", "climb"],
        "free": ["climb"] * 5,
        "stuck": ["plan 0", "climb", "climb"],
    }
    assert sorted(climber.asked) == sorted(
        [("half", str(height)) for height in (2, 3, 4)]
        + [("free", str(height)) for height in range(5)]
        + [("stuck", str(height)) for height in (1, 2)]
    )
    assert [outcome.reward for outcome in outcomes] == [1.0, 1.0, 1.0, 0.5]
    assert [outcome.success for outcome in outcomes] == [True, True, True, False]
    assert [outcome.steps for outcome in outcomes] == [5, 5, 5, 3]
    assert [bool(outcome.error) for outcome in outcomes] == [False, False, False, True]
    assert outcomes[3].error.startswith("OSError: a step is missing (test_evaluate.py, line")
    assert [outcome.budget.environment_steps for outcome in outcomes] == [5, 5, 5, 2]
    assert [outcome.budget.proposals for outcome in outcomes] == [0, 3, 5, 2]
    assert [outcome.budget.generated_tokens for outcome in outcomes] == [0, 6, 10, 4]
    said = {episode.task.id: [edge.action.text for edge in steps(episode)] for episode in episodes}
    assert said == stairs.actions  # the last action of "stuck" failed, and is listed, too
    assert [ending(episode) for episode in episodes] == [*["solved"] * 3, f"broke off: {outcomes[3].error}"]


def test_summary_by_hand() -> None:
    outcomes = [
        Outcome("a", 1.0, 4, Budget(environment_steps=10, generated_tokens=100), invalid=1, reasoned=4),
        Outcome(
            "b", 0.5, 6, Budget(environment_steps=20, generated_tokens=50), invalid=3, limits=("environment.max_steps",)
        ),
        Outcome("c", 0.0, 2, Budget(environment_steps=3), "OSError: gone"),
        Outcome("d", 0.1 + 0.2 + 0.7, 4, Budget()),
    ]
    low, high = wilson_interval(2, 4)
    assert summarise("dpo", "mcts", outcomes, 1.5) == {
        "policy": "dpo",
        "mode": "mcts",
        "success": 0.5,
        "success_low": low,
        "success_high": high,
        "reward": pytest.approx(0.625),
        "tasks": 4,
        "solved": "1001",
        "errors": 1,
        "limits": {"environment.max_steps": 0.25},
        "error": "OSError: gone",
        "steps": 4.0,
        "invalid": 0.25,  # 4 of 16 steps
        "reasoned": 0.25,
        "environment_steps": 33,
        "generated_tokens": 150,
        "seconds": 1.5,
    }


def test_episodes_that_all_failed_before_a_step_are_no_measurement() -> None:
    failed = [Outcome("a", 0.0, 0, error="the server answered 500"), Outcome("b", 0.0, 0, error="later")]
    with pytest.raises(UserError, match=r"all 2 episodes of dpo in mode greedy .*answered 500"):
        summarise("dpo", "greedy", failed, 1.5)
    for other in (Outcome("c", 0.0, 1, error="OSError: gone"), Outcome("c", 0.0, 0)):
        assert summarise("dpo", "greedy", [*failed, other], 1.5)["success"] == 0.0


def test_each_episode_is_told_when_it_ends_and_reads_as_a_transcript() -> None:
    tasks, ended = SHOP.tasks("test", 3), list[tuple[Outcome, Tree]]()
    actors, dynamics = Actors(Shopper(), Shopper(greedy=True), None), EnvDynamics(SHOP, max_steps=8)
    hear = lambda outcome, episode: ended.append((outcome, episode))  # noqa: E731
    outcomes, _, episodes = asyncio.run(play(actors, dynamics, dynamics, tasks, "greedy", RUN, hear))
    assert sorted(outcome.task_id for outcome, _ in ended) == sorted(outcome.task_id for outcome in outcomes)
    words = transcript(episodes[0])
    assert tasks[0].prompt in words
    assert words.count("agent: ") == outcomes[0].steps
    assert words.endswith(ending(episodes[0]))
