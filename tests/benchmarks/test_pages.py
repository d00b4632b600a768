"""The pages of results are what the programs make of the result files, and their words follow from the numbers."""

from pathlib import Path

import pytest

from benchmarks.estimates import difference
from benchmarks.pages.__main__ import made
from benchmarks.pages.sweeps import sizes_where
from benchmarks.pages.tables import against
from benchmarks.record import RESULTS, ROOT, Machine, Result, Row, Session, read

SESSION = Session("0123456789ab", False, "python -m benchmarks.toy", Machine("Xeon", 2, 8.0), {}, "2026-01-01", 90.0)


def toy(**solved: tuple[int, ...]) -> Result:
    """A result in which each arm solved so many of ten tasks with each seed."""
    rows = [
        Row(
            arm,
            seed,
            arm,
            first_task=10 * seed,
            solved="1" * count + "0" * (10 - count),
            generated_tokens=8000,
            environment_steps=50,
        )
        for arm, counts in solved.items()
        for seed, count in enumerate(counts)
    ]
    return Result("toy", "Which?", {"generated_tokens": 800.0}, (SESSION,), tuple(rows))


def stored(name: str) -> Result:
    found = read(RESULTS / f"{name}.json")
    assert found is not None
    return found


def test_the_pages_on_disk_are_made_from_the_results() -> None:
    for name, content in made().items():
        if not name.endswith(".svg"):  # versions of matplotlib draw differently
            assert (ROOT / name).read_bytes() == content, f"{name} is old: make results-docs"


def test_the_words_of_the_answers_follow_from_the_data() -> None:
    methods = stored("methods")
    searches = ("mcts", "mcts, gumbel", "beam", "best_first", "random_expand", "entropy_expand", "ab_mcts", "rebase")
    ahead = [arm for arm in searches if difference(methods, arm, "best_of_n").verdict == "more"]
    assert ahead == ["mcts"]
    rewards = stored("rewards"), stored("rewards_toolbox")
    for each in rewards:
        for arm in each.arms:
            if arm.startswith("reward model"):
                assert difference(each, arm, arm.replace("reward model", "value head")).verdict == "level"
    more = stored("updates_more")
    assert {difference(more, arm, "grpo").verdict for arm in ("grpo-gigpo", "grpo-pivot", "grpo-graph")} == {"level"}
    assert difference(stored("updates"), "states", "chains-rft").verdict == "level"
    assert difference(stored("updates_tireworld"), "states", "chains-rft").verdict == "more"
    assert difference(stored("imagination"), "imagined", "real, one round").verdict == "level"
    assert difference(stored("curriculum"), "curriculum", "all kinds of tasks").verdict == "level"
    for name in ("sweep_minigrid", "sweep_sokoban", "sweep_alfworld"):
        assert sizes_where(stored(name), "more") == [], name


@pytest.mark.parametrize(
    ("mcts", "told"),
    [
        ((6, 7, 8), "10.0 points more than best-of-N"),
        ((3, 4, 5), "20.0 points less than best-of-N"),
        ((9, 3, 7), "level with best-of-N (+3.3 points"),
        ((6, 7), "10.0 points above best-of-N (2 seeds, too few for an interval)"),
    ],
)
def test_a_comparison_follows_its_interval(mcts: tuple[int, ...], told: str) -> None:
    assert told in against(toy(mcts=mcts, best_of_n=(5, 6, 7)), "mcts", "best_of_n", "best-of-N")


def test_each_result_file_is_in_the_index() -> None:
    listed = (ROOT / "results" / "README.md").read_text()
    for path in Path(RESULTS).glob("*.json"):
        assert f"({path.name})" in listed
