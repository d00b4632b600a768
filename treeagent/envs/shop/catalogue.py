"""Products and their words, and a generated catalogue with near-duplicates that differ only on their product pages."""

import random
import re
import sqlite3
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import resources
from typing import NamedTuple

from treeagent.types import SPLITS, Split

OptionGroups = tuple[tuple[str, tuple[str, ...]], ...]
"""(group, values), in the order of the product's page."""


@dataclass(frozen=True, slots=True)
class Product:
    """One product of the store."""

    id: str
    title: str
    type: str
    """The product type, which is also the search term for it; WebShop's ``query``."""
    category: tuple[str, ...]
    """Path from the department down; WebShop's ``product_category``."""
    attributes: tuple[str, ...]
    options: OptionGroups
    price: float
    """Dollars."""
    nouns: frozenset[str]
    """Nouns of the title, for WebShop's type reward."""
    details: tuple[str, ...] = ()
    """Text of the product page in addition to title, price and options."""

    def group_of(self, value: str) -> str | None:
        return next((group for group, values in self.options if value in values), None)


class Difficulty(NamedTuple):
    """The parameters of one value of ``ShopOptions.difficulty``."""

    shown: int
    hidden: int
    """Attributes in a title, and those that only the product page shows."""
    hidden_pool: int
    """How many of a department's ten attributes no title shows."""
    option_groups: int
    family: int
    """Near-duplicates, including the product itself."""
    goal_shown: tuple[int, int]
    """Fewest and most shown attributes of a goal; then the same for hidden attributes and for options."""
    goal_hidden: tuple[int, int]
    goal_options: tuple[int, int]


DIFFICULTIES = {
    1: Difficulty(2, 1, 3, 2, 2, (1, 2), (0, 0), (1, 1)),
    2: Difficulty(1, 2, 3, 2, 2, (1, 1), (1, 1), (1, 1)),
    3: Difficulty(1, 2, 3, 2, 4, (1, 1), (1, 2), (1, 2)),
    4: Difficulty(1, 3, 4, 2, 4, (1, 1), (2, 2), (2, 2)),
    5: Difficulty(1, 4, 5, 3, 5, (1, 1), (3, 3), (2, 3)),
}
# Kinds of differences between a near-duplicate and the first product of its family, with their weights. With these
# weights, a third of the default goals need a second product page.
_DIFFERENCES = {"price": 12, "title": 6, "hidden": 3, "option": 3}
_PRICES = [price for price in range(11, 90) if price % 10]
"""Prices in dollars. None is a multiple of ten, so none equals a goal's limit."""


@dataclass(frozen=True)
class Catalogue:
    """All products of a store."""

    products: Mapping[str, Product]
    """Products by id, sorted by id."""
    split_ids: Mapping[Split, Sequence[str]]
    """Ids of the possible targets of each split. No family is in two splits."""
    hidden: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """For each product type, the attributes that no title shows."""

    @cached_property
    def option_values(self) -> tuple[str, ...]:
        values = {v for product in self.products.values() for _, offered in product.options for v in offered}
        return tuple(sorted(values))


@lru_cache(maxsize=8)
def generate(count: int, difficulty: Difficulty) -> Catalogue:
    """Generate ``count`` products in families of near-duplicates. Equal arguments give equal catalogues."""
    rng = random.Random("catalogue 0")
    table = tomllib.loads(resources.files(__package__).joinpath("departments.toml").read_text(encoding="utf-8"))
    colors = table.pop("colors")
    types: list[tuple[str, str]] = []
    pools: dict[str, tuple[Sequence[str], Sequence[str], OptionGroups]] = {}
    for department, about in table.items():
        types += [(department, type_) for type_ in about["types"].split(", ")]
        attributes = about["attributes"].split(", ")
        rng.shuffle(attributes)
        options = {"color": colors, **about["options"]}
        offers = tuple((group, tuple(values.split(", "))) for group, values in options.items())
        pools[department] = attributes[difficulty.hidden_pool :], attributes[: difficulty.hidden_pool], offers
    families: list[list[Product]] = []
    while (left := count - sum(map(len, families))) > 0:
        round_number, index = divmod(len(families), len(types))
        department, type_ = types[index]
        shown, hidden, offers = pools[department]
        # Rotating the pool gives families of the same type different titles until the pool is used up.
        turned = [*shown[round_number % len(shown) :], *shown[: round_number % len(shown)]]
        family = _family(rng, department, type_, turned, hidden, offers, difficulty, min(difficulty.family, left))
        families.append(family)
    ids = [f"B{number:04d}" for number in range(count)]
    rng.shuffle(ids)
    rng.shuffle(families)
    products: dict[str, Product] = {}
    split_ids: dict[Split, list[str]] = {split: [] for split in SPLITS}
    for number, family in enumerate(families):
        split: Split = ("test", "validation")[number % 5] if number % 5 < 2 else "train"
        for product in family:
            identifier = ids[len(products)]
            products[identifier] = replace(product, id=identifier)
            split_ids[split].append(identifier)
    return Catalogue(
        dict(sorted(products.items())), split_ids, {type_: frozenset(pools[name][1]) for name, type_ in types}
    )


