"""A scripted shopper. Its noise affects the actions only; its thoughts are always correct."""

import random
from collections.abc import Mapping

from treeagent.envs.base import probability
from treeagent.envs.shop.catalogue import Catalogue, Product
from treeagent.envs.shop.goals import Goal
from treeagent.envs.shop.session import Session, ShopOptions
from treeagent.envs.visit import ToolEnv

_MISREADS = 0.2
"""Share of errors that name something that is not on the page. They show how to continue after a refusal."""


class ShopDemonstrator:
    """Searches, opens a product that fits, checks every requirement on its page, chooses the options and buys.

    A thought compares what the conversation shows so far with what the instruction asks for, even if the action is then
    an error, so a model that imitates it learns to verify. With probability ``noise``, a decision is an error: a query
    without most keywords, another product of the page or a misread id, a wrong or forgotten option, or a purchase
    despite a mismatch. Errors that are visible on the page are corrected at the next decision, unless that is an error,
    too.
    """

    def __init__(self, env: ToolEnv[Goal, Session], catalogue: Catalogue, options: ShopOptions, noise: float) -> None:
        self._env, self._catalogue, self._options = env, catalogue, options
        self._noise = probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        goal, session = self._env.key, self._env.visit
        errs = rng.random() < self._noise
        match session.page:
            case "results":
                return self._on_results(goal, session, rng, errs)
            case "product":
                return self._on_product(goal, session, rng, errs)
            case _:
                return "", _search(goal, rng, errs)

    def _on_results(self, goal: Goal, session: Session, rng: random.Random, errs: bool) -> tuple[str, str]:
        seen = [self._product(each) for each in session.results[: (session.number + 1) * self._options.page_size]]
        page = {label: self._product(each) for label, each in session.listed(self._options).items()}
        # The ranking puts the title with most words of the query first. A title with fewer cannot be the target.
        best = max((_title_words(goal, product) for product in seen if goal.type in product.title), default=0)
        judgements: list[str] = []
        for label, product in page.items():
            verdict = _verdict(goal, session, product, best)
            judgements.append(f"{label} {verdict}")
            if verdict == "fits":
                return " . ".join(judgements), f"click[{self._slip(label, page, rng) if errs else label}]"
        thought = " . ".join(judgements)
        if session.query != _query(goal) and not errs:
            return thought, f"search[{_query(goal)}]"
        if session.last_page(self._options):
            return thought, _search(goal, rng, errs)
        return thought, "click[next >]"

    def _slip(self, meant: str, page: Mapping[str, Product], rng: random.Random) -> str:
        """Return the label of a similar product on the page, or a misread label."""
        others = [label for label in page if label != meant]
        alike = [label for label in others if page[label].type == page[meant].type] or others
        if alike and rng.random() >= _MISREADS:
            return rng.choice(alike)
        if self._options.labels == "number":
            return str(self._options.page_size + 1)
        return f"B{rng.randrange(len(self._catalogue.products)):04d}"

    def _on_product(self, goal: Goal, session: Session, rng: random.Random, errs: bool) -> tuple[str, str]:
        product = self._product(session.product_id)
        chosen = dict(session.chosen)
        checks = [(attribute, attribute in product.attributes) for attribute in goal.attributes]
        checks += [(value, product.group_of(value) is not None) for value in goal.options]
        judgements: list[str] = []
        leaves = "click[buy now]" if errs else "click[< prev]"
        for what, holds in checks:
            judgements.append(f"{what} {'yes' if holds else 'no'}")
            if not holds:
                return " . ".join(judgements), leaves
        judgements.append(_price(goal, product))
        if product.price > goal.price_limit:
            return " . ".join(judgements), leaves
        missing = [value for value in goal.options if value not in chosen.values()]
        if not missing:
            return "all chosen", "click[buy now]"
        thought = f"{missing[0]} not chosen" if chosen else " . ".join(judgements)
        if not errs:
            return thought, f"click[{missing[0]}]"
        offered = dict(product.options)[product.group_of(missing[0]) or ""]
        slips = [f"click[{value}]" for value in offered if value != missing[0]]
        if rng.random() < _MISREADS:
            slips = [f"click[{value}]" for value in self._catalogue.option_values if value not in offered]
        forgets = f"click[{missing[1]}]" if len(missing) > 1 else "click[buy now]"
        return thought, rng.choice((rng.choice(slips), forgets)) if slips else forgets

    def _product(self, identifier: str) -> Product:
        return self._catalogue.products[identifier]


def _verdict(goal: Goal, session: Session, product: Product, best: int) -> str:
    """Judge a product by its line in the results: "seen" if opened before, "other" if another product, "over" if too
    expensive, "fits" otherwise."""
    if product.id in session.opened:
        return "seen"
    if goal.type not in product.title or _title_words(goal, product) < best:
        return "other"
    return "fits" if product.price <= goal.price_limit else "over"


def _query(goal: Goal) -> str:
    return " ".join((*goal.attributes, goal.type))


def _search(goal: Goal, rng: random.Random, errs: bool) -> str:
    """Return a search for the whole query or, as an error, for a query without most of its words."""
    sloppy = [goal.type, goal.type.split()[-1], *goal.attributes]
    return f"search[{rng.choice(sloppy) if errs else _query(goal)}]"


def _title_words(goal: Goal, product: Product) -> int:
    """Return the number of words of the query that are in the title."""
    title = product.title.split()
    return sum(word in title for word in _query(goal).split())


def _price(goal: Goal, product: Product) -> str:
    return f"{product.price:.0f} {'under' if product.price <= goal.price_limit else 'over'} {goal.price_limit:.0f}"
