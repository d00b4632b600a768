"""The store as an environment."""

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from treeagent.envs.base import Env, SnapshotKind, StepResult, ToolSpec, task_to_play
from treeagent.envs.shop.catalogue import DIFFICULTIES, Catalogue, generate
from treeagent.envs.shop.demonstrator import ShopDemonstrator
from treeagent.envs.shop.engine import SearchEngine
from treeagent.envs.shop.goals import GeneratedGoals, Goal, GoalSource, goal_of, task_of
from treeagent.envs.shop.options import ShopOptions
from treeagent.envs.shop.reward import ExactMatching, Matching, purchase_reward
from treeagent.envs.shop.session import (
    Operation,
    Session,
    chosen_line,
    parse_call,
    product_page,
    results_page,
    tool_specs,
)
from treeagent.types import Split, Task, ToolCall

MAX_RESULTS = 50
"""Products that a search returns over all its pages, as in WebShop."""


@functools.lru_cache(maxsize=8)
def _generated(products: int, seed: int, difficulty: int) -> Catalogue:
    return generate(products, seed, DIFFICULTIES[difficulty])


class ShopEnv(Env):
    """A WebShop-style store: search, open, compare, choose options, buy.

    Text calls in WebShop's grammar (``search[words]``, ``click[button]``) and tool calls do the same. Reward is
    WebShop's, at the purchase and 0 before; success is reward 1. Unlike WebShop, search is possible from every page
    and a product's features stand on its page instead of behind further links.

    Raises:
        ValueError: WebShop files that are missing or of another form.
    """

    options_type = ShopOptions
    snapshot_kind: SnapshotKind = "exact"
    stochastic = False

    def __init__(self, options: ShopOptions | None = None) -> None:
        self.options = options or ShopOptions()
        self._matching: Matching = ExactMatching()
        self._goals: GoalSource
        if self.options.webshop_products is not None:
            # Imported where used: its fuzzy matching is an extra.
            from treeagent.envs.shop.webshop_files import FuzzyMatching, load_webshop

            self._catalogue, self._goals = load_webshop(self.options)
            self._matching = FuzzyMatching()
            self._store = f"webshop{len(self._catalogue.products)}"
        else:
            level, seed = self.options.difficulty, self.options.catalogue_seed
            self._catalogue = _generated(self.options.products, seed, level)
            self._goals = GeneratedGoals(self._catalogue, DIFFICULTIES[level], seed)
            self._store = f"shop{level}-{self.options.products}-{seed}"
        self._engine = SearchEngine(
            self._catalogue.products.values(),
            # In the generated store, what a title hides must be read on the page.
            read_details=self.options.webshop_products is not None,
        )
        # A query's results never change, and search returns to the same queries again and again.
        self._search = functools.lru_cache(maxsize=4096)(self._engine.search)
        self._task: Task | None = None
        self._session = Session(page="done")

    @property
    def catalogue(self) -> Catalogue:
        return self._catalogue

    @property
    def session(self) -> Session:
        return self._session

    @property
    def goal(self) -> Goal:
        """The current task's answer key. For verifiers and demonstrators only."""
        return goal_of(self._current_task())

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``."""
        task = task_to_play(self, seed, options)
        goal_of(task)
        self._task, self._session = task, Session()
        return "search page", {}

    def step(self, action: str | ToolCall) -> StepResult:
        self._current_task()
        operation = parse_call(action)
        outcome = operation if isinstance(operation, str) else self._apply(operation)
        if isinstance(outcome, str):
            return outcome, 0.0, self._session.page == "done", False, {"tool_error": outcome}
        before, self._session = self._session, outcome
        terminated = outcome.page == "done"
        return self._render(before), (self.verify() if terminated else 0.0), terminated, False, {}

    def tools(self) -> Sequence[ToolSpec]:
        return tool_specs()

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [
            task_of(goal, instruction, store=self._store, split=split, index=index)
            for index, (goal, instruction) in enumerate(self._goals.take(split, count, start), start=start)
        ]

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        """The product again, with one requirement more or a tighter price; WebShop's free text has none."""
        return [
            replace(task_of(goal, text, store=self._store, split=task.split, index=task.seed), id=f"{task.id}.{number}")
            for number, (goal, text) in enumerate(self._goals.harder(goal_of(task), task.split, rng))
        ]

    def verify(self) -> float:
        """WebShop's reward of the purchase, in [0, 1]; 0 before there is one."""
        if self._session.page != "done":
            return 0.0
        product = self._catalogue.products[self._session.product_id]
        return purchase_reward(product, self._session.chosen, self.goal, self._matching)

    def snapshot(self) -> object:
        return self._current_task(), self._session

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        match snapshot:
            case (Task() as task, Session() as session):
                self._task, self._session = task, session
            case _:
                raise ValueError(
                    f"a {type(snapshot).__name__} is no snapshot of a ShopEnv: restore what snapshot() gave"
                )

    def state_key(self) -> str:
        return f"{self._current_task().id} {self._session.key()}"

    def demonstrator(self, noise: float) -> ShopDemonstrator | None:
        """A scripted shopper for the generated store; WebShop's free text has none."""
        return ShopDemonstrator(self, noise) if self.options.webshop_products is None else None

    def clickables(self) -> list[str]:
        """Every ``click[...]`` that the current page answers; searching is possible besides."""
        session, buttons = self._session, list[str]()
        if session.page == "results":
            buttons += self.listed(shown=True)
            buttons += [] if session.last_page(self.options.page_size) else ["next >"]
        elif session.page == "product":
            product = self._catalogue.products[session.product_id]
            buttons += [value for _, values in product.options for value in values]
            buttons.append("buy now")
        if session.page in ("results", "product"):
            buttons += ["< prev", "back to search"]
        return [f"click[{button}]" for button in buttons]

    def listed(self, *, shown: bool = False) -> dict[str, str]:
        """Ids on the current page of results by their labels, which are lower case unless as ``shown``."""
        ids = self._session.shown(self.options.page_size)
        if self.options.labels == "number":
            return {str(place): each for place, each in enumerate(ids, start=1)}
        return {each if shown else each.lower(): each for each in ids}

    def close(self) -> None:
        self._engine.close()

    def _current_task(self) -> Task:
        if self._task is None:
            raise ValueError("no episode has begun: call reset first")
        return self._task

    def _apply(self, operation: Operation) -> Session | str:
        """The session after an operation, or the reason why it cannot be done here."""
        session, size = self._session, self.options.page_size
        if session.page == "done":
            return "the order is placed already"
        listed = self.listed() if session.page == "results" else {}
        product = self._catalogue.products[session.product_id] if session.page == "product" else None
        target = operation.argument
        match operation.name:
            case "search":
                return Session("results", self._search(target, MAX_RESULTS), query=target, opened=session.opened)
            case "home":
                return Session(query=session.query, opened=session.opened)
            case "back":
                if product is not None:
                    return replace(session, page="results", product_id="", chosen=())
                if session.page == "search":
                    return "no page to go back to"
                if session.number == 0:
                    return Session(query=session.query, opened=session.opened)
                return replace(session, number=session.number - 1)
            case "next":
                if session.page != "results" or session.last_page(size):
                    return "no next page"
                return replace(session, number=session.number + 1)
            case "buy":
                return replace(session, page="done") if product is not None else "open a product first"
        if operation.name in ("open", "click") and (found := listed.get(target)):
            return replace(session, page="product", product_id=found, opened=(*session.opened, found))
        if operation.name in ("choose", "click") and product is not None and (group := product.group_of(target)):
            chosen = {**dict(session.chosen), group: target}
            return replace(session, chosen=tuple((name, chosen[name]) for name, _ in product.options if name in chosen))
        return f"no {target} on this page"

    def _render(self, before: Session) -> str:
        session, size = self._session, self.options.page_size
        if session.page == "done":
            return "order placed"
        if session.page == "search":
            return "search page"
        if session.page == "product":
            if before.page == "product":
                return chosen_line(session.chosen)
            product = self._catalogue.products[session.product_id]
            return product_page(product, distinct=self.options.webshop_products is None)
        if not session.results:
            return "no results"
        shown = {label: self._catalogue.products[each] for label, each in self.listed(shown=True).items()}
        return results_page(shown, more=not session.last_page(size))
