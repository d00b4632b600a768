"""WebShop's reward for a purchase: equation 1 of Yao et al. 2022, https://arxiv.org/abs/2207.01206."""

from collections.abc import Sequence

from treeagent.envs.shop.catalogue import Product
from treeagent.envs.shop.goals import Goal


class Matching:
    """Decides whether a product or a chosen option is what the goal asks for. This class requires exact equality, which
    is right for a generated catalogue."""

    def attribute(self, product: Product, wanted: str) -> bool:
        return wanted in product.attributes

    def option(self, product: Product, group: str, value: str, wanted: Sequence[str]) -> bool:
        return value in wanted


WORD_FOR_WORD = Matching()


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


def purchase_reward(
    product: Product, chosen: Sequence[tuple[str, str]], goal: Goal, matching: Matching = WORD_FOR_WORD
) -> float:
    """Return r = r_type · (matched attributes + matched options + [price ≤ limit]) / (attributes + options + 1), in
    [0, 1].

    WebShop's code counts all chosen options that match, which can be more than the goal asks for. Here the count is
    capped, as in the paper's equation.

    Args:
        chosen: (group, value) of each chosen option.
    """
    attributes = sum(matching.attribute(product, wanted) for wanted in goal.attributes)
    options = sum(matching.option(product, group, value, goal.options) for group, value in chosen)
    matched = attributes + min(options, len(goal.options)) + (product.price <= goal.price_limit)
    return type_reward(product, goal) * matched / (len(goal.attributes) + len(goal.options) + 1)
