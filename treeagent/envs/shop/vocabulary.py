"""Vocabulary of the generated store: departments, product types, attributes and options."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Department:
    """Product types that share attributes and options."""

    name: str
    types: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """(group, values). No value is in two groups, so a value determines its group."""


def _department(name: str, types: str, attributes: str, **options: str) -> Department:
    """Build a department from comma-separated lists. All departments have the same colors."""
    groups = {"color": "black, white, red, blue, green, brown, grey, pink", **options}
    return Department(
        name, _split_list(types), _split_list(attributes), tuple((g, _split_list(v)) for g, v in groups.items())
    )


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


DEPARTMENTS = (
    _department(
        "shoes",
        "hiking boot, running shoe, sandal, slipper, sneaker",
        "waterproof, leather, breathable, insulated, padded, lightweight, vegan, flexible, suede, slip resistant",
        size="6, 7, 8, 9, 10, 11",
        width="narrow, medium, wide",
    ),
    _department(
        "clothing",
        "shirt, rain jacket, sweater, dress, hoodie",
        "cotton, wool, linen, stretchy, striped, warm, breathable, lightweight, soft, machine washable",
        size="small, medium, large, xl",
        fit="slim, regular, loose",
    ),
    _department(
        "kitchen",
        "blender, electric kettle, toaster, coffee maker, frying pan",
        "steel, ceramic, quiet, compact, portable, digital, programmable, nonstick, rustproof, dishwasher safe",
        capacity="1 liter, 2 liter, 3 liter",
        plug="us, uk, eu",
    ),
    _department(
        "lighting",
        "desk lamp, floor lamp, night light, lantern, ceiling light",
        "wooden, metal, dimmable, rechargeable, modern, vintage, foldable, bright, cordless, energy saving",
        light="warm, cool, daylight",
        height="short, medium, tall",
    ),
    _department(
        "bedding",
        "pillow, blanket, bed sheet, mattress pad, quilt",
        "cotton, bamboo, fleece, cooling, soft, fluffy, washable, organic, quilted, wrinkle free",
        size="twin, full, queen, king",
        pack="single, pair, set",
    ),
    _department(
        "electronics",
        "headphone, speaker, keyboard, phone charger, webcam",
        "wireless, bluetooth, portable, slim, waterproof, durable, quiet, ergonomic, lightweight, fast charging",
        length="1 meter, 2 meter, 3 meter",
        edition="basic, pro, max",
    ),
    _department(
        "bags",
        "backpack, tote bag, suitcase, wallet, lunch box",
        "canvas, leather, nylon, waterproof, foldable, padded, durable, insulated, vegan, theft proof",
        size="small, medium, large",
        pattern="plain, striped, dotted",
    ),
    _department(
        "furniture",
        "desk chair, bar stool, bookshelf, side table, bench",
        "wooden, metal, bamboo, modern, rustic, foldable, padded, sturdy, adjustable, scratch resistant",
        height="short, medium, tall",
        finish="matte, glossy, natural",
    ),
)
