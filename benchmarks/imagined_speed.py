"""Steps per second of a slow environment and of a world model of it, on the same steps, in one thread.

    OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.imagined_speed configs/envs/miniwob.toml

The world model is trained from scratch on demonstrations. Further tasks are then demonstrated in the environment. Each
of their steps is timed, and so is going back one step, which every branch of a search requires. The model predicts the
same steps one at a time and sixteen at a time, as in a batch of a search. It needs not go back. The table also shows
how often its predictions are right.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from treeagent.config import RunConfig, load_config
from treeagent.generators.grammar import ReAct
from treeagent.imagination.load import world_model
from treeagent.run.folder import Run
from treeagent.run.progress import RichProgress
from treeagent.search.node import Tree
from treeagent.stages.build import env_dynamics, environment
from treeagent.stages.demonstrate import demonstrate, demonstration_path
from treeagent.stages.world import fit
from treeagent.types import Action, State, Transition
from treeagent.world_model.experience import ExperienceModel
from treeagent.world_model.transition import last_answer

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
QUESTION = "Is a world model faster than a slow environment?"
WAVE = 16


@dataclass(frozen=True)
class Step:
    """One step that the environment took."""

    before: State
    action: Action
    told: Transition
    seconds: float


def steps_of(config: RunConfig, count: int) -> tuple[list[Step], list[float]]:
    """Steps of demonstrated validation tasks with their times, and the seconds that going back one step takes."""
    env = environment(config)
    demonstrator = env.demonstrator(0.0)
    assert demonstrator is not None
    dynamics = env_dynamics(env, config, "imagined speed")
    trees = demonstrate(dynamics, demonstrator, env.tasks("validation", count), seed=0, grammar=ReAct())
    steps: list[Step] = []
    back: list[float] = []
    with asyncio.Runner() as runner:
        for tree in trees:
            chain = list(demonstration_steps(tree))
            runner.run(dynamics.reset(tree.task))
            for before, action in chain:
                started = time.perf_counter()
                transition = runner.run(dynamics.step(before, action))
                steps.append(Step(before, action, transition, time.perf_counter() - started))
            for before, _ in chain[-1:]:
                started = time.perf_counter()
                dynamics.move_to(before)
                back.append(time.perf_counter() - started)
    return steps, back


def demonstration_steps(tree: Tree) -> Iterator[tuple[State, Action]]:
    """The states of a demonstration, each with the action taken there."""
    node = tree.root
    for edge in demonstration_path(tree):
        assert edge.child is not None
        yield node.state, edge.action
        node = edge.child


def imagine(model: ExperienceModel, steps: Sequence[Step], together: int) -> tuple[list[Transition], float]:
    """Predict all steps, ``together`` at a time. Returns the model's transitions and the seconds taken."""

    async def batch(arguments: Sequence[Step]) -> list[Transition]:
        return await asyncio.gather(*(model.step(step.before, step.action) for step in arguments))

    transitions: list[Transition] = []
    started = time.perf_counter()
    with asyncio.Runner() as runner:
        for start in range(0, len(steps), together):
            transitions += runner.run(batch(steps[start : start + together]))
    return transitions, time.perf_counter() - started


def outcome_of(transition: Transition) -> tuple[str, float | None, bool]:
    return last_answer(transition.state.messages), transition.reward, transition.terminated


def main() -> None:
    options = repeating(__doc__, "imagined_speed", rounds=1)
    options.add_argument("config", type=Path)
    options.add_argument("--demonstrations", type=int, default=150)
    options.add_argument("--steps", type=int, default=400, help="of the optimiser")
    options.add_argument("--tasks", type=int, default=30)
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = options.parse_args()
    learnt = [f"world.demonstrations={arguments.demonstrations}", f"world.training.max_steps={arguments.steps}"]
    learnt += [f"warm_start.episodes={arguments.demonstrations}", f"warm_start.tasks={arguments.demonstrations}"]
    config = load_config(arguments.config, [*SETTINGS, *learnt, *arguments.set])
    arms = ["environment, onwards", "environment, after going back one step"]
    arms += [f"imagined, {together} at a time" for together in (1, WAVE)]

    def measure(number: int) -> Figures:
        seeded = replace(config, seed=number)
        with tempfile.TemporaryDirectory() as folder:
            with Run.create(Path(folder) / "run", seeded, resume=False) as run:
                world = fit(seeded, run, RichProgress(), run.checkpoints / "world")
            steps, back = steps_of(seeded, arguments.tasks)
            real = len(steps) / sum(step.seconds for step in steps)
            branch = 1 / (1 / real + statistics.mean(back))
            found = {arms[0]: {"steps / s": real, "ratio": 1.0}, arms[1]: {"steps / s": branch, "ratio": branch / real}}
            with world_model(seeded, world) as model:
                for arm, together in zip(arms[2:], (1, WAVE), strict=True):
                    transitions, seconds = imagine(model, steps, together)
                    right = [
                        outcome_of(one) == outcome_of(step.told) for one, step in zip(transitions, steps, strict=True)
                    ]
                    speed = len(steps) / seconds
                    found[arm] = {"steps / s": speed, "ratio": speed / real, "exact": statistics.mean(right)}
        return found

    with record_of(arguments, QUESTION) as record:
        add_rounds(record, arguments.rounds, options_digest(arguments), arms, measure)


if __name__ == "__main__":
    main()
