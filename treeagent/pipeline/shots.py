"""Few-shot demonstrations, which a prompt shows as earlier turns: played by the environment's demonstrator, or read
from a file."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treeagent.envs.answers import contained
from treeagent.envs.base import Demonstrator, Env, ToolSpec
from treeagent.envs.dynamics import EnvDynamics
from treeagent.generators.turn import Grammar, make_grammar
from treeagent.pipeline.formats import player_action
from treeagent.search.node import reaches
from treeagent.store import regular
from treeagent.types import Message, Task, UserError, derive_seed

MOST_TRIES = 10
"""Training tasks that the demonstrator tries at most for each demonstration that is wanted."""


@dataclass(frozen=True, slots=True)
class Shot:
    """A demonstration: the agent's turns, and the text that it reads before each of them."""

    prompts: tuple[str, ...]
    turns: tuple[str | tuple[str, str], ...]
    """The turns: each the text of a whole turn, or a pair of thought and call."""

    def messages(self, grammar: Grammar, tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
        """The demonstration as a conversation. Pairs of thought and call are written in the format of ``grammar``."""
        turns = (turn if isinstance(turn, str) else player_action(turn, grammar, tools).text for turn in self.turns)
        pairs = zip(self.prompts, turns, strict=True)
        return tuple(each for prompt, turn in pairs for each in (Message("user", prompt), Message("assistant", turn)))


def played_shots(env: Env, tasks: Sequence[Task], count: int, *, max_steps: int, format: str, seed: int) -> list[Shot]:
    """The first ``count`` successful episodes on ``tasks`` by the environment's demonstrator, played without noise.

    Raises:
        UserError: there is no demonstrator, or it solves fewer than ``count`` of the tasks.
    """
    dynamics = EnvDynamics(env, max_steps=max_steps, seed=derive_seed(seed, "shots"))
    grammar, shots = make_grammar(format, tools=env.tools()), list[Shot]()
    player = env.demonstrator(0.0)
    if player is None:
        raise UserError(
            f"policy.shots is {count}, but the environment has no demonstrator to show: name a file of demonstrations "
            "instead, or set it to 0"
        )
    for task in tasks:
        if len(shots) < count:
            rng = random.Random(derive_seed(seed, "shots", task.id))
            shot, total = asyncio.run(_episode(dynamics, player, task, grammar, rng))
            shots += [shot] if reaches(total, 1.0) else []
    if len(shots) < count:
        raise UserError(
            f"policy.shots is {count}, but the environment's demonstrator solves only {len(shots)} of {len(tasks)} "
            f"training tasks within {max_steps} steps: lower it, raise environment.max_steps, or name a file of "
            "demonstrations"
        )
    return shots


async def _episode(
    dynamics: EnvDynamics, player: Demonstrator, task: Task, grammar: Grammar, rng: random.Random
) -> tuple[Shot, float]:
    """Play an episode. Returns it with the sum of its rewards."""
    state, tools, total = await dynamics.reset(task), dynamics.env.tools(), 0.0
    prompts, turns = list[str](), list[tuple[str, str]]()
    while True:
        with contained():
            turn = player.act(rng)
        prompts.append(state.messages[-1].content)
        turns.append(turn)
        transition = await dynamics.step(state, player_action(turn, grammar, tools))
        state, total = transition.state, total + (transition.reward or 0.0)
        if transition.terminated or transition.truncated:
            return Shot(tuple(prompts), tuple(turns)), total


def read_shots(path: Path) -> list[Shot]:
    """The demonstrations of a file: JSON lines ``{"messages": [{"role": "user", "content": ...}, {"role": "assistant",
    "content": ...}, ...]}``. The turns of the assistant are shown as they are written. Messages after its last turn
    are left out.

    Raises:
        UserError: the file cannot be read, or a line of it has another form.
    """
    try:
        lines = regular(path).read_text(encoding="utf-8-sig").split("\n")  # a JSON text may hold other line breaks
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"policy.shots names {path}, which cannot be read ({error}): give a number, or a file of JSON lines"
        ) from error
    shots = [_shot(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not shots:
        raise UserError(f"policy.shots names {path}, which holds no demonstration: write one a line, or set it to 0")
    return shots


def _shot(path: Path, number: int, line: str) -> Shot:
    try:
        messages = json.loads(line)["messages"]
        texts, roles = ([message[key] for message in messages] for key in ("content", "role"))
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a content that is no text")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"policy.shots: line {number} of {path} is no demonstration ({error!r}): write "
            '{"messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]}'
        ) from None
    pairs = len(texts) // 2 * 2
    if not pairs or any(role != ("user", "assistant")[place % 2] for place, role in enumerate(roles)):
        raise UserError(
            f"policy.shots: the messages in line {number} of {path} are by {', '.join(map(str, roles))}: write them by "
            "user and assistant in turn"
        )
    return Shot(tuple(texts[:pairs:2]), tuple(texts[1:pairs:2]))
