"""Read products and goals from WebShop's own files.

Formats and rules follow princeton-nlp/WebShop, ``web_agent_site/engine/engine.py`` (load_products) and ``goal.py``. The
files are not part of this package; WebShop's ``setup.sh`` downloads them.
"""

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, FilePath, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.envs.shop.catalogue import Catalogue, OptionGroups, Product
from treeagent.envs.shop.env import ShopDemonstrator, dollars
from treeagent.envs.shop.goals import Goal, reward_of
from treeagent.types import Split, UserError

_WITHOUT_PRICE = 100.0
"""WebShop's price, in dollars, for a product without a price in the file."""
_NO_LIMIT = 1_000_000.0
_FUZZY_THRESHOLD = 85
# WebShop finds the nouns of a title with spaCy. Here every content word counts as a noun.
_WORD = re.compile(r"[a-z]{3,}")
_STOP_WORDS = frozenset(
    ("and", "for", "with", "the", "from", "that", "this", "are", "our", "your", "you", "not", "all")
)


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class WebShopOptions(ShopOptions):
    """Settings of ``WebShopEnv``; ``products`` are the most to read from the file."""

    webshop_products: FilePath
    """WebShop's file ``items_shuffle*.json``."""
    webshop_attributes: FilePath | None = None
    """WebShop's file ``items_ins_v2*.json``, with product attributes and synthetic instructions."""
    webshop_instructions: FilePath | None = None
    """WebShop's file ``items_human_ins.json``; unset uses the instructions in ``webshop_attributes``."""


class WebShopEnv(ShopEnv):
    """The store with products and instructions from WebShop's own files. It has no demonstrator."""

    options_type: type[ShopOptions] = WebShopOptions
    extra = "webshop"

    def __init__(self, options: WebShopOptions) -> None:
        self.options = options
        catalogue, self._files = load_webshop(options)
        self._matching = FuzzyMatching()
        texts = {key: each.text for key, each in catalogue.products.items()}
        self._open(f"webshop{len(texts)}", catalogue, texts)

    def goals(self, split: Split, count: int, start: int) -> Sequence[tuple[Goal, str]]:
        return self._files.take(split, count, start)

    def reward(self, product: Product, chosen: Sequence[tuple[str, str]], goal: Goal) -> float:
        return self._matching.reward(product, chosen, goal)

    def product_page(self, product: Product) -> str:
        brand = f" by {product.brand}" if product.brand else ""
        lines = [f"{product.title}{brand} {dollars(product.price)}", f"features: {', '.join(product.details)}"]
        return "\n".join([*lines, *(f"{group}: {', '.join(values)}" for group, values in product.options)])

    def demonstrator(self, noise: float) -> ShopDemonstrator | None:
        return None


class _OptionEntry(BaseModel):
    value: str


class _ProductEntry(BaseModel):
    """The fields used from an element of ``items_shuffle*.json``."""

    asin: str
    name: str
    query: str
    product_category: str
    brand: str | None = None
    full_description: str | None = None
    small_description: list[str] | str | None = None
    pricing: str | None = None
    customization_options: dict[str, list[_OptionEntry] | None] | str | None = None


class _AttributeEntry(BaseModel):
    """One value of ``items_ins_v2*.json``, which is keyed by ASIN."""

    attributes: list[str] = []
    instruction: str | None = None
    instruction_attributes: list[str] | None = None


class _HumanEntry(BaseModel):
    """One instruction in the lists of ``items_human_ins.json``, which is keyed by ASIN."""

    instruction: str
    instruction_attributes: list[str]
    instruction_options: list[str] | dict[str, str]


_Form = TypeVar("_Form")
_Asked = tuple[Product, str, Sequence[str], Sequence[str]]
"""A product, and the instruction, attributes and option values of a goal that asks for it."""


class FuzzyMatching:
    """WebShop's rules without its basic colours: two texts match if their token set ratio is above 85, or if the
    product's text contains the words. Sizes must match exactly."""

    def __init__(self) -> None:
        try:
            from rapidfuzz import fuzz, utils
        except ImportError as error:
            raise UserError("WebShop's files need rapidfuzz: pip install 'treeagent[webshop]'") from error
        self._ratio = fuzz.token_set_ratio
        self._clean = utils.default_process

    def attribute(self, product: Product, wanted: str) -> bool:
        return any(self._is_similar(had, wanted) for had in product.attributes) or wanted in product.text.lower()

    def option(self, product: Product, group: str, value: str, wanted: Sequence[str]) -> bool:
        if value in product.text.lower():
            return True
        return value in wanted if group == "size" else any(self._is_similar(value, each) for each in wanted)

    def reward(self, product: Product, chosen: Sequence[tuple[str, str]], goal: Goal) -> float:
        attributes = sum(self.attribute(product, wanted) for wanted in goal.attributes)
        options = sum(self.option(product, group, value, goal.options) for group, value in chosen)
        return reward_of(product, goal, attributes, options)

    def _is_similar(self, one: str, other: str) -> bool:
        return bool(self._ratio(one, other, processor=self._clean) > _FUZZY_THRESHOLD)


