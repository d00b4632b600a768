"""The store: the state of a visit, its pages and calls, the environment, and a scripted shopper."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import pydantic.dataclasses
from pydantic import ConfigDict, Field
from pydantic_core import to_jsonable_python

from treeagent.envs.base import ToolSpec, probability
from treeagent.envs.calls import text_tool
from treeagent.envs.shop.catalogue import DIFFICULTIES, Product, SearchEngine, generate
from treeagent.envs.shop.goals import GeneratedGoals, Goal, purchase_reward
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.types import Split, Task, ToolCall


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ShopOptions:
    """Settings of ``ShopEnv``."""

    products: int = Field(default=1000, ge=100, le=9999)
    """Number of products in the catalogue."""
    page_size: int = Field(default=5, ge=1, le=50)
    """Products on a page of results."""
    labels: Literal["id", "number"] = "id"
    """What a click on a product of a page of results must name: its id, as in WebShop, or its number on the page, which
    a very small model copies more reliably."""
    difficulty: int = Field(default=3, ge=1, le=5)
    """More required attributes and options, more near-duplicates, and more attributes that titles do not show."""


TOOLS = (
    text_tool("search", "Search the store by words of product titles, from any page.", "query", read_only=True),
    text_tool(
        "click",
        "Click a product of the page of results, by what its line begins with, or an option value of the open product, "
        "or one of these buttons: next > (further results), < prev (back), back to search, buy now (ends the visit).",
        "button",
    ),
)
"""WebShop's two actions. Demonstrations write them as texts; tool formats call them by name."""
_TEXT_CALL = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)
_BUTTONS = {"next >": "next", "< prev": "back", "back to search": "home", "buy now": "buy"}
_MAX_RESULTS = 50
"""Most products that a search returns on all its pages together, as in WebShop."""


@dataclass(frozen=True, slots=True)
class Session:
    """The state of a visit. Only demonstrators use ``query`` and ``opened``; no page depends on them."""

    page: Literal["search", "results", "product", "done"] = "search"
    results: tuple[str, ...] = ()
    """Ids of all results, best first, over all result pages."""
    number: int = 0
    """Number of the current result page, from 0."""
    product_id: str = ""
    chosen: tuple[tuple[str, str], ...] = ()
    """Chosen options as (group, value), in the product page's order of groups."""
    query: str = ""
    opened: tuple[str, ...] = ()

    def listed(self, options: ShopOptions) -> dict[str, str]:
        ids = self.results[self.number * options.page_size : (self.number + 1) * options.page_size]
        return {str(index) if options.labels == "number" else each: each for index, each in enumerate(ids, start=1)}

    def last_page(self, options: ShopOptions) -> bool:
        return (self.number + 1) * options.page_size >= len(self.results)


def dollars(price: float) -> str:
    """``$54``, or ``$54.99`` if there are cents."""
    return f"${price:.2f}".removesuffix(".00")


