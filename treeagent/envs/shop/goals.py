"""Goals drawn from a catalogue, the instructions that state them, and WebShop's reward."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Goals drawn from a generated catalogue. Splits have different target products, and a hash of the requirements
    assigns each goal to one split, so no instruction of one split is a rewording of one of another."""

    def __init__(self, catalogue: Catalogue, difficulty: Difficulty) -> None:
        self._catalogue = catalogue
        self._difficulty = difficulty
        self._rngs = {split: random.Random(f"goals 0 {split}") for split in SPLITS}
        self._drawn: dict[Split, list[tuple[Goal, str]]] = {split: [] for split in SPLITS}
        self._seen: set[str] = set()

    def take(self, split: Split, count: int, start: int = 0) -> Sequence[tuple[Goal, str]]:
        """Return pairs (goal, instruction), number ``start`` to ``start + count``."""
        goals, misses = self._drawn[split], 0
        while len(goals) < start + count:
            goal, instruction = self._draw(self._rngs[split], split)
            requirements = repr((goal.type, sorted(goal.attributes), goal.options, goal.price_limit))
            bucket = hashlib.blake2b(requirements.encode(), digest_size=4).digest()[0]
            misses += 1
            if split == SPLITS[bucket % len(SPLITS)] and requirements not in self._seen:
                self._seen.add(requirements)
                goals.append((goal, instruction))
                misses = 0
            if misses > 5000:
                raise UserError(
                    f"{split} goals {start} to {start + count} are asked for, but this store has about "
                    f"{len(goals)}: raise its option products (environment.options.products)"
                )
        return goals[start : start + count]

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
        nouns = tuple(sorted(product.nouns))
        goal = Goal(product.id, product.type, product.category, nouns, tuple(attributes), options, float(limit))
        phrase = f"{' '.join(attributes)} {product.type}"
        article = "an" if phrase[0] in "aeiou" else "a"
        choices = " , ".join(f"{product.group_of(value)} {value}" for value in options)
        instructions = (
            f"find {article} {phrase} , {choices} , under ${limit}",
            f"i want {article} {phrase} under ${limit} , {choices}",
            f"buy {article} {phrase} with {choices} , price under ${limit}",
        )
        return goal, rng.choice(instructions)


def type_reward(product: Product, goal: Goal) -> float:
    """Return r_type in {0, 0.1, 0.5, 1}, by the rule of princeton-nlp/WebShop ``web_agent_site/engine/goal.py``.

    Let t be the share of the target title's nouns that are in the bought product's title. r_type is 0 if t = 0; 0.1 if
    t < 0.1; 1 if the product types agree, if two steps of the category path agree, or if t > 0.2; otherwise 0.5.
    """
    target = set(goal.nouns)
    title_score = len(target & product.nouns) / len(target) if target else 0.2
    if title_score == 0.0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    same_category = len(set(product.category) & set(goal.category)) >= 2
    return 1.0 if product.type == goal.type or same_category or title_score > 0.2 else 0.5


def purchase_reward(product: Product, chosen: Sequence[tuple[str, str]], goal: Goal) -> float:
    """Return r = r_type · (matched attributes + matched options + [price ≤ limit]) / (attributes + options + 1), in
    [0, 1], for a purchase with the ``chosen`` options, each (group, value). Matches are exact. The matched options are
    at most those of the goal, as in the paper's equation, but not in WebShop's code."""
    options = sum(value in goal.options for _, value in chosen)
    matched = sum(wanted in product.attributes for wanted in goal.attributes)
    matched += min(options, len(goal.options)) + (product.price <= goal.price_limit)
    return type_reward(product, goal) * matched / (len(goal.attributes) + len(goal.options) + 1)
