"""Write the turns of a scripted player in a policy's format, and check that an environment answers alike in every
format."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from treeagent.envs.answers import checked_turn
from treeagent.envs.base import Env, ToolSpec
from treeagent.envs.calls import as_call, read_call
from treeagent.envs.dynamics import EnvDynamics
from treeagent.generators.turn import FORMATS, Grammar, make_grammar
from treeagent.types import Action, Task

_STEPS = 50
"""Most steps of an episode of the check."""


def player_action(turn: tuple[str, str], grammar: Grammar, tools: Sequence[ToolSpec]) -> Action:
    """Write a player's turn (its thought and its call) in the grammar and parse it, as if a model had sampled it.

    If the grammar calls tools, a text that names one of ``tools`` is written as a call of that tool.
    """
    thought, text = checked_turn(turn)
    return grammar.read(grammar.write(thought, text if grammar.calls == "text" else as_call(text, tools)))


def check_formats(env: Env, tasks: Sequence[Task]) -> tuple[list[str], list[str]]:
    """Play one episode of each task in every format of the core, as a warm start does.

    The demonstrator plays without noise; if there is none, random legal actions are played.

    Returns:
        the problems, and the checks that were not possible, each as a list of sentences.
    """
    answers_by_format: dict[str, Mapping[tuple[str, ...], str]] = {}
    for name in FORMATS:
        answers = asyncio.run(_answers(env, tasks, make_grammar(name)))
        if not answers:
            return [], ["formats: no actions to try; offer legal_actions or a demonstrator"]
        answers_by_format[name] = answers
    wrong = [sentence for name in answers_by_format for sentence in _differences(env, name, answers_by_format)]
    return [*wrong, *_unlisted_calls(env.tools(), answers_by_format["react"])], []


def _unlisted_calls(tools: Sequence[ToolSpec], answers: Mapping[tuple[str, ...], str]) -> list[str]:
    """A sentence if successful calls name none of the tools. A prompt lists only the tools, and constrained decoding
    allows only calls of them, so a policy would never make such calls."""
    calls = [episode[-1] for episode, reason in answers.items() if not reason]
    others = [call for call in calls if isinstance(read_call(as_call(call, tools), tools), str)] if tools else []
    if not others:
        return []
    return [
        f"{len(others)} of {len(calls)} calls, such as {others[0]!r:.100}, are none of tools(), which are all that a "
        "pretrained model reads of: list what they call, or have the demonstrator and legal_actions call the tools"
    ]


def _differences(env: Env, name: str, answers_by_format: Mapping[str, Mapping[tuple[str, ...], str]]) -> list[str]:
    """The problems of one format: every call is refused, or a call is refused that succeeds in another format."""
    refused = {episode: reason for episode, reason in answers_by_format[name].items() if reason}
    if refused and len(refused) == len(answers_by_format[name]):
        reason, count = Counter(refused.values()).most_common(1)[0]
        return [
            f"policy.format {name!r}: all {len(refused)} calls are refused, {count} of them with {reason!r:.200}: "
            "see that step understands the calls that the demonstrator or legal_actions give"
        ]
    if env.stochastic:  # equal calls may lead to different states, so different answers are no error
        return []
    for other, answers in answers_by_format.items():
        differing = [episode for episode in refused if answers.get(episode) == ""]
        if differing:
            first = differing[0]
            return [
                f"policy.format {name!r}: {len(differing)} calls are refused that succeed in format {other!r}, such as "
                f"{first[-1]!r:.100} with {refused[first]!r:.200}"
            ]
    return []


async def _answers(env: Env, tasks: Sequence[Task], grammar: Grammar) -> dict[tuple[str, ...], str]:
    """Why each call was refused, or the empty string if it succeeded. A key holds the task's id and the calls of the
    episode up to and including this one."""
    dynamics, answers = EnvDynamics(env, max_steps=_STEPS), dict[tuple[str, ...], str]()
    tools = env.tools()
    for task in tasks:
        state, rng, episode = await dynamics.reset(task), random.Random(task.seed), tuple[str, ...]((task.id,))
        player = env.demonstrator(0.0)
        while player is not None or env.legal_actions():
            turn = player.act(rng) if player is not None else ("", rng.choice(env.legal_actions() or [""]))
            episode = (*episode, turn[1])
            transition = await dynamics.step(state, player_action(turn, grammar, tools))
            state = transition.state
            answers[episode] = state.messages[-1].content if transition.invalid else ""
            if transition.terminated or transition.truncated:
                break
    return answers
