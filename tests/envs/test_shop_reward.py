"""WebShop's reward, against values by hand."""

from dataclasses import replace

import pytest

from treeagent.envs.shop.catalogue import Product
from treeagent.envs.shop.goals import Goal, purchase_reward, type_reward

BOOT = Product(
    id="B0001",
    title="leather hiking boot",
    type="hiking boot",
    category=("store", "shoes", "hiking boot"),
    attributes=("leather", "waterproof"),
    options=(("color", ("brown", "black")), ("size", ("9", "10"))),
    price=54,
    nouns=frozenset({"hiking", "boot"}),
)
GOAL = Goal(
    product_id="B0001",
    type="hiking boot",
    category=("store", "shoes", "hiking boot"),
    nouns=("hiking", "boot"),
    attributes=("leather", "waterproof"),
    options=("brown", "10"),
    price_limit=60.0,
)
RIGHT = (("color", "brown"), ("size", "10"))


@pytest.mark.parametrize(
    ("product", "chosen", "reward"),
    [
        (BOOT, RIGHT, 1.0),
        (BOOT, (), 3 / 5),
        (BOOT, (("color", "black"), ("size", "10")), 4 / 5),
        (replace(BOOT, price=60), RIGHT, 1.0),
        (replace(BOOT, price=61), RIGHT, 4 / 5),
        (replace(BOOT, attributes=("leather", "padded")), RIGHT, 4 / 5),
        (replace(BOOT, attributes=(), price=99), (), 0.0),
        # By WebShop's rule, another type of the same department without a common noun is worth nothing.
        (replace(BOOT, type="sandal", nouns=frozenset({"sandal"})), RIGHT, 0.0),
    ],
)
def test_equation_one(product: Product, chosen: tuple[tuple[str, str], ...], reward: float) -> None:
    assert purchase_reward(product, chosen, GOAL) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("nouns", "common", "type_", "category", "expected"),
    [
        (10, 0, "hiking boot", ("store", "shoes"), 0.0),
        (20, 1, "hiking boot", ("store", "shoes"), 0.1),
        (10, 1, "other", ("elsewhere",), 0.5),
        (10, 3, "other", ("elsewhere",), 1.0),
        (10, 1, "hiking boot", ("elsewhere",), 1.0),
        (10, 1, "other", ("store", "shoes"), 1.0),
        (0, 0, "other", ("elsewhere",), 0.5),
    ],
)
def test_type_reward(nouns: int, common: int, type_: str, category: tuple[str, ...], expected: float) -> None:
    target = tuple(f"noun{number}" for number in range(nouns))
    bought = replace(BOOT, nouns=frozenset(target[:common]), type=type_, category=category)
    assert type_reward(bought, replace(GOAL, nouns=target)) == expected