class FileGoals:
    """The files' instructions, shuffled and split as in WebShop: 500 for test, 1,000 for validation, the rest for
    training; of fewer than 3,000, test and validation get a tenth each."""

    def __init__(self, goals: Sequence[tuple[Goal, str]]) -> None:
        shuffled = list(goals)
        random.Random(233).shuffle(shuffled)
        test, validation = (500, 1500) if len(shuffled) >= 3000 else (len(shuffled) // 10, len(shuffled) // 5)
        self._splits: Mapping[Split, Sequence[tuple[Goal, str]]] = {
            "test": shuffled[:test],
            "validation": shuffled[test:validation],
            "train": shuffled[validation:],
        }

    def take(self, split: Split, count: int, start: int = 0) -> Sequence[tuple[Goal, str]]:
        goals = self._splits[split]
        if start + count > len(goals):
            raise UserError(
                f"{split} goals {start} to {start + count} are asked for, but these WebShop files hold {len(goals)}: "
                "ask for fewer or bring larger files"
            )
        return goals[start : start + count]


def load_webshop(options: "WebShopOptions") -> tuple[Catalogue, FileGoals]:
    about: Mapping[str, _AttributeEntry] = {}
    if options.webshop_attributes is not None:
        about = _read(options.webshop_attributes, TypeAdapter(dict[str, _AttributeEntry]))
    products: dict[str, Product] = {}
    for entry in _read(options.webshop_products, TypeAdapter(list[_ProductEntry]))[: options.products]:
        # WebShop drops these entries, too.
        if entry.asin != "nan" and len(entry.asin) <= 10:
            attribute_entry = about.get(entry.asin, _AttributeEntry())
            products.setdefault(entry.asin, _product(entry, attribute_entry.attributes))
    requests: list[_Asked] = []
    if options.webshop_instructions is not None:
        instructions = _read(options.webshop_instructions, TypeAdapter(dict[str, list[_HumanEntry]]))
        for product in products.values():
            requests += _human(product, instructions.get(product.id, ()))
    else:
        for product in products.values():
            requests += _synthetic(product, about.get(product.id, _AttributeEntry()))
    rng = random.Random("limits 0")
    goals = [_goal(*each, rng) for each in requests]
    if not goals:
        raise UserError(
            f"there is no instruction for a product of {options.webshop_products}: set webshop_instructions "
            "(items_human_ins.json) or webshop_attributes (items_ins_v2*.json), of the same WebShop download"
        )
    return Catalogue(dict(sorted(products.items())), {}), FileGoals(goals)


def _read(path: Path, form: TypeAdapter[_Form]) -> _Form:
    try:
        return form.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise UserError(
            f"{path} is not of WebShop's form ({where}: {first['msg']}): fetch it again with WebShop's setup.sh"
        ) from error


def _product(entry: _ProductEntry, attributes: Sequence[str]) -> Product:
    bullets = entry.small_description
    details = [bullets] if isinstance(bullets, str) else list(bullets or ())
    title = " ".join(entry.name.split())
    return Product(
        id=entry.asin,
        title=title,
        type=entry.query.lower().strip(),
        category=tuple(step.strip() for step in entry.product_category.split("›")),
        attributes=tuple(attributes),
        options=_options(entry),
        price=_price(entry),
        nouns=frozenset(_WORD.findall(title.lower())) - _STOP_WORDS,
        brand=entry.brand or "",
        details=tuple(text for text in (*details, entry.full_description or "") if text),
    )


def _options(entry: _ProductEntry) -> OptionGroups:
    if not isinstance(entry.customization_options, dict):
        return ()
    return tuple(
        (group.lower(), tuple(_value(each.value) for each in values))
        for group, values in entry.customization_options.items()
        if values
    )


def _value(text: str) -> str:
    return " ".join(text.replace("/", " | ").lower().split())


def _price(entry: _ProductEntry) -> float:
    """Return the price, drawn at random if the entry has a range of prices."""
    prices = [float(digits) for part in (entry.pricing or "").split("$") if (digits := re.sub(r"[^\d.]", "", part))]
    if not prices:
        return _WITHOUT_PRICE
    if len(prices) == 1:
        return prices[0]
    return round(random.Random(f"price 0 {entry.asin}").uniform(prices[0], prices[1]), 2)


def _human(product: Product, entries: Sequence[_HumanEntry]) -> Iterator[_Asked]:
    for entry in entries:
        options = entry.instruction_options
        values = list(options.values()) if isinstance(options, dict) else options
        if entry.instruction_attributes:
            yield product, entry.instruction.strip("."), entry.instruction_attributes, values


def _synthetic(product: Product, entry: _AttributeEntry) -> Iterator[_Asked]:
    """Yield one goal for each combination of the product's option values."""
    if entry.instruction and entry.instruction_attributes:
        groups = sorted(product.options)
        for values in itertools.product(*(offered for _, offered in groups)):
            choices = ", and ".join(f"{group}: {value}" for (group, _), value in zip(groups, values, strict=True))
            text = f"{entry.instruction} with {choices}" if choices else entry.instruction
            yield product, text, entry.instruction_attributes, values


def _goal(
    product: Product, text: str, attributes: Sequence[str], values: Sequence[str], rng: random.Random
) -> tuple[Goal, str]:
    """Return a goal and its instruction. The price limit is the higher of two draws from the next four multiples of ten
    dollars; there is no limit if fewer than two of these are below $1,000."""
    above = [10.0 * tens for tens in range(1, 100) if 10.0 * tens > product.price][:4]
    limit = max(rng.sample(above, 2)) if len(above) >= 2 else _NO_LIMIT
    price_text = f", and price lower than {limit:.2f} dollars" if limit < _NO_LIMIT else ""
    goal = Goal(
        product.id,
        product.type,
        product.category,
        tuple(sorted(product.nouns)),
        tuple(attribute.lower() for attribute in attributes),
        tuple(map(_value, values)),
        limit,
    )
    return goal, f"{text}{price_text}"
