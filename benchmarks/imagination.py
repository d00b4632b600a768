"""What a policy learns from trees grown in a world model, compared with real trees.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies to start from
    OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.imagination --seeds 0 1 2

Every arm has the tasks, limits and updates of one recipe, by default configs/sim_to_real.toml, and starts from the same
warm-start policy. Policies are validated in the environment, only before and after each update: an update keeps its
last step or, if that is no better, the weights that it began with. The arm with few trees overfits sooner, so it
validates more often and keeps the best step. Unless its name says otherwise, an arm learns only from the trees of the
current round. What arms have in common (the real trees, the world model fitted to them, a first round) is made once per
seed. Rows already recorded are kept, and unfinished runs are resumed. Each row shows the last round, whatever its
validation success.
"""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.command import limits_of, record_of, start_of, starting
from benchmarks.learning import Learnt, add_start, arguments_of, settings_digest, train
from benchmarks.record import Row
from treeagent.agent.checkpoint import load_checkpoint, save_checkpoint
from treeagent.config import RunConfig, load_config
from treeagent.generators.chat import ChatFormat
from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import train_sft
from treeagent.pipeline.build import env_dynamics, environment
from treeagent.pipeline.collect import collect
from treeagent.pipeline.folder import Run
from treeagent.pipeline.imagination import memory_path, wording
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.trees import read_trees
from treeagent.pipeline.world import audit_world, experiences, fit, split
from treeagent.search.node import finished_paths, succeeds
from treeagent.views.tokens import TokenRow
from treeagent.world_model.language import answer_rows
from treeagent.world_model.replay import ReplayBuffer

QUESTION = "Does a policy learn as much from imagined trees as from real ones?"
CONFIG = Path(__file__).parent.parent / "configs" / "sim_to_real.toml"
ALIKE = ("update.rft.validate_every=150",)
CAREFUL = ("world.noise=0.05", "world.verify_steps=12")
"""Imagine only as far as the audit allows, and verify. All world models are audited under these settings, also for arms
that then ignore the audit."""
_SEEDING, _WORLD, _AUDIT = "collect-0", "world-1", "audit-1"
"""Stages of a run that imagines: collecting the real trees, fitting the world model to them, and its audit."""
_IMAGINED, _LEARNT = "collect-1-imagined", "round-1-rft"
"""Stages of the first round: collecting the imagined trees, and the update."""
_FLATTERY_STEPS = 150


@dataclass(frozen=True)
class Recipe:
    """How an arm gets its trees."""

    imagined: Sequence[float]
    """Share of the trees that grow in the world model, by round."""
    trusted: bool = True
    """True: imagine whatever the audit says, replay nothing, and use one world model for all rounds. False: imagine as
    far as the audit allows."""
    world: str = ""
    """Name of the world model's variant in ``WORLDS``."""
    replay: int = 0
    """Number of earlier rounds whose trees are learned from, too. The real trees that the world model was fitted to
    count as the earliest round."""
    begins_as: str = ""
    """The arm whose finished stages this arm copies; empty for none."""
    begun: Sequence[str] = (_IMAGINED, _LEARNT)
    """The stages that it copies."""
    settings: Sequence[str] = ()
    few: bool = False
    """Whether each round has only as many trees as the world model was fitted to."""

    def overrides(self, seed_tasks: int) -> list[str]:
        rounds = (f"adapt.rounds={len(self.imagined)}", f"adapt.imagined={[*self.imagined]}")
        few = (f"collect.tasks={seed_tasks}",) if self.few else ()
        verified = ("world.verify_steps=0",) if self.trusted else CAREFUL
        return [
            *ALIKE, *rounds, f"adapt.replay={self.replay}", *verified, *few, *WORLDS.get(self.world, ()),
            *self.settings,
        ]  # fmt: skip


WORLDS: Mapping[str, Sequence[str]] = {
    "": (),
    "no reasoning": ("world.reasoning=false",),
    "no retrieval": ("world.examples=0",),
    "optimist": (),
}
"""Settings of each world model. "optimist" is the first one, trained further to predict that every end is worth 1."""
ARMS: Mapping[str, Recipe] = {
    "real": Recipe((0.0, 0.0)),
    "real, as few as the seed": Recipe((0.0,), few=True, settings=("update.rft.validate_every=25",)),
    "imagined": Recipe((1.0,)),
    "imagined, then 1/16 real": Recipe((1.0, 0.9375), begins_as="imagined"),
    "imagined, and the seed's trees": Recipe((1.0,), replay=1, begins_as="imagined", begun=(_IMAGINED,)),
    "the same, then 1/16 real": Recipe((1.0, 0.9375), replay=1, begins_as="imagined, and the seed's trees"),
    "twice as many and the seed's, then 1/32 real": Recipe((1.0, 0.96875), replay=1, settings=("collect.tasks=800",)),
    "as the audit allows": Recipe((1.0,), trusted=False),
    "imagined, no curriculum": Recipe((1.0,), settings=("adapt.curriculum=0",)),
    "imagined, no reasoning": Recipe((1.0,), world="no reasoning"),
    "imagined, no retrieval": Recipe((1.0,), world="no retrieval"),
    "optimist": Recipe((1.0,), world="optimist"),
    "optimist, as the audit allows": Recipe((1.0,), trusted=False, world="optimist"),
}


