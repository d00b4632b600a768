"""One searched tree, frozen. If a change of the search is intended, write it again and read the difference:

python tests/search/test_golden_tree.py && git diff tests/golden
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from toy_search import Corridor, HashValue, TablePolicy, plain, task

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.searcher import Growth

GOLDEN = Path(__file__).parents[1] / "golden" / "corridor_tree.json"


class Uniform(Search):
    def exploration(self, growth: Growth) -> float:
        return self.options.c_init


def corridor_tree() -> Any:
    policy = TablePolicy({"left": 0.3, "right": 0.5, "jump": 0.2}, {"cell 3": {"left": 0.6, "right": 0.3, "jump": 0.1}})
    limits = Limits(simulations=16)
    config = SearchConfig(limits=limits, candidates=4, discount=0.9, options={"c_init": 1.5})
    search = Uniform(policy, Corridor(), config, HashValue())
    [tree] = asyncio.run(search.run([task("corridor")], [20240817]))
    return plain(tree)


def differences(one: Any, two: Any, place: str = "tree") -> list[str]:
    """The places where two JSON values differ. Numbers may differ by the rounding of the machine's logarithm."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return [line for key in one for line in differences(one[key], two[key], f"{place}.{key}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [
            line for i, pair in enumerate(zip(one, two, strict=True)) for line in differences(*pair, f"{place}[{i}]")
        ]
    if isinstance(one, float) and isinstance(two, float):
        return [] if one == pytest.approx(two, rel=1e-12, abs=1e-12) else [f"{place}: {one} is not {two}"]
    return [] if type(one) is type(two) and one == two else [f"{place}: {one!r} is not {two!r}"]


def test_the_golden_tree() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert differences(corridor_tree(), golden) == []
    assert len(golden["nodes"]) > 8
    assert any(node["terminated"] for node in golden["nodes"])
    assert any(node["invalid"] for node in golden["nodes"])


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(corridor_tree(), indent=1) + "\n")
