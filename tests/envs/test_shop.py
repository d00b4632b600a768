"""The generated store: pages, both call formats, snapshots, search and tasks."""

import itertools
import re

import pytest

from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.envs.shop.catalogue import SearchEngine
from treeagent.envs.shop.goals import purchase_reward
from treeagent.types import Split, Task, ToolCall

ENV = ShopEnv()
COUNTS: dict[Split, int] = {"train": 3000, "validation": 400, "test": 400}


def begin(env: ShopEnv = ENV, index: int = 0) -> Task:
    task = env.tasks("train", 1, index)[0]
    env.reset(options={"task": task})
    return task


def do(call: str | ToolCall, env: ShopEnv = ENV) -> str:
    observation, reward, terminated, truncated, info = env.step(call)
    assert (reward, terminated, truncated, info) == (0.0, False, False, {})
    return observation


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("buy it", r"write search\[words\] or click\[button\]"),
        ("click[buy now]", "open a product first"),
        ("click[< prev]", "no page to go back to"),
        ("click[B0001]", "no b0001 on this page"),
        (ToolCall("order", {}), "no tool order"),
        (ToolCall("click", {"button": 1}), "button of click must be of type string"),
    ],
)
def test_a_bad_call_is_an_observation(call: str | ToolCall, reason: str) -> None:
    begin()
    before = ENV.visit
    observation, reward, terminated, truncated, info = ENV.step(call)
    assert re.match(reason, observation)
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"tool_error": observation})
    assert ENV.visit == before


def test_search_ranks_by_shared_words_then_id() -> None:
    target = next(product for product in ENV.catalogue.products.values() if product.type == "hiking boot")
    engine = SearchEngine({key: product.title for key, product in ENV.catalogue.products.items()})
    assert all("lantern" in ENV.catalogue.products[each].title for each in engine.search("lantern", 9))
    ranked = [ENV.catalogue.products[each] for each in engine.search(target.title, 50)]
    assert ranked[0].title == target.title
    alike = [product.id for product in ranked if product.title == target.title]
    assert alike == sorted(alike)
    assert target.id in alike
    shared = [len(set(product.title.split()) & set(target.title.split())) for product in ranked]
    assert shared[0] == max(shared) > shared[-1]
    assert engine.search('boots" OR (', 50) == engine.search("boot or", 50)
    assert engine.search("!?", 50) == ()


@pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 5])
def test_tasks_are_plentiful_disjoint_and_solvable(difficulty: int) -> None:
    env = ShopEnv(ShopOptions(difficulty=difficulty))
    products, requirements = dict[Split, set[str]](), dict[Split, set[str]]()
    for split, count in COUNTS.items():
        tasks = env.tasks(split, count)
        assert len({task.id for task in tasks}) == len({task.prompt for task in tasks}) == count
        goals = [env.key_of(task) for task in tasks]
        for task, goal in zip(tasks, goals, strict=True):
            product = env.catalogue.products[goal.product_id]
            chosen = [(product.group_of(value) or "", value) for value in goal.options]
            assert purchase_reward(product, chosen, goal) == 1.0
            assert all(word in task.prompt for word in (*goal.attributes, *goal.options, goal.type))
            assert f"under ${goal.price_limit:.0f}" in task.prompt
        products[split] = {goal.product_id for goal in goals}
        # Compare requirements without their wording: no requirement may occur in two splits.
        requirements[split] = {
            repr((goal.type, sorted(goal.attributes), sorted(goal.options), goal.price_limit)) for goal in goals
        }
    for one, other in itertools.combinations(COUNTS, 2):
        assert not products[one] & products[other]
        assert not requirements[one] & requirements[other]
