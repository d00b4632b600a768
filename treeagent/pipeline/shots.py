"""Turns of a scripted player: demonstrations that a prompt shows, and the check that an environment understands its
player in every format."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treeagent.envs.answers import checked_turn, contained
from treeagent.envs.base import Demonstrator, Env, ToolSpec
from treeagent.envs.calls import as_call, read_call
from treeagent.envs.dynamics import EnvDynamics
from treeagent.generators.turn import FORMATS, Grammar, make_grammar
from treeagent.search.node import reaches
from treeagent.store import regular
from treeagent.types import Action, Message, State, Task, Transition, UserError, derive_seed

MOST_TRIES = 10
"""Training tasks that the demonstrator tries at most for each demonstration that is wanted."""


def player_action(turn: tuple[str, str], grammar: Grammar, tools: Sequence[ToolSpec]) -> Action:
    """A player's turn (thought, call) written in the grammar and parsed, as if a model had sampled it."""
    thought, text = checked_turn(turn)
    return grammar.read(grammar.write(thought, text if grammar.calls == "text" else as_call(text, tools)))


@dataclass(frozen=True, slots=True)
class Shot:
    """A demonstration: the agent's turns, and the text that it reads before each of them."""

    prompts: tuple[str, ...]
    turns: tuple[str | tuple[str, str], ...]
    """The turns: each the text of a whole turn, or a pair of thought and call."""

    def messages(self, grammar: Grammar, tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
        """The demonstration as a conversation in the format of ``grammar``."""
        turns = (turn if isinstance(turn, str) else player_action(turn, grammar, tools).text for turn in self.turns)
        pairs = zip(self.prompts, turns, strict=True)
        return tuple(each for prompt, turn in pairs for each in (Message("user", prompt), Message("assistant", turn)))


def played_shots(env: Env, tasks: Sequence[Task], count: int, *, max_steps: int, format: str, seed: int) -> list[Shot]:
    """The first ``count`` successful episodes on ``tasks`` by the environment's demonstrator, without noise."""
    dynamics = EnvDynamics(env, max_steps=max_steps, seed=derive_seed(seed, "shots"))
    grammar, shots = make_grammar(format, tools=env.tools()), list[Shot]()
    player = env.demonstrator(0.0)
    if player is None:
        raise UserError(f"policy.shots is {count}, but there is no demonstrator: name a file, or set it to 0")
    for task in tasks:
        if len(shots) < count:
            rng = random.Random(derive_seed(seed, "shots", task.id))
            steps = asyncio.run(_episode(dynamics, player, task, grammar, rng))
            if reaches(sum(result.reward or 0.0 for *_, result in steps), 1.0):
                prompts = tuple(state.messages[-1].content for state, *_ in steps)
                shots.append(Shot(prompts, tuple(turn for _, turn, _ in steps)))
    if len(shots) < count:
        raise UserError(
            f"policy.shots is {count}, but the environment's demonstrator solves only {len(shots)} of {len(tasks)} "
            f"training tasks within {max_steps} steps: lower it, raise environment.max_steps, or name a file"
        )
    return shots


async def _episode(
    dynamics: EnvDynamics, player: Demonstrator | None, task: Task, grammar: Grammar, rng: random.Random
) -> list[tuple[State, tuple[str, str], Transition]]:
    """The steps of an episode by the demonstrator or, without one, by random legal actions: state, turn, result."""
    state, env, steps = await dynamics.reset(task), dynamics.env, list[tuple[State, tuple[str, str], Transition]]()
    while player is not None or env.legal_actions():
        with contained():
            turn = player.act(rng) if player is not None else ("", rng.choice(env.legal_actions() or [""]))
        transition = await dynamics.step(state, player_action(turn, grammar, env.tools()))
        steps.append((state, turn, transition))
        state = transition.state
        if transition.terminated or transition.truncated:
            break
    return steps


def read_shots(path: Path) -> list[Shot]:
    """The demonstrations of a file: JSON lines ``{"messages": [{"role": "user", "content": ...}, {"role": "assistant",
    "content": ...}, ...]}``, shown as they are written. Messages after the assistant's last turn are left out."""
    try:
        lines = regular(path).read_text(encoding="utf-8-sig").split("\n")  # a JSON text may hold other line breaks
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"policy.shots names {path}, which cannot be read: {error}: give a number or a file") from error
    shots = [_shot(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not shots:
        raise UserError(f"policy.shots names {path}, which holds no demonstration: write one a line, or set it to 0")
    return shots


def _shot(path: Path, number: int, line: str) -> Shot:
    try:
        messages = json.loads(line)["messages"]
        texts, roles = ([message[key] for message in messages] for key in ("content", "role"))
        if len(texts) < 2 or roles != (["user", "assistant"] * len(roles))[: len(roles)]:
            raise ValueError(f"its messages are by {', '.join(map(str, roles))}")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a content that is no text")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"policy.shots: line {number} of {path} is no demonstration ({error!r}): write "
            '{"messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]}'
        ) from None
    pairs = len(texts) // 2 * 2
    return Shot(tuple(texts[:pairs:2]), tuple(texts[1:pairs:2]))


def check_formats(env: Env, tasks: Sequence[Task]) -> tuple[list[str], list[str]]:
    """Play one episode of each task in every format of the core, by the demonstrator or by random legal actions.
    Returns the problems, and the checks that were not possible, each as a list of sentences."""
    answers = {name: _answers(env, tasks, make_grammar(name)) for name in FORMATS}
    if not all(answers.values()):
        return [], ["formats: no actions to try; offer legal_actions or a demonstrator"]
    wrong = list[str]()
    for name, told in answers.items():
        refused = {episode: reason for episode, reason in told.items() if reason}
        others = [] if env.stochastic else list(answers.values())  # else equal calls may lead elsewhere
        differing = [episode for episode in refused if any(other.get(episode) == "" for other in others)]
        if shown := [*differing, *(refused if len(refused) == len(told) else ())]:
            wrong.append(
                f"policy.format {name!r}: {len(refused)} of {len(told)} calls are refused, {len(differing)} only "
                f"in this format, such as {shown[0][-1]!r:.100} with {refused[shown[0]]!r:.200}: see that step "
                "understands the calls that the demonstrator or legal_actions give"
            )
    # Prompts list the tools alone, so that successful calls have to be calls of these.
    tools = env.tools()
    calls = [episode[-1] for episode, reason in answers["react"].items() if not reason]
    foreign = [call for call in calls if tools and isinstance(read_call(as_call(call, tools), tools), str)]
    if foreign:
        wrong.append(
            f"{len(foreign)} of {len(calls)} calls, such as {foreign[0]!r:.100}, are none of tools(), which are all "
            "that a pretrained model reads of: list what they call, or call these"
        )
    return wrong, []


def _answers(env: Env, tasks: Sequence[Task], grammar: Grammar) -> dict[tuple[str, ...], str]:
    """Why each call was refused, or the empty string, by the task's id and the calls of the episode up to it."""
    dynamics, answers = EnvDynamics(env, max_steps=50), dict[tuple[str, ...], str]()
    for task in tasks:
        calls = tuple[str, ...]((task.id,))
        played = _episode(dynamics, env.demonstrator(0.0), task, grammar, random.Random(task.seed))
        for _, turn, transition in asyncio.run(played):
            calls = (*calls, turn[1])
            answers[calls] = transition.state.messages[-1].content if transition.invalid else ""
    return answers
