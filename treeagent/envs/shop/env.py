"""The environment of the store."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from pydantic_core import to_jsonable_python

from treeagent.envs.base import ToolSpec
from treeagent.envs.shop.catalogue import DIFFICULTIES, Product, SearchEngine, generate
from treeagent.envs.shop.demonstrator import ShopDemonstrator
from treeagent.envs.shop.goals import WORD_FOR_WORD, GeneratedGoals, Goal, Goals, purchase_reward
from treeagent.envs.shop.session import (
    TOOLS,
    Session,
    ShopOptions,
    action_and_target,
    product_page,
    results_page,
    text_call,
)
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.types import Split, Task, ToolCall

MAX_RESULTS = 50
"""Most products that a search returns on all its pages together, as in WebShop."""


class ShopEnv(ToolEnv[Goal, Session]):
    """A WebShop-style store: search, open, compare, choose options, buy.

    The actions are WebShop's two, as texts (``search[words]``, ``click[button]``) or as tool calls. The reward is
    WebShop's at the purchase, and 0 before; success is a reward of 1. Unlike in WebShop, search is possible from every
    page, and a product's features are on its page instead of behind further links.

    """

    options_type: type[ShopOptions] = ShopOptions
    key_type = Goal
    visit_type = Session
    opening = "search page"

    def __init__(self, options: ShopOptions | None = None) -> None:
        self.options = options or ShopOptions()
        level, seed = DIFFICULTIES[self.options.difficulty], self.options.catalogue_seed
        self.catalogue = generate(self.options.products, seed, level)
        self._goals: Goals = GeneratedGoals(self.catalogue, level, seed)
        self._matching = WORD_FOR_WORD
        self._store = f"shop{self.options.difficulty}-{self.options.products}-{seed}"
        self._distinct = True
        # Only titles are indexed: hidden attributes must be read on the product page.
        self._index({key: each.title for key, each in self.catalogue.products.items()})

    def _index(self, texts: Mapping[str, str]) -> None:
        self._engine = SearchEngine(texts)
        # The results of a query never change, and tree search repeats the same queries often.
        self._search = lru_cache(maxsize=4096)(self._engine.search)

    def tools(self) -> Sequence[ToolSpec]:
        return TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [
            Task(f"{self._store}-{split}-{index}", instruction, split, index, to_jsonable_python(goal))
            for index, (goal, instruction) in enumerate(self._goals.take(split, count, start), start=start)
        ]

    def read(self, action: str | ToolCall) -> ToolCall:
        return super().read(action) if isinstance(action, ToolCall) else text_call(action)

    def act(self, call: ToolCall) -> str:
        before = self.visit
        name, target = action_and_target(call)
        self.visit = self._next_session(before, name, target)
        return self._shown(before, self.visit)

    def verdict(self) -> float | None:
        """Return WebShop's reward for the purchase; None before it."""
        if self.visit.page != "done":
            return None
        return purchase_reward(self._product(self.visit), self.visit.chosen, self.key, self._matching)

    def state_key(self) -> str:
        return f"{self.task.id} {self.visit.key()}"

    def demonstrator(self, noise: float) -> ShopDemonstrator | None:
        return ShopDemonstrator(self, self.catalogue, self.options, noise)

    def close(self) -> None:
        self._engine.close()

    def _product(self, session: Session) -> Product:
        return self.catalogue.products[session.product_id]

    def _next_session(self, session: Session, name: str, target: str) -> Session:
        """Return the session after an action. ``name`` and ``target`` are the results of ``action_and_target``."""
        match name, session.page:
            case "search", _:
                return Session("results", self._search(target, MAX_RESULTS), query=target, opened=session.opened)
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
        """Return the observation in ``session``, given the session ``before`` the action."""
        match session.page:
            case "done":
                return "order placed"
            case "search":
                return self.opening
            case "product" if before.page == "product":
                return f"chosen: {', '.join(value for _, value in session.chosen)}"
            case "product":
                return product_page(self._product(session), distinct=self._distinct)
        if not session.results:
            return "no results"
        products = {label: self.catalogue.products[each] for label, each in session.listed(self.options).items()}
        return results_page(products, more=not session.last_page(self.options))