class ShopEnv(ToolEnv[Goal, Session]):
    """A WebShop-style store: search, open, compare, choose options, buy. The actions and the reward of the purchase are
    WebShop's; success is a reward of 1. Unlike there, search is possible from every page, and a product's features are
    on its page."""

    options_type: type[ShopOptions] = ShopOptions
    key_type = Goal
    visit_type = Session
    opening = "search page"

    def __init__(self, options: ShopOptions | None = None) -> None:
        self.options = options or ShopOptions()
        level = DIFFICULTIES[self.options.difficulty]
        catalogue = generate(self.options.products, level)
        self._generated = GeneratedGoals(catalogue, level)
        self._store, self.catalogue = f"shop{self.options.difficulty}-{self.options.products}-0", catalogue
        # Only titles are indexed: hidden attributes must be read on the product page.
        self._engine = SearchEngine({key: each.title for key, each in catalogue.products.items()})
        # Tree search repeats the same queries often.
        self._search = lru_cache(maxsize=4096)(self._engine.search)

    def tools(self) -> Sequence[ToolSpec]:
        return TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [
            Task(f"{self._store}-{split}-{index}", instruction, split, index, to_jsonable_python(goal))
            for index, (goal, instruction) in enumerate(self._generated.take(split, count, start), start=start)
        ]

    def read(self, action: str | ToolCall) -> ToolCall:
        """Parse an action. In a text, the name of the action is case-insensitive."""
        if isinstance(action, ToolCall):
            return super().read(action)
        if (match := _TEXT_CALL.fullmatch(action)) is None:
            raise CallRefused("write search[words] or click[button]")
        searches = match[1].lower() == "search"
        return ToolCall("search" if searches else "click", {"query" if searches else "button": match[2]})

    def act(self, call: ToolCall) -> str:
        target = " ".join(" ".join(map(str, call.arguments.values())).lower().split())
        if not target:
            raise CallRefused("nothing between the brackets")
        before, name = self.visit, _BUTTONS.get(target, "click") if call.name == "click" else call.name
        self.visit = self._next_session(before, name, target)
        return self._shown(before, self.visit)

    def verdict(self) -> float | None:
        """Return WebShop's reward for the purchase; None before it."""
        if self.visit.page != "done":
            return None
        return purchase_reward(self._product(self.visit), self.visit.chosen, self.key)

    def state_key(self) -> str:
        visit = self.visit
        return f"{self.task.id} {(visit.page, visit.results, visit.number, visit.product_id, visit.chosen)}"

    def demonstrator(self, noise: float) -> "ShopDemonstrator":
        return ShopDemonstrator(self, noise)

    def close(self) -> None:
        self._engine.close()

    def _product(self, session: Session) -> Product:
        return self.catalogue.products[session.product_id]

    def _next_session(self, session: Session, name: str, target: str) -> Session:
        """Return the session after the action ``name``: search, click, or one of ``_BUTTONS``."""
        match name, session.page:
            case "search", _:
                return Session("results", self._search(target, _MAX_RESULTS), query=target, opened=session.opened)
            case "back", "product":
                return replace(session, page="results", product_id="", chosen=())
            case "back", "results" if session.number > 0:
                return replace(session, number=session.number - 1)
            case ("home", _) | ("back", "results"):
                return Session(query=session.query, opened=session.opened)
            case "back", _:
                raise CallRefused("no page to go back to")
            case "next", "results" if not session.last_page(self.options):
                return replace(session, number=session.number + 1)
            case "next", _:
                raise CallRefused("no next page")
            case "buy", "product":
                return replace(session, page="done")
            case "buy", _:
                raise CallRefused("open a product first")
            case "click", "results":
                for label, found in session.listed(self.options).items():
                    if label.lower() == target:
                        return replace(session, page="product", product_id=found, opened=(*session.opened, found))
            case "click", "product":
                product = self._product(session)
                if group := product.group_of(target):
                    chosen = {**dict(session.chosen), group: target}
                    still_chosen = tuple((name, chosen[name]) for name, _ in product.options if name in chosen)
                    return replace(session, chosen=still_chosen)
        raise CallRefused(f"no {target} on this page")

    def _shown(self, before: Session, session: Session) -> str:
        match session.page:
            case "done":
                return "order placed"
            case "search":
                return self.opening
            case "product" if before.page == "product":
                return f"chosen: {', '.join(value for _, value in session.chosen)}"
            case "product":
                return self.product_page(self._product(session))
        if not session.results:
            return "no results"
        found = {label: self.catalogue.products[each] for label, each in session.listed(self.options).items()}
        lines = [f"{label} {product.title} {dollars(product.price)}" for label, product in found.items()]
        return "\n".join(lines if session.last_page(self.options) else [*lines, "next >"])

    def product_page(self, product: Product) -> str:
        """Title and price, features, and one line per option group as ``Red/Blue``: with other tokens than in
        instructions, a very small model learns sooner to distinguish what the page offers."""
        lines = [f"{product.title} {dollars(product.price)}"]
        lines.append(f"features: {', '.join(map(str.capitalize, product.details))}")
        lines += [f"{group}: {'/'.join(map(str.capitalize, values))}" for group, values in product.options]
        return "\n".join(lines)


