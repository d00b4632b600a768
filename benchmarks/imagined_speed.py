"""Steps per second of an environment that is slow, and of a world model of it, on the same steps of one thread.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/imagined_speed.py configs/envs/miniwob.toml

The model learns demonstrations from scratch. Then further tasks are demonstrated in the environment, where each step is
timed, and so is going back one step, as every branch of a search must; the model is asked for the same steps alone and
sixteen at a time, as a search's batch asks, and needs not go back. How often it is right stands beside.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from treeagent.config import RunConfig, load_config
from treeagent.generators.grammar import ReAct
from treeagent.imagination.load import world_model
from treeagent.run.folder import Run
from treeagent.run.progress import RichProgress
from treeagent.search.node import Tree
from treeagent.stages.build import environment, play_on
from treeagent.stages.demonstrate import demonstrate, demonstrated
from treeagent.stages.world import fit
from treeagent.types import Action, State, Transition
from treeagent.world_model.experience import ExperienceModel
from treeagent.world_model.transition import answered

SETTINGS = (
    "workers=1",
    "world.examples=1",
    "world.max_tokens=640",
    "world.max_new_tokens=160",
    "world.scratch.layers=2",
    "world.scratch.width=128",
    "world.training.optimiser=muon",
    "world.training.learning_rate=4e-3",
    "training.schedule=linear",
    "world.training.batch_size=8",
)
WAVE = 16


@dataclass(frozen=True)
class Step:
    """One step that the environment took."""

    before: State
    action: Action
    told: Transition
    seconds: float


def steps_of(config: RunConfig, count: int) -> tuple[list[Step], list[float]]:
    """Steps of demonstrated validation tasks, timed, and the seconds that going back a step takes."""
    env = environment(config)
    demonstrator = env.demonstrator(0.0)
    assert demonstrator is not None
    dynamics = play_on(env, config, "imagined speed")
    trees = demonstrate(dynamics, demonstrator, env.tasks("validation", count), seed=0, grammar=ReAct())
    steps: list[Step] = []
    back: list[float] = []
    with asyncio.Runner() as runner:
        for tree in trees:
            chain = list(chained(tree))
            runner.run(dynamics.reset(tree.task))
            for before, action in chain:
                started = time.perf_counter()
                told = runner.run(dynamics.step(before, action))
                steps.append(Step(before, action, told, time.perf_counter() - started))
            for before, _ in chain[-1:]:
                started = time.perf_counter()
                dynamics.stand_at(before)
                back.append(time.perf_counter() - started)
    return steps, back


def chained(tree: Tree) -> Iterator[tuple[State, Action]]:
    """The states of a demonstration, and what was done there."""
    node = tree.root
    for edge in demonstrated(tree):
        assert edge.child is not None
        yield node.state, edge.action
        node = edge.child


def imagine(model: ExperienceModel, steps: Sequence[Step], together: int) -> tuple[list[Transition], float]:
    """What the model says of all steps, so many asked at once, and its seconds."""

    async def batch(asked: Sequence[Step]) -> list[Transition]:
        return await asyncio.gather(*(model.step(step.before, step.action) for step in asked))

    told: list[Transition] = []
    started = time.perf_counter()
    with asyncio.Runner() as runner:
        for start in range(0, len(steps), together):
            told += runner.run(batch(steps[start : start + together]))
    return told, time.perf_counter() - started


def said(told: Transition) -> tuple[str, float | None, bool]:
    return answered(told.state.messages), told.reward, told.terminated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--demonstrations", type=int, default=150)
    parser.add_argument("--steps", type=int, default=400, help="of the optimiser")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    learnt = [f"world.demonstrations={arguments.demonstrations}", f"world.training.max_steps={arguments.steps}"]
    learnt += [f"warm_start.episodes={arguments.demonstrations}", f"warm_start.tasks={arguments.demonstrations}"]
    config = load_config(arguments.config, [*SETTINGS, *learnt, *arguments.set])
    with tempfile.TemporaryDirectory() as folder:
        with Run.create(Path(folder) / "run", config, resume=False) as run:
            world = fit(config, run, RichProgress(), run.checkpoints / "world")
        steps, back = steps_of(config, arguments.tasks)
        real = len(steps) / sum(step.seconds for step in steps)
        print(f"| {len(steps)} steps of {config.environment.name} | steps/s | ÷ environment |\n|---|---|---|")
        print(f"| environment, onwards | {real:.1f} | 1.0 |")
        branch = 1 / (1 / real + statistics.mean(back))
        print(f"| environment, after going back one step | {branch:.1f} | {branch / real:.1f} |")
        with world_model(config, world) as model:
            for together in (1, WAVE):
                told, seconds = imagine(model, steps, together)
                speed = len(steps) / seconds
                print(f"| imagined, {together} at a time | {speed:.1f} | {speed / real:.1f} |")
        right = [said(one) == said(step.told) for one, step in zip(told, steps, strict=True)]
        print(f"\nimagined exactly as the environment answered: {100 * statistics.mean(right):.0f} %")


if __name__ == "__main__":
    main()
