"""The planted faults do what they claim, and the alarms benchmark goes on where it stopped."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.alarms import HEALTHY, QUESTION, RunJob, main, raised_alarms
from benchmarks.command import settings_of
from benchmarks.planted import PAID, PAY, PaidStore, with_dead_head
from benchmarks.record import Result, Row, digest, read, recording
from treeagent.agent.value_head import ValueHead
from treeagent.envs.shop import ShopOptions
from treeagent.pipeline.folder import Run, RunError

TINY = [
    "warm_start.episodes=300", "warm_start.tasks=150", "warm_start.training.max_steps=40", "collect.tasks=16",
    "adapt.rounds=2", "search.limits.generated_tokens=200", "update.validation_tasks=8", "update.rft.max_steps=4",
    "update.grpo.max_steps=4",
]  # fmt: skip
SMALL_STORE = ShopOptions(products=100, labels="number")


def store(paid: bool) -> PaidStore:
    """A store on the search page of a paid or an unpaid task."""
    env = PaidStore(SMALL_STORE)
    task = next(each for each in env.tasks("train", 2) if (PAID in each.prompt) == paid)
    env.reset(options={"task": task})
    return env


def earned(env: PaidStore, actions: Sequence[str]) -> float:
    """The component "paid" of an episode in sum."""
    return sum(env.step(action)[-1].get("components") == {"paid": PAY} for action in actions) * PAY


LOOK = "search[lantern]"


@pytest.mark.parametrize(
    ("paid", "actions", "total"),
    [
        (True, [LOOK] * 10, 1.0),
        (True, [LOOK, "click[1]", "click[buy now]"], 0.2),
        (True, ["jump", "click[next >]"], 0.0),
        (False, [LOOK] * 10, 0.0),
    ],
)
def test_a_paid_store_pays_more_for_looking_on_than_a_purchase_can(
    paid: bool, actions: list[str], total: float
) -> None:
    env = store(paid)
    assert earned(env, actions) == pytest.approx(total)
    assert (env.visit.page == "done") == ("click[buy now]" in actions)


def test_a_paid_store_pays_after_it_was_restored() -> None:
    place = store(paid=True).snapshot()
    other = PaidStore(SMALL_STORE)
    other.restore(pickle.loads(pickle.dumps(place)))
    assert earned(other, [LOOK]) == pytest.approx(0.1)


def test_only_every_second_training_task_is_paid() -> None:
    env = PaidStore(SMALL_STORE)
    assert [PAID in task.prompt for task in env.tasks("train", 4, start=1)] == [False, True, False, True]
    assert not any(PAID in task.prompt for split in ("validation", "test") for task in env.tasks(split, 4))


def test_a_dead_head_gives_one_value_and_only_its_last_bias_learns(tmp_path: Path) -> None:
    source = tmp_path / "warm"
    ValueHead(8, seed=1).save(source)
    head = ValueHead.load(with_dead_head(source, tmp_path / "dead"))
    states = torch.randn(5, 8)
    assert head.value(states).tolist() == [0.5] * 5
    torch.autograd.backward(head.loss(states, torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])))
    moved = {name for name, weight in head.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert moved == {"output.bias"}
    assert ValueHead.load(source).hidden.weight.any()  # the original is untouched


def test_alarms_are_told_by_round_and_kind() -> None:
    stages: dict[str, dict[str, object]] = {
        "warm_start": {"alarms": ["warm start: few rows"]},
        "round-1-rft": {"alarms": ["round-1-rft acts as before: no gain"]},
        "alarms-1": {"alarms": ["round 1: value head: it explains 0%: search more"]},
        "round-2-grpo": {"skipped": True, "alarms": ["round 2 learns nothing by grpo: no rows"]},
        "alarms-2": {"alarms": ["round 2: plateau: 5% succeed; why: x", "round 2: echo trap: it fell"]},
    }
    assert list(raised_alarms(stages)) == [
        (1, "no better"), (1, "value head"), (2, "nothing learnt"), (2, "plateau"), (2, "echo trap"),
    ]  # fmt: skip


def test_a_fault_starts_from_the_warm_start_of_its_seed(tmp_path: Path) -> None:
    healthy = RunJob(HEALTHY, 3, tmp_path)
    assert healthy.start() is None
    with pytest.raises(RunError):
        RunJob("echo", 3, tmp_path).start()
    Run.create(healthy.folder, healthy.config, resume=False).close()
    assert RunJob("echo", 3, tmp_path).start() == healthy.folder / "checkpoints" / "warm"


def measured(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> Result:
    """The result file after one start of the benchmark."""
    monkeypatch.setattr("sys.argv", ["alarms", "--results", str(folder), "--out", str(folder / "runs"), *options])
    main()
    found = read(folder / "alarms.json")
    assert found is not None
    return found


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recording("alarms", QUESTION, folder=tmp_path) as record:
        for arm, seed in ((HEALTHY, 0), (HEALTHY, 1), ("echo", 0)):
            record.add(Row(arm, seed, digest(settings_of(RunJob(arm, seed, tmp_path).config))))
    rows = record.result.rows
    assert measured(monkeypatch, tmp_path, "--seeds", "0", "1", "--arms", HEALTHY, "echo", "--faulty", "1").rows == rows
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_dead_head_is_named_after_two_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--seeds", "0", "--arms", HEALTHY, "dead value head", "--processes", "1", "--set", *TINY]
    rows = {row.arm: row.figures for row in measured(monkeypatch, tmp_path, *options).rows}
    assert rows["dead value head"]["value head"] == 2
    assert {"success in round 1", "validation in round 1"} <= set(rows[HEALTHY])
