"""A visit to the store as a value: where the shopper stands, what a call asks for, and how pages read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from treeagent.envs.base import ToolSpec
from treeagent.envs.shop.catalogue import Product
from treeagent.types import ToolCall

PageName = Literal["search", "results", "product", "done"]
OperationName = Literal["search", "click", "open", "choose", "back", "next", "buy", "home"]


@dataclass(frozen=True, slots=True)
class Session:
    """All that a visit remembers. ``query`` and ``opened`` are for demonstrators; no page depends on them."""

    page: PageName = "search"
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

    def shown(self, page_size: int) -> tuple[str, ...]:
        """Ids on the current page of results."""
        return self.results[self.number * page_size : (self.number + 1) * page_size]

    def last_page(self, page_size: int) -> bool:
        return (self.number + 1) * page_size >= len(self.results)


@dataclass(frozen=True, slots=True)
class Operation:
    """What a call asks for; ``click`` is resolved by the page it falls on."""

    name: OperationName
    argument: str = ""


_TEXT_CALL = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)
_BUTTONS: Mapping[str, OperationName] = {
    "next >": "next",
    "< prev": "back",
    "back to search": "home",
    "buy now": "buy",
}
_TOOL_ARGUMENTS: Mapping[str, tuple[OperationName, str | None, str]] = {
    "search": ("search", "query", "Search the store by words of product titles."),
    "open": ("open", "product", "Open a product listed on the current page, by what its line begins with."),
    "choose": ("choose", "option", "Choose an option value of the open product."),
    "back": ("back", None, "Go back to the previous page."),
    "next": ("next", None, "Go to the next page of results."),
    "buy": ("buy", None, "Buy the open product with the chosen options. Ends the visit."),
}


def tool_specs() -> list[ToolSpec]:
    """The store's tools."""
    return [
        ToolSpec(
            tool,
            description,
            {
                "type": "object",
                "properties": {argument: {"type": "string"}} if argument else {},
                "required": [argument] if argument else [],
                "additionalProperties": False,
            },
            read_only=tool not in ("choose", "buy"),
        )
        for tool, (_, argument, description) in _TOOL_ARGUMENTS.items()
    ]


def parse_call(call: str | ToolCall) -> Operation | str:
    """The operation that a call asks for, or the reason why it asks for none."""
    if isinstance(call, ToolCall):
        return _parse_tool_call(call)
    match = _TEXT_CALL.fullmatch(call)
    if match is None:
        return "write search[words] or click[button]"
    argument = _plain(match[2])
    if not argument:
        return "nothing between the brackets"
    if match[1].lower() == "search":
        return Operation("search", argument)
    button = _BUTTONS.get(argument)
    return Operation(button) if button else Operation("click", argument)


def _parse_tool_call(call: ToolCall) -> Operation | str:
    if call.name not in _TOOL_ARGUMENTS:
        return f"no tool {call.name} , use one of {' '.join(_TOOL_ARGUMENTS)}"
    name, argument, _ = _TOOL_ARGUMENTS[call.name]
    if set(call.arguments) != ({argument} if argument else set()):
        return f"{call.name} takes {argument or 'no argument'}"
    if argument is None:
        return Operation(name)
    value = call.arguments[argument]
    if not isinstance(value, str):
        return f"{argument} must be text"
    if not value.strip():
        return "nothing between the brackets"
    return Operation(name, _plain(value))


def _plain(text: str) -> str:
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
    style, between = (_capital, "/") if distinct else (str, ", ")
    return "\n".join(
        (
            f"{product.title}{brand} {dollars(product.price)}",
            f"features: {', '.join(map(style, product.details))}",
            *(f"{group}: {between.join(map(style, values))}" for group, values in product.options),
        )
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def chosen_line(chosen: Sequence[tuple[str, str]]) -> str:
    return f"chosen: {', '.join(value for _, value in chosen)}"
