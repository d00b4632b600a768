"""Goals drawn from a catalogue, and the instructions that state them."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeagent.envs.shop.catalogue import Catalogue, Difficulty, Product
from treeagent.types import SPLITS, Split, UserError


@dataclass(frozen=True, slots=True)
class Goal:
    """The requirements behind an instruction. They are the answer key, which ``Task.data`` holds."""

    product_id: str
    """A product that meets all requirements."""
    type: str
    category: tuple[str, ...]
    nouns: tuple[str, ...]
    """Nouns of the target's title."""
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Option values to choose."""
    price_limit: float
    """Dollars."""


class GeneratedGoals:
    """Goals drawn from a generated catalogue, until no new ones are found.

    Splits have different target products. A hash of the requirements also assigns each goal to one split, so no
    instruction of one split is a rewording of an instruction of another.
    """

    def __init__(self, catalogue: Catalogue, difficulty: Difficulty, seed: int) -> None:
        self._catalogue = catalogue
        self._difficulty = difficulty
        self._rngs = {split: random.Random(f"goals {seed} {split}") for split in SPLITS}
        self._drawn: dict[Split, list[tuple[Goal, str]]] = {split: [] for split in SPLITS}
        self._seen: set[str] = set()

    def take(self, split: Split, count: int, start: int = 0) -> Sequence[tuple[Goal, str]]:
        """Return pairs (goal, instruction), number ``start`` to ``start + count``.

        Raises:
            UserError: the split seems to have fewer.
        """
        goals, misses = self._drawn[split], 0
        while len(goals) < start + count:
            goal, instruction = self._draw(self._rngs[split], split)
            requirements = _requirements(goal)
            if _is_in_split(goal, split) and requirements not in self._seen:
                self._seen.add(requirements)
                goals.append((goal, instruction))
                misses = 0
                continue
            misses += 1
            if misses > 5000:
                raise UserError(
                    f"{split} goals {start} to {start + count} are asked for, but this store has about "
                    f"{len(goals)}: raise its option products (environment.options.products)"
                )
        return goals[start : start + count]

    def harder(self, goal: Goal, split: Split, rng: random.Random) -> Sequence[tuple[Goal, str]]:
        """Return harder goals: with one more attribute, one more option or a lower price limit. The product still meets
        them, and their requirements belong to the same split."""
        product = self._catalogue.products[goal.product_id]
        groups = {product.group_of(value) for value in goal.options}
        # Options in the order of the page, as in drawn goals, so that equal requirements have the same hash.
        order = [value for _, values in product.options for value in values]
        attributes = [(*goal.attributes, each) for each in product.attributes if each not in goal.attributes]
        values = [value for value in order if product.group_of(value) not in groups]
        harder = [replace(goal, attributes=required) for required in attributes]
        harder += [replace(goal, options=tuple(sorted((*goal.options, each), key=order.index))) for each in values]
        if product.price <= goal.price_limit - 10:
            harder.append(replace(goal, price_limit=goal.price_limit - 10))
        return [(each, _instruction(rng, each, product)) for each in harder if _is_in_split(each, split)]

    def _draw(self, rng: random.Random, split: Split) -> tuple[Goal, str]:
        product = self._catalogue.products[rng.choice(self._catalogue.split_ids[split])]
        hidden_here = self._catalogue.hidden[product.type]
        shown = [attribute for attribute in product.attributes if attribute not in hidden_here]
        hidden = [attribute for attribute in product.attributes if attribute in hidden_here]
        attributes = rng.sample(shown, rng.randint(*self._difficulty.goal_shown))
        attributes += rng.sample(hidden, rng.randint(*self._difficulty.goal_hidden))
        rng.shuffle(attributes)
        groups = sorted(rng.sample(range(len(product.options)), rng.randint(*self._difficulty.goal_options)))
        options = tuple(rng.choice(product.options[group][1]) for group in groups)
        # Like WebShop, draw the limit among the next multiples of ten dollars.
        limit = int(product.price) // 10 * 10 + rng.choice((10, 20))
        goal = Goal(
            product.id,
            product.type,
            product.category,
            tuple(sorted(product.nouns)),
            tuple(attributes),
            options,
            float(limit),
        )
        return goal, _instruction(rng, goal, product)


def _requirements(goal: Goal) -> str:
    return repr((goal.type, sorted(goal.attributes), goal.options, goal.price_limit))


def _is_in_split(goal: Goal, split: Split) -> bool:
    bucket = hashlib.blake2b(_requirements(goal).encode(), digest_size=4).digest()[0]
    return split == SPLITS[bucket % len(SPLITS)]


def _instruction(rng: random.Random, goal: Goal, product: Product) -> str:
    phrase = f"{' '.join(goal.attributes)} {goal.type}"
    article = "an" if phrase[0] in "aeiou" else "a"
    choices = " , ".join(f"{product.group_of(value)} {value}" for value in goal.options)
    return rng.choice(
        (
            f"find {article} {phrase} , {choices} , under ${goal.price_limit:.0f}",
            f"i want {article} {phrase} under ${goal.price_limit:.0f} , {choices}",
            f"buy {article} {phrase} with {choices} , price under ${goal.price_limit:.0f}",
        )
    )
