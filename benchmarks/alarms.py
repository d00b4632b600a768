"""How good the alarms are: which alarms are raised by healthy runs, and which by runs with a planted fault.

    .venv/bin/python -m benchmarks.alarms

The thresholds of the alarms and the settings of the faults were chosen on seeds 0 and 1, which the table leaves out.
Healthy runs are made first, because a run with a fault starts from the warm-start checkpoint of its seed's healthy run.
Rows already recorded are kept, and unfinished runs are resumed. If a rule of ``treeagent.pipeline.alarms.alarms`` has
changed, the alarms of recorded rows are computed again from the figures of their rounds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.command import parser, record_of, settings_of
from benchmarks.planted import with_dead_head
from benchmarks.record import Row, digest
from treeagent.config import RunConfig, load_config
from treeagent.loop import train
from treeagent.pipeline.alarms import alarms
from treeagent.pipeline.folder import Run
from treeagent.pipeline.metrics import Emit
from treeagent.pipeline.processes import run_jobs

ROUND_FIGURES = ("success", "reward", "reward_std", "entropy", "invalid", "repetition", "validation")
"""The figures of a round that ``alarms`` reads."""
ROUND_ALARMS = ("echo trap", "format", "repetition", "plateau")
"""The kinds of alarms that ``alarms`` raises."""

QUESTION = "Which alarms do healthy runs raise, and which runs with a planted fault?"
CONFIG = Path(__file__).parent.parent / "configs" / "store.toml"
HEALTHY = "healthy"
SMALL = (
    "workers=1",
    "environment.name=benchmarks.planted:PaidStore",
    "policy.scratch.width=64",
    "warm_start.episodes=6000",
    "warm_start.tasks=3000",
    "warm_start.training.max_steps=800",
    "search.limits.generated_tokens=400",
    "collect.tasks=100",
    "adapt.rounds=3",
    'adapt.methods=["rft", "grpo"]',
    "update.validation_tasks=60",
    "update.imitation.what=states",
    "update.rft.max_steps=60",
    "update.rft.validate_every=30",
    "update.grpo.learning_rate=1e-4",
    "update.grpo.max_steps=30",
    "update.grpo.validate_every=15",
    "evaluate.tasks=8",
    'evaluate.modes=["greedy"]',
)
"""Settings of a run that takes two to three minutes on one core."""
FAULTS: Mapping[str, Sequence[str]] = {
    "echo": [  # many passes over few rows, and no validation in between that could stop it
        'adapt.methods=["rft"]',
        "update.keep_trees=0.25",
        "update.rft.learning_rate=1e-3",
        "update.rft.max_steps=150",
        "update.rft.validate_every=150",
    ],
    "collapse": ["update.grpo.learning_rate=0.05"],
    "dead value head": [],
}
"""The settings that plant each fault. The dead head is planted in the checkpoint that its runs start from."""


@dataclass(frozen=True, slots=True)
class RunJob:
    """One run of ``train``."""

    arm: str
    seed: int
    out: Path
    """Folder that holds all runs."""
    overrides: tuple[str, ...] = ()

    @property
    def config(self) -> RunConfig:
        return load_config(CONFIG, [*SMALL, *self.overrides, *FAULTS.get(self.arm, ())], seed=self.seed)

    @property
    def folder(self) -> Path:
        return self.out / self.arm.replace(" ", "_") / f"seed{self.seed}"

    def start(self) -> Path | None:
        """The checkpoint that the run starts from; None if the run trains its own warm start.

        Raises:
            RunError: there is no healthy run of the seed.
        """
        if self.arm == HEALTHY:
            return None
        warm = Run.open(self.out / HEALTHY / f"seed{self.seed}").checkpoints / "warm"
        return with_dead_head(warm, self.out / f"dead_seed{self.seed}") if self.arm == "dead value head" else warm


def measure(job: RunJob, emit: Emit) -> Mapping[str, float]:
    """Make the run, or resume it. Returns the figures of its row."""
    train(job.config, job.folder, job.start())
    return figures(Run.open(job.folder))


def figures(run: Run) -> dict[str, float]:
    """The first round that raised each alarm, and the figures of every round's trees."""
    found: dict[str, float] = {}
    for number, kind in raised_alarms(run.stages()):
        found.setdefault(kind, number)
    for row in run.metrics():
        if row["stage"] == "adapt":
            found |= {f"{name} in round {row['step']}": row[name] for name in ROUND_FIGURES if name in row}
    return found


def judged_again(found: Mapping[str, float]) -> dict[str, float]:
    """The figures of a row, with its alarms computed again from the figures of its rounds by the current rules."""
    first_rounds = {name: value for name, value in found.items() if name not in ROUND_ALARMS}
    history = list[dict[str, float]]()
    while f"success in round {(number := len(history) + 1)}" in found:
        names = {name: f"{name} in round {number}" for name in ROUND_FIGURES}
        history.append({name: found[metric] for name, metric in names.items() if metric in found})
        for sentence in alarms(history):
            first_rounds.setdefault(sentence.split(":")[0], number)
    return first_rounds


def raised_alarms(stages: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """The alarms of a run's stages, as (round, kind of alarm)."""
    for stage, facts in stages.items():
        of, _, rest = stage.partition("-")
        for sentence in facts.get("alarms", ()):
            if of == "alarms":
                yield int(rest), sentence.split(": ")[1]  # "round 2: plateau: …"
            elif of == "round":  # an update, such as "round-2-grpo"
                yield int(rest.partition("-")[0]), "nothing learnt" if "skipped" in facts else "no better"


def main() -> None:
    options = parser(__doc__, "alarms", seeds=range(10, 20))
    options.add_argument("--out", type=Path, default=Path("runs/alarms"), help="folder of the runs")
    options.add_argument("--arms", nargs="+", choices=[HEALTHY, *FAULTS], default=[HEALTHY, *FAULTS])
    options.add_argument("--faulty", type=int, default=5, help="seeds of each fault, the first ones of --seeds")
    options.add_argument("--processes", type=int, default=2, help="runs side by side, a core each")
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for row in record.result.rows:
            if (rejudged := judged_again(row.figures)) != row.figures:
                record.add(replace(row, figures=rejudged))
        jobs = [
            RunJob(arm, seed, arguments.out, tuple(arguments.set))
            for arm in arguments.arms
            for seed in arguments.seeds[: None if arm == HEALTHY else arguments.faulty]
        ]
        hashes = {job: digest(settings_of(job.config)) for job in jobs}
        waiting = [job for job in jobs if not record.has(job.arm, job.seed, hashes[job])]
        # Healthy runs come first: a run with a fault starts from the healthy run's warm start.
        for part in ([job for job in waiting if (job.arm == HEALTHY) == first] for first in (True, False)):
            for job, found in run_jobs(measure, part, RunConfig(workers=arguments.processes)):
                record.add(Row(job.arm, job.seed, hashes[job], figures=found))
                kinds = {name: number for name, number in found.items() if " in round " not in name}
                print(f"seed {job.seed} {job.arm}: {kinds or 'no alarm'}", flush=True)


if __name__ == "__main__":
    main()
