"""How much sooner rounds finish if each round's updates run beside the next round's search (``adapt.lag``), and what
that costs in success.

    .venv/bin/python -m benchmarks.alarms --arms healthy --seeds 10 11 12  # trains the policies to start from
    .venv/bin/python -m benchmarks.lag

The rounds run in a store in which every step waits, as in a slow environment. All arms of a seed have the same start
and the same settings, except for the lag, ``adapt.refresh`` and the number of rounds: "lag 1, more rounds" has half as
many again, for about the time of the rounds without a lag. ``seconds`` are those of the rounds, without the evaluation.
Steps of test tasks do not wait, because the evaluation is not timed. Rows already recorded are kept. An unfinished run
is started again, because its time would otherwise span two sessions.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from benchmarks.alarms import HEALTHY
from benchmarks.command import own_tasks, parser, record_of, settings_of, start_of
from benchmarks.record import Row, digest
from treeagent.config import RunConfig, load_config
from treeagent.contrib.plan.times import TIMES, TimedProgress, stage_seconds
from treeagent.envs.base import StepResult
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.loop import train
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import QuietProgress
from treeagent.types import ToolCall

QUESTION = "How much sooner are rounds done where updates run beside the next search, and what does it cost in success?"
CONFIG = Path(__file__).parent.parent / "configs" / "store.toml"
SMALL = (
    "workers=1",
    "environment.name=benchmarks.lag:SlowStore",
    "search.limits.generated_tokens=200",
    "collect.tasks=40",
    "collect.batch=10",
    "adapt.rounds=4",
    "adapt.replay=0",
    'adapt.methods=["rft", "grpo"]',
    "update.imitation.what=states",
    "update.validation_tasks=24",
    "update.rft.max_steps=60",
    "update.rft.validate_every=30",
    "update.grpo.learning_rate=1e-4",
    "update.grpo.max_steps=15",
    "update.grpo.validate_every=15",
    'evaluate.modes=["greedy"]',
)
TEST_TASKS = 120  # the store has enough test tasks to give each of the first 15 seeds this many of its own
LONGER = "lag 1, more rounds"
ARMS: Mapping[str, tuple[str, ...]] = {
    "lag 0": (),
    "lag 1": ("adapt.lag=1",),
    "lag 1, refreshed": ("adapt.lag=1", "adapt.refresh=true"),
    LONGER: ("adapt.lag=1",),
}


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class SlowStoreOptions(ShopOptions):
    """Settings of ``SlowStore``."""

    seconds: float = Field(default=0.0, ge=0)
    """Seconds that a step of a training or validation task waits."""


class SlowStore(ShopEnv):
    """A store whose steps wait."""

    options_type = SlowStoreOptions

    def __init__(self, options: SlowStoreOptions | None = None) -> None:
        super().__init__(options)
        self.seconds = 0.0 if options is None else options.seconds

    def step(self, action: str | ToolCall) -> StepResult:
        if self.task.split != "test":
            time.sleep(self.seconds)
        return super().step(action)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The settings of one seed's runs."""

    seed: int
    out: Path
    start: Path
    seconds: float
    """Seconds that a step waits."""
    overrides: tuple[str, ...] = ()

    def config(self, arm: str) -> RunConfig:
        store = f'difficulty = 1, page_size = 3, labels = "number", seconds = {self.seconds}'
        own = [f"evaluate.tasks={TEST_TASKS}", own_tasks(self.seed, TEST_TASKS)]
        config = load_config(
            CONFIG,
            [*SMALL, f"environment.options={{ {store} }}", *ARMS[arm], *own, *self.overrides],
            seed=self.seed,
        )
        rounds = config.adapt.rounds * 3 // 2 if arm == LONGER else config.adapt.rounds
        return replace(config, adapt=replace(config.adapt, rounds=rounds))

    def row(self, arm: str) -> Row:
        """Make the run of an arm from the start. Returns its row."""
        config, folder = self.config(arm), self.out / f"seed{self.seed}" / arm.replace(" ", "_")
        shutil.rmtree(folder, ignore_errors=True)
        with Run.create(folder, config, resume=False) as run:
            train(config, run, TimedProgress(QuietProgress(), run.path / TIMES), self.start)
        return row_of(run, arm, self.seed)


def row_of(run: Run, arm: str, seed: int) -> Row:
    """The row of a finished run."""
    greedy = {row["policy"]: row for row in run.result_rows()}
    best, before = greedy[run.facts("adapt")["best"]], next(iter(greedy.values()))
    seconds_by_stage = stage_seconds(run.path / TIMES)
    rounds = [row for row in run.metrics() if row["stage"] == "adapt"]
    return Row(
        arm,
        seed,
        digest(settings_of(run.config)),
        first_task=run.config.evaluate.first_task,
        solved=best["solved"],
        environment_steps=rounds[-1]["environment_steps"],
        generated_tokens=rounds[-1]["generated_tokens"],
        seconds=sum(seconds for stage, seconds in seconds_by_stage.items() if stage != "evaluation"),
        figures={"before, %": 100 * before["success"]} | figures(run, seconds_by_stage),
    )


def figures(run: Run, seconds_by_stage: Mapping[str, float]) -> dict[str, float]:
    """Figures beside success and time. The age is that of the trees that a round learns from, averaged over rounds. The
    staleness is what GRPO measures in its first steps of each round, without the first round, whose trees are fresh in
    both arms."""
    stale = dict[str, float]()
    for row in run.metrics():
        if "logp_difference" in row:
            stale.setdefault(row["stage"], row["logp_difference"])
    later = [value for stage, value in stale.items() if stage != "round-1-grpo"]
    ages = [row["age"] for row in run.metrics() if row["stage"] == "adapt"]
    found = {"age, rounds": sum(ages) / len(ages), "staleness, nats a token": sum(later) / len(later)}
    if not run.config.adapt.lag:  # with a lag, search and updates overlap in time
        found |= {f"{stage}, s": seconds_by_stage[stage] for stage in ("search", "updates")}
    return found


def main() -> None:
    options = parser(__doc__, "lag", seeds=(10, 11, 12))
    options.add_argument("--runs", type=Path, default=Path("runs/alarms"), help="where benchmarks.alarms wrote")
    options.add_argument("--out", type=Path, default=Path("runs/lag"), help="folder of the runs")
    options.add_argument("--seconds", type=float, default=0.05, help="of a step")
    options.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            start = start_of(arguments.runs / HEALTHY, seed)
            rounds = Rounds(seed, arguments.out, start, arguments.seconds, tuple(arguments.set))
            for arm in arguments.arms:
                if not record.has(arm, seed, digest(settings_of(rounds.config(arm)))):
                    row = rounds.row(arm)
                    record.add(row)
                    rounded: dict[str, Any] = {name: round(value, 3) for name, value in row.figures.items()}
                    print(f"seed {seed} {arm}: {row.seconds:.0f} s, {100 * row.success:.1f} %, {rounded}", flush=True)


if __name__ == "__main__":
    main()
