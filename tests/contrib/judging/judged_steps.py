"""Steps of episodes by hand, and a place for rewards."""

from pathlib import Path
from typing import Any

from treeagent.config import RewardsConfig, RunConfig
from treeagent.envs.example import Example
from treeagent.pipeline.rewards import Place, Step
from treeagent.types import Action, Message, State, Task, Transition

TASK = Task("task", "Find the lamp.", data={"answer": "the red one"})
OPENING = Message("user", "Find the lamp.")


def step(call: str = "look", reward: float = 0.0, *, end: str = "", paid: float = 0.0, **result: Any) -> Step:
    """A step that earned ``reward`` after ``paid``. ``end`` is "terminated", "truncated" or empty."""
    after = State(TASK, (OPENING, Message("assistant", f"{call}\n1: yes"), Message("user", "a lamp")))
    action = Action(call, call, token_ids=(1, 2, 3), logprobs=(-1.0,) * 3, forced=(0,))
    ended = Transition(after, reward, terminated=end == "terminated", truncated=end == "truncated", **result)
    return Step(State(TASK, (OPENING,), paid=paid), action, ended)


def place(folder: Path, function: str = "", stage: str = "collect", **options: Any) -> Place:
    return Place(RunConfig(rewards=RewardsConfig(function, options)), Example(), folder, stage)