_MISREADS = 0.2
"""Share of errors that name something that is not on the page. They show how to continue after a refusal."""


class ShopDemonstrator:
    """Searches, opens a product that fits, checks every requirement on its page, chooses the options and buys. A
    thought compares what the conversation shows with what the instruction asks for. With probability ``noise``, a
    decision errs: a sloppy query, another product, a wrong or forgotten option, or a purchase despite a mismatch."""

    def __init__(self, env: ShopEnv, noise: float) -> None:
        self._env, self._options, self._noise = env, env.options, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        goal, session = self._env.key, self._env.visit
        errs = rng.random() < self._noise
        match session.page:
            case "results":
                return self._on_results(goal, session, rng, errs)
            case "product":
                return self._on_product(goal, session, rng, errs)
        return "", _search(goal, rng, errs)

    def _on_results(self, goal: Goal, session: Session, rng: random.Random, errs: bool) -> tuple[str, str]:
        products = self._env.catalogue.products
        seen = [products[each] for each in session.results[: (session.number + 1) * self._options.page_size]]
        page = {label: products[each] for label, each in session.listed(self._options).items()}
        # The ranking puts the title with most words of the query first. A title with fewer cannot be the target.
        best = max((_title_words(goal, product) for product in seen if goal.type in product.title), default=0)
        judgements: list[str] = []
        for label, product in page.items():
            verdict = "fits" if product.price <= goal.price_limit else "over"
            if product.id in session.opened:
                verdict = "seen"
            elif goal.type not in product.title or _title_words(goal, product) < best:
                verdict = "other"
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
        """The label of a similar product on the page, or a misread label."""
        others = [label for label in page if label != meant]
        alike = [label for label in others if page[label].type == page[meant].type] or others
        if alike and rng.random() >= _MISREADS:
            return rng.choice(alike)
        if self._options.labels == "number":
            return str(self._options.page_size + 1)
        return f"B{rng.randrange(len(self._env.catalogue.products)):04d}"

    def _on_product(self, goal: Goal, session: Session, rng: random.Random, errs: bool) -> tuple[str, str]:
        product, chosen = self._env.catalogue.products[session.product_id], dict(session.chosen)
        has = {attribute: attribute in product.attributes for attribute in goal.attributes}
        has |= {value: product.group_of(value) is not None for value in goal.options}
        checks = [(f"{what} {'yes' if holds else 'no'}", holds) for what, holds in has.items()]
        under = product.price <= goal.price_limit
        checks.append((f"{product.price:.0f} {'under' if under else 'over'} {goal.price_limit:.0f}", under))
        judgements: list[str] = []
        for judgement, holds in checks:
            judgements.append(judgement)
            if not holds:
                return " . ".join(judgements), "click[buy now]" if errs else "click[< prev]"
        missing = [value for value in goal.options if value not in chosen.values()]
        if not missing:
            return "all chosen", "click[buy now]"
        thought = f"{missing[0]} not chosen" if chosen else " . ".join(judgements)
        if not errs:
            return thought, f"click[{missing[0]}]"
        offered = dict(product.options)[product.group_of(missing[0]) or ""]
        slips = [f"click[{value}]" for value in offered if value != missing[0]]
        if rng.random() < _MISREADS:
            slips = [f"click[{value}]" for value in self._env.catalogue.option_values if value not in offered]
        forgets = f"click[{missing[1]}]" if len(missing) > 1 else "click[buy now]"
        return thought, rng.choice((rng.choice(slips), forgets)) if slips else forgets


def _query(goal: Goal) -> str:
    return " ".join((*goal.attributes, goal.type))


def _search(goal: Goal, rng: random.Random, errs: bool) -> str:
    """A search for the whole query or, as an error, for a query without most of its words."""
    sloppy = [goal.type, goal.type.split()[-1], *goal.attributes]
    return f"search[{rng.choice(sloppy) if errs else _query(goal)}]"


def _title_words(goal: Goal, product: Product) -> int:
    title = product.title.split()
    return sum(word in title for word in _query(goal).split())
