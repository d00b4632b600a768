"""The store's settings."""

from typing import Literal

from pydantic import ConfigDict, Field, FilePath
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ShopOptions:
    """Settings of ``ShopEnv``."""

    products: int = Field(default=1000, ge=100, le=9999)
    """Size of the generated catalogue; with ``webshop_products``, how many to read from the file."""
    page_size: int = Field(default=5, ge=1, le=50)
    """Products on a page of results."""
    labels: Literal["id", "number"] = "id"
    """What names a product on a page of results, and opens it: its id, as in WebShop, or its place on the page, which a
    very small model copies more reliably."""
    catalogue_seed: int = 0
    """Draws the catalogue and its goals; another seed is another store."""
    difficulty: int = Field(default=3, ge=1, le=5)
    """Raises required attributes and options, near-duplicates, and attributes that titles hide."""
    webshop_products: FilePath | None = None
    """WebShop's own ``items_shuffle*.json``; None generates the catalogue."""
    webshop_attributes: FilePath | None = None
    """WebShop's ``items_ins_v2*.json``: product attributes and synthetic instructions."""
    webshop_instructions: FilePath | None = None
    """WebShop's ``items_human_ins.json``; None takes the instructions of ``webshop_attributes``."""
