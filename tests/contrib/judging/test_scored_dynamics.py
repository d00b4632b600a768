"""Steps of an environment with the components of the settings: what is stored, what is paid, and what stays hidden."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from treeagent.agent.think_act import SplitDynamics
from treeagent.config import load_config
from treeagent.contrib.guards.shield import Shield, ShieldedEnv
from treeagent.contrib.judging.components import Step
from treeagent.contrib.judging.config import RewardsConfig
from treeagent.contrib.judging.reweigh import rescored
from treeagent.envs import Env, EnvDynamics, EnvPool, StepResult, make_env, task_to_play
from treeagent.generators.grammar import ReAct
from treeagent.pipeline.build import scored
from treeagent.pipeline.play import Actors, play
from treeagent.search import Edge, Limits, SearchConfig, Tree, from_record, make_search, to_record
from treeagent.types import Action, Dynamics, Proposal, Split, State, Task, ToolCall, Transition, UserError

TABLE = {"outcome": 1.0, "missed": -0.3, "wrong_tool": -0.2, "wrong_arguments": -0.1, "malformed": -0.4, "format": 0.5}


def words(step: Step) -> float:
    return float(len(step.observation.split()))


def hushed(step: Step) -> float | None:
    return None


def nonsense(step: Step) -> float:
    return float("nan")


def dynamics(env: Env, rewards: RewardsConfig, *, reveal: bool = True, weigh: bool = True) -> tuple[Dynamics, Task]:
    config = load_config(None, ["environment.max_steps=10"])
    config = config.__class__(**{**vars(config), "rewards": rewards})
    played = EnvDynamics(env, max_steps=10, reveal_reward=reveal, costs=rewards.budgets)
    return scored(played, played, config, weigh=weigh, reveal=reveal), env.tasks("train", 1)[0]


def steps(env: Env, rewards: RewardsConfig, calls: Sequence[str], reveal: bool = True) -> list[Transition]:
    async def run() -> list[Transition]:
        by, task = dynamics(env, rewards, reveal=reveal)
        state, came = await by.reset(task), []
        for call in calls:
            came.append(await by.step(state, Action(call, call, token_ids=(1, 2))))
            state = came[-1].state
        return came

    return asyncio.run(run())


def toolbox() -> Env:
    return make_env("toolbox", {"least_calls": 1, "most_calls": 1})


class Questions:
    """Proposes four calls of the toolbox: two right ones, a wrong one and a malformed one."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        texts = ("badge_of[mira]", "team_of[tom]", "badge_of[nobody]")
        actions = [Action(text, text, token_ids=(1,), logprobs=(-1.0,)) for text in texts]
        actions.append(Action("?", "", token_ids=(2,), logprobs=(-2.0,), error="no call"))
        return [Proposal((1,), tuple(actions))] * len(states)


def test_the_reference_costs_the_same_on_any_number_of_instances() -> None:
    class Replayed(type(toolbox())):  # type: ignore[misc]
        snapshot_kind = "replay"

    make = partial(Replayed, toolbox().options)  # type: ignore[attr-defined]
    seen = list[object]()
    for env in (make(), EnvPool(make(), make, 2)):
        config = load_config(None, ["rewards.tools=true", "rewards.weights={format=0.5}"])
        played = EnvDynamics(env, max_steps=3)
        grower = make_search(Questions(), scored(played, played, config), SearchConfig(Limits(simulations=9), leaves=2))
        records = [to_record(tree) for tree in asyncio.run(grower.run(toolbox().tasks("train", 3), [0, 1, 2]))]
        assert sum(record["budget"]["environment_steps"] for record in records) > 3 * 9
        seen.append([(record["nodes"], record["budget"] | {"seconds": 0}, record["error"]) for record in records])
        if isinstance(env, EnvPool):
            env.close()
    assert seen[0] == seen[1]


