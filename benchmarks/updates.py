"""README's table of updates: what each way of learning makes of the same trees, and what it would do without care.

    .venv/bin/python benchmarks/quickstart.py --config store --seeds 0 1 2  # trains the policies to start from
    .venv/bin/python benchmarks/updates.py --seeds 0 1 2

A seed's trees are collected once, as configs/adapt.toml says. Runs that are there already are read, unfinished ones
resumed.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: a process a core

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from learning import pooled

from treeagent.config import Method, load_config
from treeagent.run.folder import COLLECTED, Run
from treeagent.run.progress import QuietProgress
from treeagent.stages.evaluate import measure
from treeagent.stages.search import collect
from treeagent.stages.update import learn

ADAPT = Path(__file__).parent.parent / "configs" / "adapt.toml"
PLAIN = ("update.dpo.loss_type=['sigmoid']", "update.dpo.loss_weights=[1.0]")
BARE = ("update.grpo.anchor=0.0",)


@dataclass(frozen=True)
class Variant:
    """One way of learning: its updates one on the other, with settings of its own. Of several, the earlier ones are
    those of the variant that its name begins with, whose checkpoint it goes on from."""

    methods: tuple[Method, ...]
    overrides: tuple[str, ...] = ()


PATHS = ("update.imitation.what=paths",)
VARIANTS: Mapping[str, Variant] = {
    "rft": Variant(("rft",), PATHS),
    "states": Variant(("rft",)),
    "distil": Variant(("distil",)),
    "distil-visits": Variant(("distil",), ("update.targets.kind=visits",)),
    "dpo": Variant(("dpo",)),
    "dpo-every-pair": Variant(("dpo",), ("update.pairs.rule=all",)),
    "dpo-sigmoid-alone": Variant(("dpo",), PLAIN),
    "grpo": Variant(("grpo",)),
    "grpo-no-anchor": Variant(("grpo",), BARE),
    "grpo-treerl": Variant(("grpo",), ("update.advantages.kind=treerl",)),
    "dpo-grpo": Variant(("dpo", "grpo")),
    "rft-dpo": Variant(("rft", "dpo"), PATHS),
    "rft-grpo": Variant(("rft", "grpo"), PATHS),
    "states-dpo": Variant(("rft", "dpo")),
    "states-grpo": Variant(("rft", "grpo")),
}


@dataclass(frozen=True)
class Learnt:
    """What a variant made of one start."""

    before: float
    """Greedy success on held-out tasks."""
    after: float
    """The same of the weights that validation chose."""
    last_validation: float
    """Greedy success on validation tasks after the last step, whatever was chosen."""
    best_validation: float
    tasks: int


def run(seed: int, names: Sequence[str], starts: Path, out: Path) -> dict[str, Learnt]:
    """Every variant from one start and the same trees."""
    start, progress = starts / f"seed{seed}" / "checkpoints" / "warm", QuietProgress()
    alone = ["workers=1", 'evaluate.modes=["greedy"]']
    config = load_config(ADAPT, alone, seed=seed)
    learnt = {}
    with Run.create(out / f"seed{seed}", config, resume=True) as kept:
        collect(config, kept, progress, start)
        for name in names:
            variant, checkpoint = VARIANTS[name], start
            settings = load_config(ADAPT, [*alone, *variant.overrides], seed=seed)
            for written, method in zip(
                (*name.split("-")[: len(variant.methods) - 1], name), variant.methods, strict=True
            ):
                [checkpoint] = learn(
                    settings, kept, progress, [(checkpoint, method, kept.checkpoints / written)], [COLLECTED]
                )
            before, after = measure(config, kept, progress, [(start, "greedy"), (checkpoint, "greedy")])
            validations = [row["validation"] for row in kept.metrics() if row["stage"] == name and "validation" in row]
            learnt[name] = Learnt(
                before["success"], after["success"], validations[-1], max(validations), before["tasks"]
            )
            print(f"seed {seed} {name}: {learnt[name]}", flush=True)
    return learnt


def table(seeds: Sequence[Mapping[str, Learnt]]) -> str:
    """A line per variant, pooled over seeds; gains in points of held-out greedy success."""
    lines = [
        "| updates | greedy before | after | 95 % | by seed | gain | ÷ RFT | validation: best | after the last step |",
        f"|{'---|' * 9}",
    ]
    imitation = statistics.mean(seed["rft"].after - seed["rft"].before for seed in seeds) if "rft" in seeds[0] else 0.0
    for name in seeds[0]:
        several = [seed[name] for seed in seeds]
        gain = statistics.mean(one.after - one.before for one in several)
        lines.append(
            f"| {name} | {100 * statistics.mean(one.before for one in several):.1f} "
            f"| {pooled([one.after for one in several], [one.tasks for one in several])} "
            f"| {100 * gain:+.1f} | {f'{gain / imitation:.2f}' if imitation > 0 else ''} "
            f"| {' '.join(f'{100 * one.best_validation:.0f}' for one in several)} "
            f"| {' '.join(f'{100 * one.last_validation:.0f}' for one in several)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument(
        "--starts", type=Path, default=Path("runs/benchmark"), help="where benchmarks/quickstart.py wrote"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/updates"))
    parser.add_argument("--processes", type=int, default=2, help="seeds side by side, a core each")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        each = [pool.submit(run, seed, arguments.variants, arguments.starts, arguments.out) for seed in arguments.seeds]
        print(table([one.result() for one in each]))


if __name__ == "__main__":
    main()
