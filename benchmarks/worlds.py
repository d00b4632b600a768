"""World models with different bases and encoders, on the same steps and the same audit.

    make runs/smollm2
    .venv/bin/python -m benchmarks.quickstart --config quickstart_llm --seeds 0 1
    .venv/bin/python -m benchmarks.worlds --runs runs/quickstart_llm --seeds 0 1

All arms know the same steps: those of the run's trees and of the demonstrations of its warm start, without the steps of
held-out tasks. Reasoning is written by rule. "scratch" trains a small model. "adapter" trains an adapter of the
run's base model. "prompted" gives the base model instructions and similar steps, without training and without
reasoning. "scratch, sentences" differs from "scratch" in its encoder: a trained sentence encoder in the folder
``--sentences`` (docs/world_model.md says how to get it) finds the similar step. All arms are audited on the same steps
of held-out tasks.
Finished fits are only read; unfinished ones are resumed.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.command import record_of, settings_of, starting
from benchmarks.record import Row, digest
from treeagent.config import RunConfig, load_config
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.world import fit_world
from treeagent.pipeline.world_audit import audit_world

QUESTION = "What does a world model gain from a pretrained base?"
SHARED = ('world.free=["search","click[next >]"]', "world.max_new_tokens=256")
SCRATCH = (
    "world.examples=1",
    "world.end_rows=3",
    "world.max_tokens=512",
    "world.scratch={layers=3, width=128, heads=4}",
    "world.training={optimiser='muon', learning_rate=4e-3, warmup_steps=50, batch_size=16, max_steps=2000}",
)
BASE = ("world.model={model}", "world.max_tokens=1024", "world.dtype={dtype}")
ADAPTER = "world.lora={rank=16}"
TRAINED = "world.training={learning_rate=1e-3, warmup_steps=5, batch_size=8, max_steps={steps}}"
UNTRAINED = "world.training={learning_rate=1e-12, batch_size=1, max_steps=1}"
"""One step that changes no prediction: a fit always trains."""
ARMS: Mapping[str, Sequence[str]] = {
    "scratch": SCRATCH,
    "scratch, sentences": (*SCRATCH, "world.encoder={kind='sentence-transformers', model='{sentences}'}"),
    "adapter": (*BASE, ADAPTER, TRAINED, "world.end_rows=3"),
    "prompted, 3 examples": (*BASE, ADAPTER, UNTRAINED, "world.examples=3", "world.reasoning=false"),
}


def config_of(run: Run, arm: str, steps: int, demonstrations: int, sentences: Path) -> RunConfig:
    """The settings of an arm: those of the run, and those of its world model."""
    policy = run.config.policy
    values = {
        "{steps}": str(steps), "{model}": str(policy.model), "{dtype}": policy.dtype, "{sentences}": str(sentences),
    }  # fmt: skip
    chosen = list(ARMS[arm])
    for name, value in values.items():
        chosen = [each.replace(name, value) for each in chosen]
    return load_config(run.path / "config.toml", [*SHARED, *chosen, f"world.demonstrations={demonstrations}"])


def audited(config: RunConfig, start: Run, out: Path, most: int) -> Mapping[str, float]:
    """Fit and audit a world model in a copy of a run with its trees. Returns the figures."""
    if not out.exists():
        shutil.copytree(start.path, out, ignore=shutil.ignore_patterns("checkpoints", "episodes", "outcomes"))
    with Run.create(out, start.config, resume=True) as run:
        started = time.perf_counter()
        world = fit_world(config, run, RichProgress())
        fitted = time.perf_counter()
        found = audit_world(config, run, world, most)
        seconds = time.perf_counter() - fitted
    figures = {
        "exact": found.overall.observation_exact,
        "agreement": found.overall.observation_agreement,
        "reward right": found.overall.reward_accuracy,
        "end right": found.overall.termination_accuracy,
        "unreadable": found.overall.unreadable,
        "wrong episodes": found.wrong_episodes,
        "optimism": found.optimism,
        "lambda cap": found.lambda_cap,
        "audited steps": found.overall.steps,
        "fit seconds": fitted - started,
        "audit seconds": seconds,
    }
    if found.determined is not None:
        figures["exact where determined"] = found.determined.observation_exact
    return figures


def main() -> None:
    options = starting(__doc__, "worlds", out="runs/worlds")
    options.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    options.add_argument("--steps", type=int, default=120, help="optimiser steps of an adapter, of 8 rows each")
    options.add_argument("--demonstrations", type=int, default=480, help="episodes of the warm start")
    options.add_argument("--sentences", type=Path, default=Path("minilm/all-MiniLM-L6-v2"), help="a sentence encoder")
    options.add_argument("--audit", type=int, default=150, help="most steps of an audit")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            start = Run.open(arguments.runs / f"seed{seed}")
            for arm in arguments.arms:
                config = config_of(start, arm, arguments.steps, arguments.demonstrations, arguments.sentences)
                settings = digest({"run": settings_of(config), "audit": arguments.audit})
                if record.has(arm, seed, settings):
                    continue
                folder = arguments.out / f"seed{seed}-{arm.replace(', ', '-').replace(' ', '-')}"
                figures = audited(config, start, folder, arguments.audit)
                record.add(Row(arm, seed, settings, figures=figures))
                print(f"seed {seed} {arm}: {figures}", flush=True)


if __name__ == "__main__":
    main()