def test_the_asymmetric_table_pays_each_error_its_own_price() -> None:
    env = toolbox()
    env.reset(options={"task": env.tasks("train", 1)[0]})
    [right] = env.reference() or ()
    assert isinstance(right, ToolCall)
    [value] = right.arguments.values()
    other = "badge_of" if right.name != "badge_of" else "team_of"
    calls = [f"{other}[{value}]", f"{right.name}[nobody]", "sing", f"{right.name}[{value}]", "answer[x]"]
    came = steps(env, RewardsConfig(weights=TABLE, tools=True), calls)
    assert [each.reward for each in came] == pytest.approx([-0.2, -0.1, -0.4 - 0.05, 0.0, -0.1])
    assert [each.components["steps"] for each in came] == [1.0] * 5
    assert came[-1].components["outcome"] == 0.0
    [gave_up] = steps(env, RewardsConfig(weights=TABLE, tools=True), ["answer[x]"])
    assert gave_up.reward == pytest.approx(-0.3)


def test_where_rewards_are_withheld_only_costs_with_a_budget_are_given() -> None:
    rewards = RewardsConfig(
        weights={"outcome": 1.0},
        tools=True,
        budgets={"tokens": 9.0, "words": 2.0},
        rules={"words": f"{__name__}:words"},
    )
    [shown] = steps(toolbox(), rewards, ["team_of[nobody]"])
    assert shown.components.keys() > {"outcome", "when", "which", "words"}
    [hidden] = steps(toolbox(), rewards, ["team_of[nobody]"], reveal=False)
    assert hidden.reward is None
    assert hidden.components == {"tokens": 2.0, "words": 3.0}


def test_a_rule_may_be_silent_but_not_say_nonsense() -> None:
    [came] = steps(toolbox(), RewardsConfig(rules={"hushed": f"{__name__}:hushed"}), ["answer[x]"])
    assert "hushed" not in came.components and came.reward == 0.0
    with pytest.raises(UserError, match="nonsense"):
        steps(toolbox(), RewardsConfig(rules={"nonsense": f"{__name__}:nonsense"}), ["answer[x]"])


def test_a_shield_that_refuses_is_a_cost() -> None:
    [came] = steps(
        ShieldedEnv(toolbox(), Shield(deny=("badge_of",))), RewardsConfig(budgets={"forbidden": 0}), ["badge_of[x]"]
    )
    assert (came.components["forbidden"], came.components["invalid"]) == (1.0, 1.0)


class Giving(Env):
    """An environment without snapshots that returns given components with each step."""

    components = ("milestone",)

    def __init__(self, given: Mapping[str, object]) -> None:
        self.given = given

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task_to_play(self, seed, options)
        return "begin", {}

    def step(self, action: str | ToolCall) -> StepResult:
        return "on", 0.0, False, False, {"components": self.given}

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [Task(f"{split}-{place}", "do it", split) for place in range(start, start + count)]


def test_an_environment_gives_components_even_where_no_settings_weigh_them() -> None:
    assert steps(Giving({"milestone": 2}), RewardsConfig(), ["a"])[0].components == {"milestone": 2.0}
    [paid] = steps(Giving({"milestone": 2}), RewardsConfig(weights={"milestone": 0.5}), ["a"])
    assert paid.reward == 1.0
    [nothing] = steps(Giving({}), RewardsConfig(weights={"milestone": 0.5}), ["a"])
    assert nothing.reward == 0.0


@pytest.mark.parametrize(
    "given", [{"milestone": float("nan")}, {"milestone": None}, {"milestone": True}, {"other": 1.0}, ["milestone"]]
)
def test_a_component_without_a_value_fails_its_episode_alone(given: Mapping[str, object]) -> None:
    search = make_search(ANY, dynamics(Giving(given), RewardsConfig())[0], SearchConfig(Limits(simulations=4)))
    [tree] = asyncio.run(search.run(Giving({}).tasks("train", 1), [0]))
    assert "omponent" in tree.error


class Always:
    """Proposes given calls in every state, or only ``then`` after the first step."""

    def __init__(self, *calls: str, then: str = "") -> None:
        self.calls, self.then = calls, then

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [self.proposal(len(state.messages) > 1) for state in states]

    def proposal(self, later: bool) -> Proposal:
        calls = (self.then,) if later and self.then else self.calls
        return Proposal(actions=tuple(Action(call, call, token_ids=(1,), logprobs=(-1.0,)) for call in calls))


