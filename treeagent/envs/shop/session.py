"""A visit to the store as a value: where the shopper stands, how a call is read, and how pages read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from treeagent.envs.calls import text_tool
from treeagent.envs.shop.catalogue import Product
from treeagent.envs.shop.options import ShopOptions
from treeagent.envs.visit import CallRefused
from treeagent.types import ToolCall

TOOLS = (
    text_tool("search", "Search the store by words of product titles, from any page.", "query", read_only=True),
    text_tool(
        "click",
        "Click a product of the page of results, by what its line begins with, or an option value of the open product, "
        "or one of these buttons: next > (further results), < prev (back), back to search, buy now (ends the visit).",
        "button",
    ),
)
"""WebShop's two actions. Demonstrations write them as texts, other formats call them by name."""
_TEXT_CALL = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)
_BUTTONS = {"next >": "next", "< prev": "back", "back to search": "home", "buy now": "buy"}


@dataclass(frozen=True, slots=True)
class Session:
    """All that a visit remembers. ``query`` and ``opened`` are for demonstrators; no page depends on them."""

    page: Literal["search", "results", "product", "done"] = "search"
    results: tuple[str, ...] = ()
    """Ids found, best first, over all result pages."""
    number: int = 0
    """Result page, from 0."""
    product_id: str = ""
    chosen: tuple[tuple[str, str], ...] = ()
    """(group, value) in the product page's order of groups."""
    query: str = ""
    opened: tuple[str, ...] = ()

    def key(self) -> tuple[object, ...]:
        """Equal for sessions that no further action can tell apart."""
        return (self.page, self.results, self.number, self.product_id, self.chosen)

    def listed(self, options: ShopOptions) -> dict[str, str]:
        """Ids on the current page of results by their labels."""
        ids = self.results[self.number * options.page_size : (self.number + 1) * options.page_size]
        return {str(place) if options.labels == "number" else each: each for place, each in enumerate(ids, start=1)}

    def last_page(self, options: ShopOptions) -> bool:
        return (self.number + 1) * options.page_size >= len(self.results)


def text_call(text: str) -> ToolCall:
    """The call that a text in WebShop's grammar makes, whatever its case.

    Raises:
        CallRefused: it makes none.
    """
    match = _TEXT_CALL.fullmatch(text)
    if match is None:
        raise CallRefused("write search[words] or click[button]")
    searches = match[1].lower() == "search"
    return ToolCall("search" if searches else "click", {"query" if searches else "button": match[2]})


def pressed(call: ToolCall) -> tuple[str, str]:
    """What a call does and to what: a search, a button of every page (``next``, ``back``, ``home``, ``buy``), or a
    click, which the page resolves.

    Raises:
        CallRefused: it names nothing.
    """
    target = plain(" ".join(map(str, call.arguments.values())))
    if not target:
        raise CallRefused("nothing between the brackets")
    return (_BUTTONS.get(target, "click") if call.name == "click" else call.name), target


def plain(text: str) -> str:
    """Lower case, without needless spaces."""
    return " ".join(text.lower().split())


def dollars(price: float) -> str:
    """``$54``, or ``$54.99`` where there are cents."""
    return f"${price:.0f}" if price == int(price) else f"${price:.2f}"


def results_page(products: Mapping[str, Product], more: bool) -> str:
    """One line per product, by its label; ``more`` pages follow."""
    lines = [f"{label} {product.title} {dollars(product.price)}" for label, product in products.items()]
    return "\n".join((*lines, "next >") if more else lines)


def product_page(product: Product, *, distinct: bool) -> str:
    """Title and price, features, one line per option group.

    ``distinct`` writes ``Red/Blue`` for ``red, blue``, so that words and numbers are other tokens here than in
    instructions and titles: a very small model learns much sooner what the page offers and what was only asked for.
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
