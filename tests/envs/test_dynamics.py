"""``EnvDynamics`` on the shop, with its snapshots and without."""

import asyncio
import dataclasses
import random

import pytest

from treeagent.envs import EnvDynamics
from treeagent.envs.base import SnapshotKind
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.types import Action, Dynamics, State, Task, Transition

SHOP = ShopEnv(ShopOptions(products=200))


class ReplayedShop(ShopEnv):
    snapshot_kind: SnapshotKind = "replay"


def act(call: str, error: str = "") -> Action:
    return Action(
        f"Thought: so. Action: {call}", "" if error else call, token_ids=(1, 2), logprobs=(-1.0, -1.0), error=error
    )


def reset(dynamics: Dynamics, task: Task) -> State:
    return asyncio.run(dynamics.reset(task))


def step(dynamics: Dynamics, state: State, action: Action) -> Transition:
    return asyncio.run(dynamics.step(state, action))


def demonstrated(task: Task, noise: float = 0.0, seed: int = 0) -> list[str]:
    """The calls of one demonstration, at most 15."""
    SHOP.reset(options={"task": task})
    player, rng, calls = SHOP.demonstrator(noise), random.Random(seed), list[str]()
    assert player is not None
    while len(calls) < 15 and not (calls and SHOP.session.page == "done"):
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
    assert root.key != after.state.key == SHOP.state_key()


def test_a_prompt_in_the_observation_is_not_said_twice() -> None:
    task = dataclasses.replace(SHOP.tasks("train", 1)[0], prompt="search")
    assert reset(EnvDynamics(SHOP, max_steps=3), task).messages[0].content == "search page"


def test_states_can_be_stepped_in_any_order() -> None:
    dynamics = EnvDynamics(SHOP, max_steps=9)
    one, two = (reset(dynamics, task) for task in SHOP.tasks("train", 2))
    first = step(dynamics, one, act("search[lamp]"))
    other = step(dynamics, two, act("search[boot]"))
    assert step(dynamics, one, act("search[lamp]")) == first
    second_page = step(dynamics, first.state, act("click[next >]")).state.messages[-1].content
    assert "lamp" in second_page and second_page != first.state.messages[-1].content
    assert step(dynamics, two, act("search[boot]")) == other


def test_a_success_ends_with_the_verifiers_reward() -> None:
    dynamics = EnvDynamics(SHOP, max_steps=15)
    task = SHOP.tasks("train", 1)[0]
    state = reset(dynamics, task)
    for call in demonstrated(task):
        transition = step(dynamics, state, act(call))
        state = transition.state
    assert (transition.reward, transition.terminated, transition.truncated) == (1.0, True, False)
    with pytest.raises(ValueError, match="is over"):
        step(dynamics, state, act("search[lamp]"))


def test_a_malformed_action_touches_nothing_but_costs_a_step() -> None:
    dynamics = EnvDynamics(SHOP, max_steps=2)
    root = reset(dynamics, SHOP.tasks("train", 1)[0])
    first = step(dynamics, root, act("", error="no call found"))
    assert first.state.messages[-1].content == "Invalid action: no call found"
    assert (first.invalid, first.truncated, first.reward, first.state.key) == (True, False, 0.0, root.key)
    second = step(dynamics, first.state, act("search[lamp]"))
    assert (second.invalid, second.truncated, second.terminated, second.reward) == (False, True, False, 0.0)
    assert step(dynamics, first.state, act("", error="again")).truncated


def test_a_refused_call_is_invalid() -> None:
    dynamics = EnvDynamics(SHOP, max_steps=5)
    root = reset(dynamics, SHOP.tasks("train", 1)[0])
    transition = step(dynamics, root, act("click[buy now]"))
    assert transition.invalid
    assert transition.state.key == root.key


def test_replayed_steps_are_paid_for() -> None:
    dynamics = EnvDynamics(ReplayedShop(SHOP.options), max_steps=9)
    root = reset(dynamics, SHOP.tasks("train", 1)[0])
    first = step(dynamics, root, act("search[lamp]"))
    second = step(dynamics, first.state, act("click[next >]"))
    assert (first.cost, second.cost) == (1, 1)
    assert step(dynamics, first.state, act("click[next >]")) == dataclasses.replace(second, cost=2)
    assert step(dynamics, second.state, act("click[next >]")).cost == 1
    assert step(dynamics, second.state, act("click[next >]")).cost == 3


@pytest.mark.parametrize("index", range(4))
def test_a_hidden_reward_shows_nowhere(index: int) -> None:
    task = SHOP.tasks("test", 4)[index]
    # The same calls under true and flipped labels: one buys rightly, the other wrongly.
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
    dynamics.stand_at(wrong[-1].state)
    assert SHOP.verify() == 0.0


def test_a_strange_state_is_refused() -> None:
    dynamics = EnvDynamics(SHOP, max_steps=5)
    with pytest.raises(ValueError, match="not made by EnvDynamics"):
        step(dynamics, State(SHOP.tasks("train", 1)[0], ()), act("search[lamp]"))
    with pytest.raises(ValueError, match="max_steps is 0"):
        EnvDynamics(SHOP, max_steps=0)