def _family(
    rng: random.Random,
    department: str,
    type_: str,
    shown_pool: Sequence[str],
    hidden_pool: Sequence[str],
    offers: OptionGroups,
    difficulty: Difficulty,
    size: int,
) -> list[Product]:
    """Draw a product and its near-duplicates, ``size`` in total, without ids."""

    def product(shown: Sequence[str], hidden: Sequence[str], options: OptionGroups, price: int) -> Product:
        title, attributes = " ".join((*shown, type_)), tuple(sorted({*shown, *hidden}))
        path, nouns = ("store", department, type_), frozenset(type_.split())
        return Product("", title, type_, path, attributes, options, price, nouns, details=attributes)

    shown = shown_pool[: difficulty.shown]
    hidden = rng.sample(hidden_pool, difficulty.hidden)
    # Some but never all values of each group are offered.
    options = tuple(
        (group, _in_order(rng.sample(values, min(3, len(values) - 1)), values))
        for group, values in offers[: difficulty.option_groups]
    )
    price = rng.choice(_PRICES)
    family = [product(shown, hidden, options, price)]
    while len(family) < size:
        differences = rng.choices(tuple(_DIFFERENCES), tuple(_DIFFERENCES.values()), k=2)
        family.append(
            product(
                _swap(rng, shown, shown_pool) if "title" in differences else shown,
                _swap(rng, hidden, hidden_pool) if "hidden" in differences else hidden,
                _change_offer(rng, options, dict(offers)) if "option" in differences else options,
                rng.choice(_PRICES) if "price" in differences else price,
            )
        )
    return family


def _in_order(chosen: Sequence[str], values: Sequence[str]) -> tuple[str, ...]:
    return tuple(value for value in values if value in chosen)


def _swap(rng: random.Random, chosen: Sequence[str], pool: Sequence[str]) -> list[str]:
    swapped = list(chosen)
    swapped[rng.randrange(len(swapped))] = rng.choice([attribute for attribute in pool if attribute not in chosen])
    return swapped


def _change_offer(rng: random.Random, options: OptionGroups, every: Mapping[str, tuple[str, ...]]) -> OptionGroups:
    """Replace one value of one group by a value that was not offered."""
    group, offered = options[changed := rng.randrange(len(options))]
    swapped = _in_order(_swap(rng, offered, every[group]), every[group])
    return (*options[:changed], (group, swapped), *options[changed + 1 :])


class SearchEngine:
    """Ranks texts by BM25. The texts are given by id."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(
            "CREATE VIRTUAL TABLE listing USING fts5(id UNINDEXED, text, tokenize='porter unicode61')"
        )
        self._connection.executemany("INSERT INTO listing VALUES (?, ?)", texts.items())

    def search(self, query: str, limit: int) -> tuple[str, ...]:
        """Return the ids of the ``limit`` best texts that share a word with ``query``, best first; ties by id."""
        words = re.findall(r"[a-z0-9]+", query.lower())
        if not words:
            return ()
        rows = self._connection.execute(
            "SELECT id FROM listing WHERE listing MATCH ? ORDER BY round(bm25(listing), 9), id LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words[:64]), limit),
        )
        return tuple(identifier for (identifier,) in rows)

    def close(self) -> None:
        self._connection.close()
