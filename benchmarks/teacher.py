"""Self-distillation: what does a policy learn from a teacher that has read the path which search found?

    .venv/bin/python -m benchmarks.updates --variants states distil --name updates_more --out runs/updates_more
    .venv/bin/python -m benchmarks.teacher --seeds 0 1 2

The teacher is the policy itself, but a note before the task tells it the calls of the best path through the state. The
student learns the teacher's distribution over the candidates that search tried at this state (``train_distil``), at all
states from which search found a success. A policy from scratch has never read such a note. So "taught" is a second
teacher, which first imitates the searched paths after their notes. ``auc`` is the chance that a teacher finds the call
of the path likelier than another candidate, and ``auc of the policy`` the same without the note.
"""

import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one core

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.command import record_of, start_of, starting
from benchmarks.record import Row, digest
from benchmarks.updates import config_of, settings_digest
from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.policy import LLMPolicy
from treeagent.config import RunConfig
from treeagent.contrib.hindsight.hindsight import prompt_with_note
from treeagent.generators.base import Failure
from treeagent.generators.chat import ChatFormat
from treeagent.learners.config import DistilConfig, SFTConfig
from treeagent.learners.distil import train_distil
from treeagent.learners.sft import train_sft
from treeagent.pipeline.build import make_chat, make_policy, value_head
from treeagent.pipeline.evaluate import evaluate
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.trees import read_trees
from treeagent.pipeline.update import greedy_success
from treeagent.search.node import Edge, Tree, finished_paths, path_logprob, path_return, succeeds
from treeagent.views.policy import Candidate, PolicyRow
from treeagent.views.tokens import TokenRow, turn_tokens
from treeagent.world_model.transition import call_text

QUESTION = "Does a teacher that has read the searched path teach more than the path?"
ARMS = ("teacher", "teacher, taught")


def good_paths(tree: Tree) -> list[Sequence[Edge]]:
    """The successful paths, in the order in which they are imitated."""
    good = [path for path in finished_paths(tree) if succeeds(path) and all(map(tree.may_prefer, path))]
    return sorted(good, key=lambda path: (-path_return(path, tree.discount), -path_logprob(path), len(path)))


def note_of(path: Sequence[Edge]) -> str:
    return f"Known in hindsight: {'; '.join(call_text(edge.action.call) for edge in path)}"


def noted_rows(tree: Tree, chat: ChatFormat) -> Iterator[TokenRow]:
    """The best path after its note, to imitate."""
    for path in good_paths(tree)[:1]:
        prompt, tokens = prompt_with_note(chat, tree, tree.root, note_of(path)), turn_tokens(path)
        yield TokenRow(tree.task.id, prompt + tokens.token_ids, (False,) * len(prompt) + tokens.mask)


def taught_rows(tree: Tree, teacher: LLMPolicy, aucs: dict[str, list[float]]) -> Iterator[PolicyRow]:
    """The states from which a success was found, with the teacher's distribution over their candidates."""
    seen = set[int]()
    for path in good_paths(tree):
        noted = prompt_with_note(teacher.chat, tree, tree.root, note_of(path))
        for index, node in enumerate(tree.states(path[:-1])):
            if id(node) in seen:
                continue
            seen.add(id(node))
            prompt, edges = tree.prompt_ids(path[:index]), node.edges
            ids = [edge.action.token_ids for edge in edges]
            told = noted + prompt[len(tree.root.context_ids) :]
            scored = teacher.generator.score([prompt, told], [ids, ids], teacher.temperature, [tree.task.id] * 2)
            if any(isinstance(part, Failure) for part in scored):  # the prompt with the note is too long
                continue
            logprobs = [[sum(each.logprobs) for each in part] for part in scored if not isinstance(part, Failure)]
            if len(edges) > 1:
                for name, each in zip(("auc of the policy", "auc"), logprobs, strict=True):
                    own = edges.index(path[index])
                    others = [other for number, other in enumerate(each) if number != own]
                    aucs[name].append(
                        statistics.fmean((each[own] > other) + (each[own] == other) / 2 for other in others)
                    )
            may = [tree.may_prefer(edge) and not edge.action.error for edge in edges]
            weights = [math.exp(each - max(logprobs[1])) * ok for each, ok in zip(logprobs[1], may, strict=True)]
            if total := sum(weights):
                yield PolicyRow(
                    tree.task.id,
                    prompt,
                    tuple(
                        Candidate(edge.action.token_ids, edge.action.logprobs, weight / total, edge.action.forced)
                        for edge, weight in zip(edges, weights, strict=True)
                    ),
                )


def learn(config: RunConfig, start: Path, trees: Sequence[Tree], taught: bool, out: Path) -> dict[str, float]:
    """Train the student and save it. Returns the figures of its teacher."""
    loaded = load_checkpoint(start)
    chat = make_chat(loaded, config)
    if taught:
        rows = [row for tree in trees for row in noted_rows(tree, chat)]
        train_sft(loaded.model, loaded.tokenizer, rows, config.learner(SFTConfig, config.update.rft.at_rate(1)))
    loaded.model.eval()
    aucs: dict[str, list[float]] = {"auc of the policy": [], "auc": []}
    teacher = make_policy(loaded, config)
    states = [row for tree in trees for row in taught_rows(tree, teacher, aucs)]
    student = load_checkpoint(start)
    student = replace(student, head=value_head(student, config))
    settings = config.learner(DistilConfig, config.update.distil.at_rate(1))
    result = train_distil(
        student.model, student.tokenizer, states, settings,
        temperature=config.policy.temperature, validate=greedy_success(student, config),
    )  # fmt: skip
    save_checkpoint(Checkpoint(student.model, student.tokenizer, student.head), out)
    return {name: statistics.fmean(each) for name, each in aucs.items()} | {
        "best validation": result.best_validation or 0
    }


def main() -> None:
    options = starting(__doc__, "teacher", out="runs/updates_more")
    options.add_argument("--config", default="adapt", help="a recipe's name or a TOML file")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            start, config = start_of(arguments.runs, seed), config_of(arguments.config, seed, arguments.set)
            config = replace(config, workers=1, threads=1)
            for arm in ARMS:
                wanted = digest({"updates": settings_digest(arguments.config, start, arguments.set), "arm": arm})
                if record.has(arm, seed, wanted):
                    continue
                with Run.create(arguments.out / f"seed{seed}", config, resume=True) as run:
                    trees, out = list(read_trees(run.trees, [COLLECTED])), run.checkpoints / arm.replace(", ", "-")
                    figures = learn(config, start, trees, arm != ARMS[0], out)
                    [row] = evaluate(config, run, QuietProgress(), [(out, "greedy")])
                record.add(
                    Row(
                        arm,
                        seed,
                        wanted,
                        first_task=config.evaluate.first_task,
                        solved=row["solved"],
                        environment_steps=row["environment_steps"],
                        generated_tokens=row["generated_tokens"],
                        seconds=row["seconds"],
                        figures=figures,
                    )
                )
                print(f"seed {seed} {arm}: {100 * sum(map(int, row['solved'])) / len(row['solved']):.1f} % {figures}")


if __name__ == "__main__":
    main()
