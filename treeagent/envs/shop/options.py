"""Options of the store."""

from typing import Literal

from pydantic import ConfigDict, Field, FilePath
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ShopOptions:
    """Settings of ``ShopEnv``."""

    products: int = Field(default=1000, ge=100, le=9999)
    """Number of products in the generated catalogue; with ``webshop_products``, most products to read from the file."""
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
    webshop_products: FilePath | None = None
    """WebShop's file ``items_shuffle*.json``; unset generates the catalogue."""
    webshop_attributes: FilePath | None = None
    """WebShop's file ``items_ins_v2*.json``, with product attributes and synthetic instructions."""
    webshop_instructions: FilePath | None = None
    """WebShop's file ``items_human_ins.json``; unset uses the instructions in ``webshop_attributes``."""
