"""``treeagent hindsight``: how much the probability of a step changes once the policy knows how the episode ends.

s_t = |log π(a_t | s_t, outcome) - log π(a_t | s_t)| in nats. A step whose probability hardly changes did not decide the
outcome. One sentence before the task tells the policy the outcome. All sampled and observed text keeps the token ids of
the search.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from treeagent.agent.policy import LLMPolicy
from treeagent.cli.options import RunFolder, find_checkpoint, require_trees
from treeagent.contrib.viewer.pack import criticality
from treeagent.generators.base import Failure
from treeagent.generators.chat import ChatFormat
from treeagent.pipeline.build import load_actors
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.terminal import Terminal
from treeagent.pipeline.trees import read_trees
from treeagent.search.node import Edge, Node, Tree, finished_paths, succeeds
from treeagent.store import write_atomic
from treeagent.types import Message, UserError, as_read
from treeagent.visible import visible

app = typer.Typer()
_SHOWN = 10
"""Steps that the command prints."""
_NOTES = {
    True: "Known in hindsight: in this episode the agent solves the task.",
    False: "Known in hindsight: in this episode the agent fails at the task.",
}


def searching_policy(run: Run) -> Path:
    """The checkpoint that searched the latest trees of a run."""
    for name in reversed(run.collections()):
        if (checkpoint := run.recorded_checkpoint(name)) is not None:
            return checkpoint
    raise UserError(f"{run.path} does not tell which checkpoint searched its trees: name it")


@app.command()
def hindsight(
    run_folder: RunFolder,
    model: Annotated[
        str, typer.Option("--model", metavar="CHECKPOINT", help="The policy to ask; by default the one that searched.")
    ] = "",
) -> None:
    """Measure for each step of RUN's trees how much its outcome changes the policy, and the drop in Q without it.

    Writes RUN/hindsight.jsonl, one line a step, and prints the steps with the largest divergence.

    Example: treeagent hindsight runs/shop
    """
    require_trees(run_folder, COLLECTED)
    run = Run.open(run_folder)
    _, policy = load_actors(find_checkpoint(model) if model else searching_policy(run), run.config)
    if not isinstance(policy, LLMPolicy):
        raise UserError("hindsight wants log-probabilities of token ids, which this policy.generator does not give")
    rows = list[dict[str, Any]]()
    for tree in read_trees(run.trees, run.collections()):
        found, drops = divergences(tree, policy), criticality(tree)
        for path, _ in tree.walk():
            if path and (divergence := found.get(id(path[-1]))) is not None:
                step = {"task": tree.task.id, "depth": len(path), "action": path[-1].action.text}
                rows.append(step | {"divergence": divergence, "drop": drops.get(id(path[-1]))})
    write_atomic(run.path / "hindsight.jsonl", b"".join(orjson.dumps(row) + b"\n" for row in rows))
    console = Terminal(soft_wrap=True)
    for row in sorted(rows, key=lambda each: -each["divergence"])[:_SHOWN]:
        console.print(f"{row['divergence']:8.3f} nats  {visible('{task}, step {depth}: {action}'.format(**row))}")
    console.print(f"{len(rows)} steps in {run.path / 'hindsight.jsonl'}")


def divergences(tree: Tree, policy: LLMPolicy) -> dict[int, float]:
    """The divergence of every action on a finished path, in nats, by ``id`` of the edge: the mean of
    |log π(a|s, outcome) - log π(a|s)| over the finished paths through the action, each with its own outcome, at the
    policy's temperature. Forced tokens (``Action.forced``) do not count. An action is left out where the prompt with
    the sentence is too long."""
    if tree.text_only:
        raise UserError(f"the tree of task {tree.task.id} holds actions without token ids, whose chance is unknown")
    ends: dict[int, Counter[bool]] = {}
    for path in finished_paths(tree):
        for edge in path:
            ends.setdefault(id(edge), Counter())[succeeds(path)] += 1
    continuations = list[tuple[tuple[int, ...], list[Edge], bool | None]]()

    def ask(prompt: tuple[int, ...], edges: list[Edge], known: bool | None) -> None:
        longest = max(len(edge.action.token_ids) for edge in edges)
        if not policy.generator.refusal((*prompt, *(0,) * longest)):
            continuations.append((prompt, edges, known))

    for path, node in tree.walk():
        if edges := [edge for edge in node.edges if id(edge) in ends]:
            *_, (start, _) = tree.segments(path)
            prompt = tree.prompt_ids(path)
            ask(prompt, edges, None)
            for solved, note in _NOTES.items():
                if with_outcome := [edge for edge in edges if ends[id(edge)][solved]]:
                    told = prompt_with_note(policy.chat, tree, start, note)
                    ask(told + prompt[len(start.context_ids) :], with_outcome, solved)
    prompts = [prompt for prompt, _, _ in continuations]
    candidates = [[edge.action.token_ids for edge in edges] for _, edges, _ in continuations]
    scores = policy.generator.score(prompts, candidates, policy.temperature) if continuations else ()
    logprobs: dict[tuple[int, bool | None], float] = {}
    for (_, edges, known), scored in zip(continuations, scores, strict=True):
        if not isinstance(scored, Failure):
            for edge, sample in zip(edges, scored, strict=True):
                sampled = (each for at, each in enumerate(sample.logprobs) if at not in edge.action.forced)
                logprobs[id(edge), known] = sum(sampled)
    measured: dict[int, float] = {}
    for _, edges, known in continuations:
        for edge in edges if known is None else ():
            found, key = ends[id(edge)], id(edge)
            if all((key, outcome) in logprobs for outcome in (None, *found)):
                changes = [count * abs(logprobs[key, each] - logprobs[key, None]) for each, count in found.items()]
                measured[key] = sum(changes) / found.total()
    return measured


def prompt_with_note(chat: ChatFormat, tree: Tree, start: Node, note: str) -> tuple[int, ...]:
    """The token ids of the prompt at ``start``, a node where a prompt begins, with a note before the task."""
    messages = as_read(start.state.messages, start.left_out)
    if chat.prompt_ids(messages) != start.context_ids:
        raise UserError(
            f"the tokenizer or chat template of the policy writes task {tree.task.id} in other tokens than the policy "
            "that searched it: name that policy by --model, with its policy.instructions, policy.shots and "
            "policy.format"
        )
    return chat.prompt_ids(_with_note(messages, note))


def _with_note(messages: Sequence[Message], note: str) -> tuple[Message, ...]:
    index = next((index for index, message in enumerate(messages) if message.role == "user"), 0)
    first = messages[index]
    return (*messages[:index], replace(first, content=f"{note}\n\n{first.content}"), *messages[index + 1 :])
