"""WebShop's own file formats, on small files written here."""

import json
from pathlib import Path
from typing import cast

import pytest

from treeagent.contrib.worlds.webshop import FuzzyMatching
from treeagent.envs import check_env, make_env
from treeagent.envs.shop import ShopEnv

PRODUCTS: list[dict[str, object]] = [
    {
        "asin": "B09LAMP001",
        "name": "Brightly Dimmable Desk Lamp with USB Port",
        "category": "tools",
        "query": "Desk Lamps",
        "product_category": "Tools & Home Improvement › Lighting › Lamps",
        "full_description": "A lamp for your study.",
        "small_description": ["Energy efficient LED light", "Folds flat"],
        "pricing": "$24.99",
        "customization_options": {
            "Color": [{"value": "Matte Black", "image": None}, {"value": "White/Gold"}],
            "Size": [{"value": "Large"}],
            "Style": None,
        },
        "images": ["x.jpg"],
    },
    {
        "asin": "B09SOFA001",
        "name": "Grey Sofa",
        "category": "furniture",
        "query": "sofas",
        "product_category": "Home › Furniture › Sofas",
        "full_description": "",
        "small_description": "Seats three",
        "pricing": "$400.00 - $500.00",
        "customization_options": "",
    },
    {"asin": "nan", "name": "", "category": "", "query": "", "product_category": ""},
]
ATTRIBUTES: dict[str, object] = {
    "B09LAMP001": {
        "attributes": ["energy efficient", "space saving"],
        "instruction": "Find me an energy efficient desk lamp",
        "instruction_attributes": ["energy efficient"],
    },
    "B09SOFA001": {"attributes": []},
}
INSTRUCTIONS: dict[str, object] = {
    "B09LAMP001": [
        {
            "asin": "B09LAMP001",
            "instruction": "i need a space saving lamp in black.",
            "instruction_attributes": ["space saving"],
            "instruction_options": ["matte black"],
            "worker_id": "w",
        },
        {"instruction": "i need a lamp", "instruction_attributes": [], "instruction_options": []},
    ],
    "B0ELSEWHER": [{"instruction": "x", "instruction_attributes": ["y"], "instruction_options": []}],
}


def written(folder: Path, **files: object) -> dict[str, object]:
    """Write the files. Returns the options that name them."""
    options: dict[str, object] = {}
    for name, content in files.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        options[f"webshop_{name}"] = str(path)
    return options


def shop(folder: Path, **files: object) -> ShopEnv:
    return cast(ShopEnv, make_env("webshop", written(folder, **files)))


def test_human_instructions_become_tasks(tmp_path: Path) -> None:
    env = shop(tmp_path, products=PRODUCTS, attributes=ATTRIBUTES, instructions=INSTRUCTIONS)
    (task,) = env.tasks("train", 1)
    assert task.prompt.startswith("i need a space saving lamp in black, and price lower than ")
    assert task.data["price_limit"] in (40.0, 50.0, 60.0)
    assert env.demonstrator(0.0) is None
    env.reset(options={"task": task})
    assert env.step("search[study lamp]")[0] == "B09LAMP001 Brightly Dimmable Desk Lamp with USB Port $24.99"
    page = env.step("click[b09lamp001]")[0]
    assert "features: Energy efficient LED light, Folds flat, A lamp for your study." in page
    assert "color: matte black, white | gold" in page
    assert env.step("click[Matte Black]")[0] == "chosen: matte black"
    assert env.step("click[buy now]")[1:3] == (1.0, True)


def test_such_a_store_passes_the_check(tmp_path: Path) -> None:
    files = written(tmp_path, products=PRODUCTS, attributes=ATTRIBUTES, instructions=INSTRUCTIONS)
    env = make_env("webshop", files)
    calls = ("search[lamp]", "click[B09LAMP001]", "click[large]", "click[< prev]", "click[buy now]")
    report = check_env(env, env.tasks("train", 1)[0], other=make_env("webshop", files), actions=calls)
    assert report.passed, report.violations
    assert report.branches > 5


def test_fuzzy_matching(tmp_path: Path) -> None:
    env = shop(tmp_path, products=PRODUCTS, attributes=ATTRIBUTES, instructions=INSTRUCTIONS)
    env.reset(options={"task": env.tasks("train", 1)[0]})
    lamp, goal, rule = env.catalogue.products["B09LAMP001"], env.key, FuzzyMatching()
    assert rule.attribute(lamp, "saving space")
    assert rule.attribute(lamp, "folds flat")
    assert not rule.attribute(lamp, "waterproof")
    assert rule.option(lamp, "color", "black", ("matte black",))
    assert not rule.option(lamp, "size", "black", ("matte black",))
    assert rule.reward(lamp, (), goal) == pytest.approx(2 / 3)
    # Two chosen options that both match one wanted option count as one.
    both = (("color", "matte black"), ("finish", "black matte"))
    assert rule.reward(lamp, both, goal) == 1.0


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"products": {"no": "list"}, "attributes": ATTRIBUTES}, r"products.json is not of WebShop's form \(the whole"),
        ({"products": PRODUCTS, "attributes": {"B1": 3}}, r"attributes.json is not of WebShop's form \(B1"),
        ({"products": PRODUCTS, "instructions": {}}, "no instruction for a product of .*: set webshop_instructions"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, files: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        shop(tmp_path, **files)
    assert "\n" not in str(caught.value)