ANY = Always("answer[x]", "badge_of[mira]", "team_of[mira]", "sing")


@pytest.mark.parametrize("method", ["mcts", "best_of_n"])
def test_weighing_a_searched_tree_again_by_its_own_weights_changes_nothing(method: str) -> None:
    rewards = RewardsConfig(weights={**TABLE, "steps": -0.01}, tools=True)
    by, task = dynamics(toolbox(), rewards)
    settings = SearchConfig(Limits(simulations=20), method=method)  # type: ignore[arg-type]
    [tree] = asyncio.run(make_search(ANY, by, settings).run([task], [0]))
    [again] = rescored([tree], rewards, {})
    assert to_record(again) == to_record(tree)


class ThenCall:
    """Proposes two thoughts where a turn begins, and two calls after a thought."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        thoughts = [ReAct().read_thought(f"Thought: {words}\nAction:", (1, 2), (-1.0, 0.0)) for words in ("a", "b c")]
        thoughts = [replace(thought, forced=(1,)) for thought in thoughts]
        calls = [Action(f" {call}", call, token_ids=(3, 4, 5), logprobs=(-1.0,) * 3) for call in ("answer[x]", "sing")]
        return [Proposal((7,), tuple(calls if each.messages[-1].partial else thoughts)) for each in states]


def read(step: Step) -> float:
    """What a rule can read of a turn and of the conversation before it."""
    thought, text, ids = step.action.thought, step.action.text, step.action.token_ids
    return len(thought) + 10 * len(text) + 1000 * len(ids) + 10000 * len(step.history)


def turns(tree: Tree) -> list[Edge]:
    return [edge for node in tree.nodes() for edge in node.edges if edge.child is not None and not edge.thought]


def test_a_rule_reads_the_same_turn_in_a_stored_tree_whose_thoughts_are_steps() -> None:
    """A turn has a thought of one sampled and one inserted token, and a call of three tokens."""
    weights = {"outcome": 1.0, "read": 0.001, "tokens": -0.01}
    rewards = RewardsConfig(weights=weights, rules={"read": f"{__name__}:read"})
    by, task = dynamics(toolbox(), rewards)
    grower = make_search(ThenCall(), SplitDynamics(by), SearchConfig(Limits(simulations=12)))
    [tree] = asyncio.run(grower.run([task], [0]))
    assert {edge.components["tokens"] for edge in turns(tree)} == {4.0}
    [again] = rescored([from_record(to_record(tree))], rewards, {"read": read})
    assert to_record(again) == to_record(tree)
    plain = RewardsConfig(weights={"tokens": -0.01})
    [unscored] = asyncio.run(
        make_search(ThenCall(), SplitDynamics(dynamics(toolbox(), RewardsConfig())[0]), grower.config).run([task], [0])
    )
    [told] = rescored([unscored], plain, {})
    assert {edge.components["tokens"] for edge in turns(told)} == {4.0}


def test_at_evaluation_a_plan_over_budget_is_not_taken_and_the_outcome_is_the_environments_own() -> None:
    rewards = RewardsConfig(weights=TABLE, tools=True, budgets={"steps": 1.0})

    greedy, late = Always("answer[x]"), Always("team_of[nobody]", then="answer[x]")
    config = load_config(None)
    for policy, refused in ((late, True), (greedy, False)):
        blind, task = dynamics(toolbox(), rewards, reveal=False)
        verified, _ = dynamics(toolbox(), rewards, weigh=False)
        [outcome], _, _ = asyncio.run(
            play(
                Actors(policy, greedy, None),
                blind,
                verified,
                [task],
                "mcts",
                config.evaluate,
                SearchConfig(Limits(simulations=4), prune_invalid=False),
                0,
                rewards.budgets,
            )
        )
        assert (outcome.plan_refused, outcome.over_budget, outcome.steps) == (refused, False, 1)
        assert outcome.reward == 0.0
        assert outcome.components["missed"] == 1.0 and outcome.components["calls/when"] == 1.0
