"""Environments whose tasks need more and more decisions, for ``benchmarks.sweep``."""

from collections.abc import Mapping
from dataclasses import dataclass

from treeagent.config import Options


@dataclass(frozen=True)
class Rung:
    """Tasks of one length."""

    name: str
    options: Options
    """Options of the environment that differ from those of the training."""
    max_steps: int
    """Limit of an episode: about twice the mean length of a plan."""


@dataclass(frozen=True)
class Ladder:
    """How a policy is trained, and the rungs at which it is evaluated."""

    recipe: str
    settings: tuple[str, ...]
    """Overrides of the recipe for the policy's run, on one core."""
    rungs: tuple[Rung, ...]
    tokens: int
    """Limit of generated tokens per task."""
    action_tokens: int
    """Approximate number of tokens in a turn of the policy."""
    circles: bool = False
    """Whether steps can be undone. Tree search is then also measured with ``search.prune_repeats``."""


_ONE_CORE = ("workers=1", "threads=1")

LADDERS: Mapping[str, Ladder] = {
    # The policy reads which roads lead on from its place, and where spare tires are, but not the map. So a wrong road
    # looks like the right one.
    "tireworld": Ladder(
        "planning",
        (
            "environment.options={domain='tireworld', size=[2, 6], show='changes', show_commands=true, hide=['road']}",
            "environment.max_steps=24",
            "warm_start.episodes=3000",
            "warm_start.tasks=3000",
            "warm_start.noise=0.1",
            "warm_start.max_tokens=640",
            "warm_start.training.max_steps=700",
            *_ONE_CORE,
        ),
        tuple(Rung(f"size {size}", {"size": size}, 4 * size) for size in range(2, 9)),
        tokens=800,
        action_tokens=10,
    ),
    # The same with routes up to five times as long.
    "tireworld_long": Ladder(
        "planning",
        (
            "environment.options={domain='tireworld', size=[2, 30], show='changes', show_commands=true, hide=['road']}",
            "environment.max_steps=120",
            "policy.scratch.context=4096",
            "warm_start.episodes=8000",
            "warm_start.tasks=8000",
            "warm_start.noise=0.1",
            "warm_start.max_tokens=3200",
            "warm_start.training.batch_size=16",
            "warm_start.training.max_steps=700",
            "collect.tasks=200",
            *_ONE_CORE,
        ),
        tuple(Rung(f"size {size}", {"size": size}, 4 * size) for size in (5, 10, 20, 30)),
        tokens=3200,
        action_tokens=10,
    ),
    # A ball in a room of which the agent sees seven squares ahead. Nothing ends an episode but its limit.
    "minigrid": Ladder(
        "envs/minigrid",
        (
            "environment.options={level='BabyAI-OneRoomS16-v0'}",
            "environment.max_steps=36",
            "policy.scratch.context=4096",
            "warm_start.episodes=2000",
            "warm_start.tasks=2000",
            "warm_start.noise=0.1",
            "warm_start.max_tokens=1600",
            "warm_start.training.batch_size=16",
            "warm_start.training.max_steps=500",
            *_ONE_CORE,
        ),
        tuple(
            Rung(f"room of {size}", {"level": f"BabyAI-OneRoomS{size}-v0"}, steps)
            for size, steps in ((8, 10), (12, 18), (16, 36), (20, 60))
        ),
        tokens=800,
        action_tokens=8,
        circles=True,
    ),
}