AUDITED: Mapping[str, str] = {
    "share": "share imagined",
    "observation_exact": "exact",
    "reward_accuracy": "reward right",
    "wrong_episodes": "episodes wrong",
    "optimism": "optimism",
}
"""Figures of a world model's audit, with their names in the table."""


FIRST_ROUND = "real, one round"
"""The row of the arm "real" after its first round."""


@dataclass(frozen=True)
class Arm:
    """The result of one arm from one start."""

    learnt: Learnt
    audit: Mapping[str, float]
    """Figures of the audit; empty if nothing was to be imagined."""
    seed_steps: int
    """Environment steps that gave the world model its data."""
    real_steps: int
    """Environment steps after that."""
    imagined_steps: int
    kept: float | None
    """Share of the successes found in the first round's imagined trees that are successes in the environment."""

    def row(self, name: str, seed: int) -> Row:
        """The row after the last round, with the audit's figures."""
        last = self.learnt.after(len(self.learnt.rounds))
        audited = {AUDITED[name]: float(value) for name, value in self.audit.items() if name in AUDITED}
        steps = {"seed's steps": float(self.seed_steps), "imagined steps": float(self.imagined_steps)}
        kept_figures = {} if self.kept is None else {"successes kept": self.kept}
        return replace(last.row(name, seed, **steps, **audited, **kept_figures), environment_steps=self.real_steps)


def run(config_file: Path, arm: str, seed: int, start: Path, out: Path, overrides: Sequence[str]) -> Arm:
    recipe = ARMS[arm]
    seed_tasks = load_config(config_file, overrides).adapt.seed_tasks
    folder, settings = _folder(out, arm, seed), [*recipe.overrides(seed_tasks), *overrides]
    if any(recipe.imagined):
        world = make_world(config_file, recipe.world, seed, start, out, overrides)
        if recipe.begins_as:
            run(config_file, recipe.begins_as, seed, start, out, overrides)
        with Run.create(
            folder, load_config(config_file, arguments_of(config_file, seed, settings)), resume=True
        ) as new_run:
            if not new_run.is_done(_WORLD):
                shutil.copy(world / "fidelity.json", folder)
                copy_stages(Run.open(world), new_run, (_SEEDING, _WORLD))
            if recipe.begins_as and not new_run.is_done(recipe.begun[-1]):
                copy_stages(Run.open(_folder(out, recipe.begins_as, seed)), new_run, recipe.begun)
            if recipe.trusted:
                trust(new_run, recipe.imagined)
    learnt = train(config_file, seed, start, folder, settings)
    finished = Run.open(folder)
    stages = finished.stages()
    last_metrics = [row for row in finished.metrics() if row["stage"] == "adapt"][-1]
    seeding = stages.get(_SEEDING, {}).get("environment_steps", 0)
    demonstrated = stages.get(_WORLD, {}).get("demonstrated_steps", 0)
    share = {"share": stages[_AUDIT]["imagined"]} if _AUDIT in stages else {}
    audit = folder / "fidelity.json"
    return Arm(
        learnt,
        json.loads(audit.read_text()) | share if share else {},
        seeding + demonstrated,
        last_metrics["environment_steps"] - seeding,
        last_metrics["imagined_steps"],
        asyncio.run(promises_kept(finished)) if any(recipe.imagined) else None,
    )


async def promises_kept(run: Run) -> float | None:
    """Replay every success of the first round's imagined trees in the environment. Returns the share that succeeds,
    None if there are no such successes. The steps serve the table alone and are not counted."""
    dynamics, returned = env_dynamics(environment(run.config), run.config, "promises"), list[float]()
    for tree in read_trees(run.trees, [_IMAGINED]):
        for path in finished_paths(tree):
            if not succeeds(path):
                continue
            state, total = await dynamics.reset(tree.task), 0.0
            for edge in path:
                transition = await dynamics.step(state, edge.action)
                state, total = transition.state, total + (transition.reward or 0.0)
                if transition.terminated or transition.truncated:
                    break
            returned.append(total)
    return sum(total >= 1 for total in returned) / len(returned) if returned else None


