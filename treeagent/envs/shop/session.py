"""A visit to the store as a value, the parsing of calls, and the texts of pages."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.envs.calls import text_tool
from treeagent.envs.shop.catalogue import Product
from treeagent.envs.visit import CallRefused
from treeagent.types import ToolCall


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ShopOptions:
    """Settings of ``ShopEnv``."""

    products: int = Field(default=1000, ge=100, le=9999)
    """Number of products in the catalogue."""
    page_size: int = Field(default=5, ge=1, le=50)
    """Products on a page of results."""
    labels: Literal["id", "number"] = "id"
    """The label of a product on a page of results, which a click on it must name: its id, as in WebShop, or its number
    on the page, which a very small model copies more reliably."""
    catalogue_seed: int = 0
    """Seed of the catalogue and its goals. Another seed gives another store."""
    difficulty: int = Field(default=3, ge=1, le=5)
    """A higher value means more required attributes and options, more near-duplicates, and more attributes that titles
    do not show."""


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

    def key(self) -> tuple[object, ...]:
        """Return a key that is equal for two sessions only if all further actions have the same results in both."""
        return (self.page, self.results, self.number, self.product_id, self.chosen)

    def listed(self, options: ShopOptions) -> dict[str, str]:
        """Return the ids on the current page of results, by label."""
        ids = self.results[self.number * options.page_size : (self.number + 1) * options.page_size]
        return {str(index) if options.labels == "number" else each: each for index, each in enumerate(ids, start=1)}

    def last_page(self, options: ShopOptions) -> bool:
        return (self.number + 1) * options.page_size >= len(self.results)


def text_call(text: str) -> ToolCall:
    """Parse a text in WebShop's grammar into a call. The action's name is case-insensitive.

    Raises:
        CallRefused: the text is not valid.
    """
    match = _TEXT_CALL.fullmatch(text)
    if match is None:
        raise CallRefused("write search[words] or click[button]")
    searches = match[1].lower() == "search"
    return ToolCall("search" if searches else "click", {"query" if searches else "button": match[2]})


def action_and_target(call: ToolCall) -> tuple[str, str]:
    """Return the action of a call and its target. The action is ``search``, a button (``next``, ``back``, ``home``,
    ``buy``), or ``click`` for a target whose meaning depends on the page.

    Raises:
        CallRefused: the target is empty.
    """
    target = plain(" ".join(map(str, call.arguments.values())))
    if not target:
        raise CallRefused("nothing between the brackets")
    return (_BUTTONS.get(target, "click") if call.name == "click" else call.name), target


def plain(text: str) -> str:
    """Return the text in lower case, without redundant spaces."""
    return " ".join(text.lower().split())


def dollars(price: float) -> str:
    """Format a price: ``$54``, or ``$54.99`` if there are cents."""
    return f"${price:.0f}" if price == int(price) else f"${price:.2f}"


def results_page(products: Mapping[str, Product], more: bool) -> str:
    """Write a page of results: one line per product, starting with its label. ``more`` adds the button "next >"."""
    lines = [f"{label} {product.title} {dollars(product.price)}" for label, product in products.items()]
    return "\n".join((*lines, "next >") if more else lines)


def product_page(product: Product, *, distinct: bool) -> str:
    """Write a product page: title and price, features, and one line per option group.

    ``distinct`` writes ``Red/Blue`` instead of ``red, blue``, so that words and numbers have other tokens here than in
    instructions and titles. A very small model then learns much sooner to distinguish what the page offers from what
    the instruction asks for.
    """
    brand = f" by {product.brand}" if product.brand else ""
    style, between = (str.capitalize, "/") if distinct else (str, ", ")
    return "\n".join(
        (
            f"{product.title}{brand} {dollars(product.price)}",
            f"features: {', '.join(map(style, product.details))}",
            *(f"{group}: {between.join(map(style, values))}" for group, values in product.options),
        )
    )
