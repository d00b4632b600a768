"""``EnvDynamics`` on the shop, with and without its snapshots."""

import asyncio
import dataclasses
import random
from collections.abc import Sequence

import pytest
from faulty_envs import Dice, WordsPolicy

from treeagent.envs import EnvDynamics
from treeagent.envs.base import Env
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Tree
from treeagent.types import Action, Dynamics, Policy, State, Task, Transition

SHOP = ShopEnv(ShopOptions(products=200))


def act(call: str, error: str = "") -> Action:
    return Action(
        f"Thought: so. Action: {call}", "" if error else call, token_ids=(1, 2), logprobs=(-1.0, -1.0), error=error
    )


def reset(dynamics: Dynamics, task: Task) -> State:
    return asyncio.run(dynamics.reset(task))


def step(dynamics: Dynamics, state: State, action: Action) -> Transition:
    return asyncio.run(dynamics.step(state, action))


def demonstrated(task: Task, noise: float = 0.0, seed: int = 0) -> list[str]:
    """The calls of one demonstration, 15 at most."""
    SHOP.reset(options={"task": task})
    player, rng, calls = SHOP.demonstrator(noise), random.Random(seed), list[str]()
    assert player is not None
    while len(calls) < 15 and not (calls and SHOP.visit.page == "done"):
        calls.append(player.act(rng)[1])
        SHOP.step(calls[-1])
    return calls


def test_messages_grow_by_turns() -> None:
    dynamics = EnvDynamics(SHOP, max_steps=9)
    task = SHOP.tasks("train", 1)[0]
    root = reset(dynamics, task)
    assert [message.content for message in root.messages] == [f"{task.prompt}\nsearch page"]
    after = step(dynamics, root, act("search[lamp]"))
    assert after.state.messages[:1] == root.messages
    assert [message.role for message in after.state.messages] == ["user", "assistant", "user"]
    assert after.state.messages[1].token_ids == (1, 2)
    assert after.state.messages[2].content.endswith("next >")
    assert (after.reward, after.terminated, after.truncated, after.invalid, after.cost) == (0.0, False, False, False, 1)
    assert (root.key, after.state.key) == (f"0 {task.id} ('search', (), 0, '', ())", f"1 {SHOP.state_key()}")


def test_states_can_be_stepped_in_any_order() -> None:
    dynamics = EnvDynamics(SHOP, max_steps=9)
    one, two = (reset(dynamics, task) for task in SHOP.tasks("train", 2))
    first = step(dynamics, one, act("search[lamp]"))
    other = step(dynamics, two, act("search[boot]"))
    assert step(dynamics, one, act("search[lamp]")) == first
    second_page = step(dynamics, first.state, act("click[next >]")).state.messages[-1].content
    assert "lamp" in second_page and second_page != first.state.messages[-1].content
    assert step(dynamics, two, act("search[boot]")) == other


def test_equal_places_are_equal_states_only_with_as_many_steps_left() -> None:
    dynamics = EnvDynamics(SHOP, max_steps=9)
    root = reset(dynamics, SHOP.tasks("train", 1)[0])

    def key(*calls: str) -> str | None:
        state = root
        for call in calls:
            state = step(dynamics, state, act(call, error="" if call else "no call")).state
        return state.key

    assert key("search[lamp]", "click[next >]", "click[< prev]") == key("", "search[boot]", "search[lamp]")
    assert key("search[lamp]") != key("search[boot]", "search[lamp]") != key("", "", "search[lamp]")


def grow(env: Env, tasks: Sequence[Task], policy: Policy, reveal_reward: bool = True) -> list[Tree]:
    config = SearchConfig(limits=Limits(simulations=24), candidates=2, options={"widening": 0})
    search = Search(policy, EnvDynamics(env, max_steps=4, reveal_reward=reveal_reward), config)
    return asyncio.run(search.run(tasks, [task.seed for task in tasks]))


def told(tree: Tree) -> list[str]:
    """Every observation of a tree."""
    return [node.state.messages[-1].content for node in tree.nodes()]


def test_a_stochastic_tree_is_the_same_alone_and_among_others() -> None:
    tasks, policy = Dice().tasks("train", 5), WordsPolicy("roll", "roll again")
    together = grow(Dice(), tasks, policy)
    alone = [grow(Dice(), [task], policy)[0] for task in tasks]
    assert [told(tree) for tree in together] == [told(tree) for tree in alone]
    assert len({observation for tree in together for observation in told(tree)}) > 5 * 20


def test_planning_does_not_know_the_luck_of_the_execution() -> None:
    task, policy = Dice().tasks("train", 1), WordsPolicy("roll", "roll again")
    (executed,), (planned,) = (grow(Dice(), task, policy, reveal_reward=reveal) for reveal in (True, False))
    assert set(told(executed)) & set(told(planned)) == {"roll\nshake"}


@pytest.mark.parametrize("index", range(2))
def test_a_hidden_reward_shows_nowhere(index: int) -> None:
    task = SHOP.tasks("test", 4)[index]
    # The same calls under true and flipped labels: one buys the right product, the other the wrong one.
    flipped = dataclasses.replace(
        task, data={**task.data, "attributes": ["nothing"], "options": ["none"], "price_limit": 1.0, "nouns": ["no"]}
    )
    calls = demonstrated(task)
    seen: list[list[Transition]] = []
    for each in (task, flipped):
        dynamics = EnvDynamics(SHOP, max_steps=15, reveal_reward=False)
        state, transitions = reset(dynamics, each), list[Transition]()
        for call in calls:
            transitions.append(step(dynamics, state, act(call)))
            state = transitions[-1].state
        assert all(transition.reward is None for transition in transitions)
        assert transitions[-1].terminated
        seen.append(transitions)
    right, wrong = seen
    assert [t.state.messages for t in right] == [t.state.messages for t in wrong]
    assert [t.state.key for t in right] == [t.state.key for t in wrong]
    assert right[-1].state.messages[-1].content == "order placed"