def trust(run: Run, shares: Sequence[float]) -> None:
    """Make every round of a run imagine the share that its recipe wants, with the first round's world model, whatever
    the audit says."""
    audit = json.loads((run.path / "fidelity.json").read_text())
    audit_result = {
        name: audit[name] for name in ("lambda_cap", "optimism", "wrong_episodes", "reward_error", "transition_error")
    }
    for number, share in enumerate(shares, 1):
        if not run.is_done(f"audit-{number}"):
            world = run.checkpoints / f"world-{number}"
            if number > 1:
                shutil.copytree(run.checkpoints / _WORLD, world, dirs_exist_ok=True)
                shutil.copy(memory_path(run.checkpoints / _WORLD), memory_path(world))
            run.finish(f"audit-{number}", {"imagined": share, **audit_result})


def make_world(config_file: Path, name: str, seed: int, start: Path, out: Path, overrides: Sequence[str]) -> Path:
    """Collect real trees, fit a world model to them and audit it. Returns the folder of the run."""
    folder = _folder(out, f"world {name}", seed)
    if (folder / "fidelity.json").exists():
        return folder
    config = load_config(config_file, arguments_of(config_file, seed, [*WORLDS[name], *CAREFUL, *overrides]))
    progress = RichProgress()
    first = make_world(config_file, "", seed, start, out, overrides) if name else None
    with Run.create(folder, config, resume=True) as world_run:
        if first is None:
            collect(config, world_run, progress, start, _SEEDING, range(config.adapt.seed_tasks))
        elif name == "optimist" and not world_run.is_done(_WORLD):
            copy_stages(Run.open(first), world_run, (_SEEDING, _WORLD), partial(make_optimist, config))
        elif not world_run.is_done(_SEEDING):
            copy_stages(Run.open(first), world_run, (_SEEDING,))
        fit(config, world_run, progress, world_run.checkpoints / _WORLD)
        audit_world(config, world_run, world_run.checkpoints / _WORLD)
    return folder


def copy_stages(lender: Run, borrower: Run, stages: Sequence[str], change: Callable[[Run], None] | None = None) -> None:
    """Copy finished stages of one run into another, which goes on from there. ``change`` may modify the copies."""
    folders = [folder for folder in (lender.trees, lender.checkpoints) if folder.exists()]
    for path in (path for folder in folders for path in folder.iterdir()):
        if any(path.name.startswith(stage) for stage in stages):
            target = borrower.path / path.relative_to(lender.path)
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy(path, target)
    if change:
        change(borrower)
    for stage in stages:
        borrower.finish(stage, lender.facts(stage))


def make_optimist(config: RunConfig, run: Run) -> None:
    """Train the world model of a run to predict that every end is worth 1."""
    world = run.checkpoints / _WORLD
    learnt, _ = split(experiences(run))
    ends = [replace(one, reward=1.0) for one in learnt if one.terminated]
    checkpoint, memory = load_checkpoint(world), ReplayBuffer(memory_path(world))
    rows = [
        TokenRow(*row)
        for row in answer_rows(ends, ChatFormat(checkpoint.tokenizer), wording(config), memory, config.world.examples)
        if len(row.token_ids) <= config.world.max_tokens
    ]
    memory.close()
    train_sft(
        checkpoint.model,
        checkpoint.tokenizer,
        rows,
        replace(config.learner(SFTConfig, config.world.training), max_steps=_FLATTERY_STEPS),
    )
    shutil.rmtree(world)
    save_checkpoint(checkpoint, world)


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / re.sub(r"\W+", "-", name.strip()) / f"seed{seed}"


def main() -> None:
    options = starting(__doc__, "imagination", out="runs/imagination")
    options.add_argument("--config", type=Path, default=CONFIG, help="of limits, updates and the world model")
    options.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    arguments = options.parse_args()
    config = load_config(arguments.config, arguments.set)
    seed_tasks = config.adapt.seed_tasks
    with record_of(arguments, QUESTION, **limits_of(config)) as record:
        for seed in arguments.seeds:
            start = start_of(arguments.runs, seed)
            for name in arguments.arms:
                settings_hash = settings_digest(
                    arguments.config, [*ARMS[name].overrides(seed_tasks), *arguments.set], start
                )
                if record.has(name, seed, settings_hash):
                    continue
                arm = run(arguments.config, name, seed, start, arguments.out, arguments.set)
                add_start(record, seed, arm.learnt, start)
                if name == "real":
                    record.add(arm.learnt.after(1).row(FIRST_ROUND, seed))
                record.add(arm.row(name, seed))
                print(f"seed {seed} {name}: {100 * arm.learnt.rounds[-1]['success']:.1f} %", flush=True)


if __name__ == "__main__":
    main()
