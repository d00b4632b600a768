"""The results pages hold what the result files hold, and nothing else."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity import FAILED, SOLVED, TRAINING
from benchmarks.estimates import estimate
from benchmarks.pages.__main__ import PAGES, made, with_block, write
from benchmarks.pages.lengths import length_table
from benchmarks.pages.sweeps import (
    horizon,
    predicted_crossing,
    prediction_words,
    sizes_where,
    step_chance,
    success_words,
    sweep_sizes,
)
from benchmarks.pages.tables import (
    by_hand_words,
    crossing,
    decimal,
    gains,
    horizons,
    kept_none,
    measured,
    rounds_table,
    sampled,
    short,
    speed_table,
)
from benchmarks.record import ROOT, Machine, Result, Row, Session, read
from benchmarks.record import write as write_result
from benchmarks.updates import validation_figures

SESSION = Session("0123456789ab", False, "python -m benchmarks.toy", Machine("Xeon", 2, 8.0), {}, "2026-01-01", 90.0)
README = "Before.\n<!-- results:begin -->\nold\n<!-- results:end -->\nAfter.\n"
DOTS = 10
"""Tasks per row."""


def store(folder: Path, name: str, solved: Mapping[str, tuple[int, ...]], **budgets: float) -> None:
    """Write a result file: for each arm, how many of ten tasks each seed solved."""
    rows = [
        Row(
            arm,
            seed,
            arm,
            first_task=seed * DOTS,
            solved="1" * count + "0" * (DOTS - count),
            generated_tokens=8000,
            environment_steps=50,
        )
        for arm, counts in solved.items()
        for seed, count in enumerate(counts)
    ]
    write_result(folder / f"{name}.json", Result(name, "Which?", budgets, (SESSION,), tuple(rows)))


def page(files: Mapping[str, bytes], name: str) -> str:
    return files[f"results/{name}.md"].decode()


def answer(files: Mapping[str, bytes], name: str) -> str:
    return page(files, name).split("\n\n")[1]


def test_arms_to_which_an_end_betrays_success_are_marked(tmp_path: Path) -> None:
    arms = {"mcts": (6, 7, 8), "best_of_n": (5, 6, 7), "greedy": (1, 1, 1)}
    store(tmp_path, "methods", arms, generated_tokens=800.0)
    plain = page(made(tmp_path), "search")
    found = read(tmp_path / "methods.json")
    assert found is not None
    rows = tuple(replace(row, pass_at_n=row.arm != "greedy") for row in found.rows)
    write_result(tmp_path / "methods.json", replace(found, rows=rows))
    starred = page(made(tmp_path), "search")
    assert "pass@N" not in plain and "pass@N (\\*)" in starred
    for arm, marked in (("mcts", True), ("best_of_n", True), ("greedy", False)):
        assert (f"| {arm} \\* |" in starred) == marked == (f"| {arm} |" not in starred)


@pytest.mark.parametrize(
    ("mcts", "told"),
    [
        ((6, 7, 8), "10.0 points more than best-of-N"),
        ((3, 4, 5), "20.0 points less than best-of-N"),
        ((9, 3, 7), "level with best-of-N (+3.3 points"),
        ((6, 7), "10.0 points above best-of-N (2 seeds, too few for an interval)"),
    ],
)
def test_the_answer_follows_the_interval(tmp_path: Path, mcts: tuple[int, ...], told: str) -> None:
    store(tmp_path, "quickstart", {"base, mcts": mcts, "base, best_of_n": (5, 6, 7)}, generated_tokens=800.0)
    assert told in answer(made(tmp_path), "search")
    store(tmp_path, "methods", {"mcts": mcts, "best_of_n": (5, 6, 7), "greedy": (1, 1, 1)}, generated_tokens=800.0)
    assert page(made(tmp_path), "search").count(told) == 2


@pytest.mark.parametrize(
    ("name", "arms", "where", "told"),
    [
        (
            "quickstart",
            {"base, greedy": (3, 4, 5), "rft, greedy": (8, 9, 10)},
            "learning",
            "50.0 points more than the base policy",
        ),
        (
            "updates",
            {"before": (3, 4, 5), "rft": (5, 6, 7), "dpo": (8, 9, 10)},
            "learning",
            "`dpo` is the best update",
        ),
        ("updates", {"before": (3, 4, 5), "rft": (8, 9, 10), "dpo": (8, 9, 10)}, "learning", "level with it: `dpo`"),
        (
            "imagination",
            {"before": (3, 4, 5), "real, one round": (8, 9, 10), "real": (8, 9, 10), "imagined": (7, 8, 9)},
            "imagination",
            "10.0 points less than one that learnt from a round of real trees",
        ),
    ],
)
def test_every_question_has_its_answer(
    tmp_path: Path, name: str, arms: Mapping[str, tuple[int, ...]], where: str, told: str
) -> None:
    store(tmp_path, name, arms)
    files = made(tmp_path)
    assert told in answer(files, where)
    assert told in files["results.md"].decode()


def test_speed_is_told_as_a_factor(tmp_path: Path) -> None:
    rows = [
        Row(arm, number, "s", figures={"ratio": ratio + number, "simulations / s": 1000.0})
        for arm, ratio in (("treeagent, PUCT, 1 tree", 1.0), ("LATS-style, 1 tree", 3.0))
        for number in (0, 1, 2)
    ]
    write_result(tmp_path / "search_core.json", Result("search_core", "How fast?", {}, (SESSION,), tuple(rows)))
    files = made(tmp_path)
    assert "4 × as many as a loop in the style of LATS" in answer(files, "engine")
    assert "| LATS-style, 1 tree | 4 ± 2.48 | 1,000 |" in page(files, "engine")


def test_a_table_shows_means_seeds_and_paired_differences(tmp_path: Path) -> None:
    store(tmp_path, "methods", {"mcts": (6, 7, 8), "best_of_n": (5, 6, 7)}, generated_tokens=800.0)
    files = made(tmp_path)
    # 4.303 · 10 / √3 = 24.8 for both arms. Each seed gains ten points, so the paired interval has no width.
    assert "| mcts | 70.0 ± 24.8 | 60.0 70.0 80.0 | +10.0 ± 0.0 | 5 | 800 |" in page(files, "search")
    assert "3 seeds, each with its own 10 held-out tasks" in page(files, "search")
    assert "commit 0123456" in page(files, "search")
    assert b"mcts" in files["results/search-methods.svg"]


def test_alarms_of_healthy_runs_are_false_ones(tmp_path: Path) -> None:
    raised: Mapping[str, tuple[dict[str, float], ...]] = {
        "healthy": ({"plateau": 2, "success in round 1": 0.5}, {"clipping": 2}, {}),
        "echo": ({"echo trap": 1, "no better": 1}, {"repetition": 2, "clipping": 1}, {"clipping": 3}),
    }
    rows = [Row(arm, seed, arm, figures=each) for arm, runs in raised.items() for seed, each in enumerate(runs)]
    assert "alarms" not in page(made(tmp_path), "learning")
    write_result(tmp_path / "alarms.json", Result("alarms", "Which?", {}, (SESSION,), tuple(rows)))
    shown = page(made(tmp_path), "learning")
    assert "a fault in 1 of 3 healthy runs" in shown and "missing in 1 of 3 runs with `echo`" in shown
    assert "| clipping | 1, round 2 | 2, round 2 |\n| echo trap | 0 | 1, round 1 |\n| repetition |" in shown
    assert "3 seeds. Measured in" in shown


def test_an_arm_of_capacity_is_compared_with_the_recipe(tmp_path: Path) -> None:
    successes = {"recipe": (7, 8, 9), "larger, more trees": (8, 9, 10)}
    modes = ("base, best_of_n", "base, mcts", "rft, greedy", "rft, mcts")
    store(tmp_path, "capacity", {f"{arm}: {mode}": solved for arm, solved in successes.items() for mode in modes})
    found = read(tmp_path / "capacity.json")
    assert found is not None
    figures = {"rft, greedy": {TRAINING: 0.25}, "rft, mcts": {"found": 0.91, FAILED: 0.81, SOLVED: 0.07}}
    rows = tuple(replace(row, figures=figures.get(row.arm.partition(": ")[2], {})) for row in found.rows)
    write_result(tmp_path / "capacity.json", replace(found, rows=rows))
    shown = page(made(tmp_path), "learning")
    assert "10.0 points more than search with the recipe's policy" in shown
    assert "| larger, more trees: rft, greedy | 90.0 ± 24.8 | 80.0 90.0 100.0 | 5 | 800 |  | 25 25 25 |  |  |" in shown
    assert (
        "| larger, more trees: rft, mcts | 90.0 ± 24.8 | 80.0 90.0 100.0 | 5 | 800 | 91 91 91 |  | 81 81 81 | 7 7 7 |"
        in shown
    )
    assert "| the demonstrator takes | of the tasks, % | recipe | larger, more trees |" in shown


def test_long_plans_are_told_with_the_ratio_of_the_gains(tmp_path: Path) -> None:
    store(tmp_path, "updates_tireworld", {"before": (1, 2, 3), "states": (7, 8, 9), "chains-rft": (4, 5, 6)})
    store(tmp_path, "quickstart", {"base, mcts": (6,)})
    shown = page(made(tmp_path), "learning")
    assert "+60.0 ± 0.0 points with `states` and +30.0 ± 0.0 points with `chains-rft`" in shown
    assert "The first is 2 × the second" in shown and "fewer trees" not in shown
    assert "solves 20.0 ± 24.8 % of such tasks greedily" in with_block(README, tmp_path)
    store(
        tmp_path,
        "updates_few_trees",
        dict.fromkeys(("before", "states", "chains-rft", "dpo", "dpo-trajectory"), (1, 2, 3)),
    )
    assert "+0.0 ± 0.0 points with `states`" in page(made(tmp_path), "learning")


def test_advantages_and_pairs_on_long_plans_are_compared(tmp_path: Path) -> None:
    arms = ("before", "chains-grpo", "chains-rft", "grpo-no-anchor", "grpo", "states")
    successes = {arm: (count, count, count) for count, arm in enumerate(arms)}
    store(tmp_path, "updates_tireworld", successes)
    shown = page(made(tmp_path), "learning")
    assert "the tree is 30.0 points more than flat GRPO on chains" in shown
    assert "+40.0 ± 0.0 points with `grpo`" in shown
    assert "`grpo-no-anchor` is 20.0 points more than flat GRPO" in shown
    assert "compares siblings" not in shown and "TreeRL" not in shown
    store(tmp_path, "updates_tireworld", successes | {"dpo": (3, 4, 5), "dpo-trajectory": (5, 6, 7)})
    shown = page(made(tmp_path), "learning")
    assert "compares siblings" in shown and "#what-pairs-of-siblings-miss" not in shown


def test_without_files_the_pages_hold_no_table(tmp_path: Path) -> None:
    files = made(tmp_path)
    assert set(files) == {"results.md", *(f"results/{name}.md" for name in PAGES)}
    assert not any("|" in page(files, name) for name in PAGES)
    assert with_block(README, tmp_path) == README


def test_one_seed_is_told_as_such(tmp_path: Path) -> None:
    store(tmp_path, "quickstart", {"base, mcts": (6,), "base, best_of_n": (5,)}, generated_tokens=800.0)
    assert "one seed" in answer(made(tmp_path), "search")


def test_readme_gets_the_block_between_its_marks(tmp_path: Path) -> None:
    store(tmp_path, "quickstart", {"base, greedy": (4, 5), "base, mcts": (8, 9)})
    block = with_block(README, tmp_path)
    assert block.startswith("Before.\n<!-- results:begin -->\n| ") and block.endswith("<!-- results:end -->\nAfter.\n")
    assert "| base, mcts | 85.0 | 80.0 90.0 | +40.0 |" in block and "old" not in block  # two seeds have no interval
    store(tmp_path, "tireworld_llm", {"base, greedy": (0, 1), "base, best_of_n": (3, 4), "base, mcts": (6, 7)})
    assert "65.0 % of the tasks, best-of-N 35.0 % and greedy play 5.0 %." in with_block(README, tmp_path)


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    store(tmp_path, "updates", {"before": (4, 5, 3), "rft": (8, 9, 8), "dpo": (8, 7, 7)})
    assert made(tmp_path) == made(tmp_path)


def test_figures_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "old.svg").write_text("")
    write({"results/new.md": b"new\n", "results.md": b"index\n"}, tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["new.md", "results.md"]


def test_the_stored_pages_are_made_from_the_stored_files() -> None:
    """If this fails, run ``make results-docs``."""
    files = made()
    stored = {path for path in (ROOT / "docs" / "results").iterdir()} | {ROOT / "docs" / "results.md"}
    assert stored == {ROOT / "docs" / name for name in files}
    for name, content in files.items():
        assert (ROOT / "docs" / name).read_bytes() == content, name
    readme = (ROOT / "README.md").read_text()
    assert with_block(readme) == readme


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1234.5, "1,234"),
        (12.34, "12.3"),
        (-0.5, "−0.500"),
        (3.0, "3"),
        (0.00012, "1.2e−04"),
        (0.0, "0"),
        (99.96, "100"),
    ],
)
def test_short_numbers(value: float, shown: str) -> None:
    assert short(value) == shown


def test_numbers_have_a_true_minus_sign() -> None:
    assert decimal(-1.25, 2) == "−1.25"


def test_the_horizon_by_hand(tmp_path: Path) -> None:
    """Two methods, two heights, three seeds: equal at 4 decisions, far apart at 8."""
    counts = {
        ("mcts", 4): (9, 10, 9),
        ("best_of_n", 4): (9, 9, 10),
        ("mcts", 8): (9, 8, 9),
        ("best_of_n", 8): (1, 0, 1),
    }
    rows = tuple(
        Row(
            f"{way}, H = {height}, noise 0.2", seed, "one", solved="1" * count + "0" * (DOTS - count),
            figures={"height": height, "noise": 0.2, "q": 0.5, "tokens": 10, "thoughts": 0},
        )
        for (way, height), each in counts.items()
        for seed, count in enumerate(each)
    )  # fmt: skip
    found = Result("horizon", "When?", {"generated_tokens": 80}, (SESSION,), rows)
    [panel] = horizons(found).values()
    assert {way: list(points) for way, points in panel.items()} == {"mcts": [4, 8], "best_of_n": [4, 8]}
    assert panel["mcts"][8].mean == pytest.approx(100 * 26 / 30)
    assert crossing(panel, "mcts", "best_of_n") == 8
    assert crossing(panel, "best_of_n", "mcts") is None
    assert sampled(found, 4) == pytest.approx(100 * (1 - (15 / 16) ** 2))  # two episodes of four decisions
    write_result(tmp_path / "horizon.json", found)
    files = made(tmp_path)
    assert "from 8 decisions on" in page(files, "search")
    assert b"<svg" in files["results/search-horizon.svg"]
    assert by_hand_words(panel) == ""
    worse, better = ({4.0: estimate([90.0] * 3), 8.0: estimate([at_8] * 3)} for at_8 in (80.0, 90.0))
    assert "points more" not in by_hand_words({**panel, "mcts, c = 1": worse})  # the defaults solve 93.3 and 86.7 %
    best = by_hand_words({**panel, "mcts, c = 1": worse, "mcts, c = 2": better})
    assert "at most 3.3 points more (H = 8, 95 % interval −11.0 to 17.7)" in best  # 0, 10 and 0, t(0.975, 2) = 4.303


def test_the_sweep_by_hand(tmp_path: Path) -> None:
    """Sizes of 2, 4 and 8 decisions, two methods, three seeds. Half of the samples succeed at 2 decisions, so q =
    √½."""
    counts = {
        ("mcts", 2): (9, 10, 9),
        ("best_of_n", 2): (9, 10, 9),
        ("mcts", 4): (8, 9, 9),
        ("best_of_n", 4): (5, 6, 5),
        ("mcts", 8): (7, 8, 7),
        ("best_of_n", 8): (0, 1, 0),
    }
    rows = tuple(
        Row(
            f"{way}, size {size}, 100 tokens", seed, "one", solved="1" * count + "0" * (DOTS - count),
            environment_steps=10, generated_tokens=100,
            figures={
                "horizon": size, "tokens": 100, "p": 0.5 ** (size / 2), "value_siblings": 0.75, "found": 0.9,
                "at 50 steps": 0.4, "at 5 s": 0.3,
            },
        )
        for (way, size), each in counts.items()
        for seed, count in enumerate(each)
    )  # fmt: skip
    found = Result("sweep", "When?", {}, (SESSION,), rows)
    assert [horizon(found, size) for size in sweep_sizes(found)] == [2, 4, 8]
    assert step_chance(found, "size 8", "100 tokens") == pytest.approx(0.5**0.5)
    assert sizes_where(found, "100 tokens", "more") == ["size 4", "size 8"]
    # The limit pays for ten actions: q^H · 10 = H.
    expected = predicted_crossing(found, "100 tokens", ["size 2"])
    assert 0.5 ** (expected / 2) * 10 == pytest.approx(expected, abs=0.01)
    assert predicted_crossing(found, "100 tokens", ["size 2", "size 4"]) == pytest.approx(expected)  # q is constant
    falling = [
        replace(row, figures={**row.figures, "p": math.exp(-0.01 * row.figures["horizon"] ** 2)}) for row in rows
    ]
    expected = predicted_crossing(replace(found, rows=tuple(falling)), "100 tokens", ["size 2", "size 4"])
    assert math.exp(-0.01 * expected**2) * 10 == pytest.approx(expected, abs=0.01)  # ln q = -0.01 H
    write_result(tmp_path / "sweep.json", found)
    files = made(tmp_path)
    assert "and 73 ± 14 % of the tasks that take 8 decisions (best-of-N 3 ± 14 %)." in page(files, "search")
    assert "At 2 decisions tree search and best-of-N are level" in page(files, "search")
    assert "from 3.2 decisions on. Measured: tree search leads at 4 and 8 decisions" in " ".join(
        page(files, "search").split()
    )
    assert "| size 8 | 8 | 6.2 ± 0.0 | 0.71 | 3.2 | 0.75 | 73 ± 14 | 3 ± 14 | 0.90 | 0.90 |" in page(files, "search")
    assert "| 8 | at 50 steps | 40 ± 0 | 40 ± 0 |" in page(files, "search")
    store(tmp_path, "quickstart", {"base, greedy": (4, 5)})
    assert "(docs/results/search-sweep.svg)" in with_block(README, tmp_path)
    level = replace(found, rows=tuple(row for row in rows if ", size 2," in row.arm))
    assert sizes_where(level, "100 tokens", "level") == ["size 2"]
    assert "leads at 4 and 8 decisions" in prediction_words(found, "100 tokens")
    assert "leads at" not in prediction_words(level, "100 tokens") != ""
    other = {"mcts": "best_of_n", "best_of_n": "mcts"}
    swapped = [replace(row, arm=", ".join([other[way], *rest])) for row in rows for way, *rest in [row.arm.split(", ")]]
    worse = replace(found, rows=tuple(swapped))
    assert sizes_where(worse, "100 tokens", "less") == ["size 4", "size 8"]
    assert "3 ± 14 % of the tasks that take 8 decisions (best-of-N 73 ± 14 %)" in success_words(worse, "100 tokens")
    turned = success_words(found, "100 tokens", "best_of_n", "sampling", "mcts", "tree search")
    assert "sampling solves fewer than tree search within 100 tokens" in turned.lower()


def test_sessions_that_differ_in_their_seeds_are_told_as_one_command() -> None:
    commands = ["toy --seeds 2 --tasks 9", "toy --processes 1 --seeds 0 1 --results part --tasks 9", "toy --tasks 5"]
    sessions = tuple(replace(SESSION, command=command) for command in commands)
    told = measured(Result("toy", "Which?", {}, sessions, (Row("a", 0, "x"),)))
    assert "`toy --seeds 0 1 2 --tasks 9` and `toy --tasks 5`" in told


def test_what_rounds_add_by_hand(tmp_path: Path) -> None:
    """Both seeds start at 2 of 10. Trees reach 6 and then 8, chains reach 5 and then 4."""
    counts: dict[str, list[tuple[int, ...]]] = {
        "before": [(2,), (2,)],
        "adapt": [(6, 7), (6, 9)],
        "rft": [(4, 4), (6, 4)],
    }
    rows = tuple(
        Row(
            arm, seed, arm, solved="1" * each[-1] + "0" * (DOTS - each[-1]),
            figures={} if arm == "before" else {f"round {n}": count / DOTS for n, count in enumerate(each, 1)},
        )
        for arm, seeds in counts.items()
        for seed, each in enumerate(seeds)
    )  # fmt: skip
    found = Result("learning", "Which?", {}, (SESSION,), rows)
    assert "+60.0 points with `adapt` and +20.0 points with `rft`" in gains(found, "adapt", "rft")
    head, _, adapt, rft = rounds_table(found).splitlines()
    assert head.endswith("| round 1 | round 2 |")
    assert adapt == "| adapt | +40.0 | +20.0 |" and rft == "| rft | +30.0 | −10.0 |"


def test_updates_that_validation_undid_are_named(tmp_path: Path) -> None:
    store(tmp_path, "updates", {"before": (3, 4), "rft": (5, 6), "rft-dpo": (5, 7), "grpo": (3, 4), "dpo": (4, 5)})
    found = read(tmp_path / "updates.json")
    assert found is not None
    told = kept_none(found)
    assert "`rft-dpo` (as `rft`, 1 of 2 seeds)" in told and "`grpo` (as `before`, 2 of 2 seeds)" in told
    assert "`dpo`" not in told


def test_success_is_told_by_the_length_of_the_tasks(tmp_path: Path) -> None:
    """Of the first ten test tasks, the demonstrator takes six steps in those at 0, 5 and 8, and four in the others."""
    rows = [Row("rft", 0, "", first_task=0, solved="1000011000"), Row("rft", 1, "", first_task=0, solved="1111111111")]
    table = length_table([(Result("toy", "Which?", {}, (SESSION,), tuple(rows)), "rft", "greedy")])
    assert [line.replace(" ", "").split("|")[1:-1] for line in table.splitlines()[2:5]] == [
        ["4steps", "70", "57"],
        ["5", "0", ""],
        ["6", "30", "83"],
    ]


def test_speed_is_the_first_step_at_which_an_arm_is_as_good_as_the_control_at_its_best() -> None:
    def row(arm: str, *validations: float) -> Row:
        figures = {f"validation at step {50 * place}": value for place, value in enumerate(validations)}
        return Row(arm, 3, arm, first_task=0, solved="1", generated_tokens=1, environment_steps=1, figures=figures)

    rows = (row("flat", 0.2, 0.4, 0.5, 0.5), row("tree", 0.2, 0.6, 0.4, 0.7), row("slow", 0.2, 0.3, 0.4, 0.49))
    unmatched = replace(rows[0], seed=4)
    table = speed_table(Result("toy", "Which?", {}, (SESSION,), (*rows, unmatched)), ["tree", "slow"], "flat")
    assert [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]] == ["3", "50.0", "100", "50", "never"]


def test_steps_of_grpo_are_told_if_both_learning_rates_were_measured(tmp_path: Path) -> None:
    counts = {"before": (1, 2, 3), "grpo": (7, 8, 9), "grpo-no-anchor": (1, 2, 3), "chains-grpo": (4, 5, 6)}
    store(tmp_path, "updates_grpo", counts)
    assert "How many steps" not in page(made(tmp_path), "learning")
    store(tmp_path, "updates_grpo_low", counts)
    for name in ("updates_grpo", "updates_grpo_low"):
        found = read(tmp_path / f"{name}.json")
        assert found is not None
        figures = {"validation at step 0": 0.25, "validation at step 20": 0.5}
        write_result(
            tmp_path / f"{name}.json", replace(found, rows=tuple(replace(r, figures=figures) for r in found.rows))
        )
    shown = page(made(tmp_path), "learning")
    assert shown.count("+60.0 ± 0.0 points with `grpo` and +30.0 ± 0.0 points with `chains-grpo`") == 2
    assert "| 0 | 50.0 | 20 | 20 | 20 |" in shown and "`grpo-no-anchor` (as `before`, 3 of 3 seeds)" in shown


def test_an_update_is_recorded_with_its_validation_by_step() -> None:
    metrics: list[dict[str, object]] = [
        {"stage": "grpo", "step": 0, "validation": 0.2},
        {"stage": "grpo", "step": 10, "loss": 0.5},
        {"stage": "grpo", "step": 20, "validation": 0.6},
        {"stage": "dpo", "step": 20, "validation": 0.9},
        {"stage": "grpo", "step": 20, "validation": 0.5},  # the run was resumed
        {"stage": "grpo", "step": 40, "validation": 0.4},
    ]
    steps = {"validation at step 0": 0.2, "validation at step 20": 0.5, "validation at step 40": 0.4}
    assert validation_figures(metrics, "grpo") == {"best validation": 0.5, "last validation": 0.4, **steps}
    assert validation_figures(metrics, "rft") == {}
