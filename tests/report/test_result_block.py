"""README's result block, made from the results of several seeds."""

import runpy
from pathlib import Path
from typing import Any

import pytest

QUICKSTART = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "quickstart.py"))
table, caption = QUICKSTART["table"], QUICKSTART["caption"]


def row(mode: str, success: float, policy: str = "base", **more: int) -> dict[str, Any]:
    return {
        "policy": policy,
        "mode": mode,
        "success": success,
        "tasks": 10,
        "environment_steps": 40,
        "generated_tokens": 8000,
    } | more


SEEDS = [
    [row("greedy", 0.4), row("mcts", 0.8, token_limit=800)],
    [row("greedy", 0.5), row("mcts", 0.9, token_limit=800)],
]


def test_means_intervals_and_gains_are_over_seeds() -> None:
    greedy, mcts = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(SEEDS).splitlines()[2:]]
    # 12.706 · 7.07 / √2 = 63.5 for both; each seed gains 40 points, so that the paired interval has no width.
    assert greedy == ["base", "greedy", "45.0 ± 63.5", "", "40.0 50.0", "4.0", "800"]
    assert mcts == ["base", "mcts", "85.0 ± 63.5", "+40.0 ± 0.0", "80.0 90.0", "4.0", "800"]
    assert "800 generated tokens" in caption(SEEDS)


def test_one_seed_has_no_interval() -> None:
    assert "| 80.0 | +40.0 |" in table(SEEDS[:1])


@pytest.mark.parametrize("other", [[row("greedy", 0.5)], [row("greedy", 0.5), row("mcts", 0.9, tasks=20)]])
def test_runs_of_different_recipes_are_refused(other: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="differ"):
        table([SEEDS[0], other])


def test_a_page_gets_the_block_between_its_marks() -> None:
    page = "Before.\n<!-- results:begin -->\nold\n<!-- results:end -->\nAfter.\n"
    assert QUICKSTART["with_block"](page, "new") == page.replace("old", "new")
