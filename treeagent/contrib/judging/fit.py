"""``treeagent reward``: fit a reward model to the trees of a run, and audit it on held-out tasks."""

import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import orjson
import typer

from treeagent.agent.checkpoint import load_checkpoint, no_progress_bars
from treeagent.cli.options import RunFolder, find_checkpoint, require_trees
from treeagent.contrib.hindsight.divergence import searching_policy
from treeagent.contrib.judging.audit import FILE, RewardAudit, ScoredEnd, audit, value_of
from treeagent.contrib.judging.scorer import FitOptions, calibrate, make_scorer, scores, train_scorer
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.folder import COLLECTED, Run, RunError
from treeagent.pipeline.terminal import Terminal
from treeagent.pipeline.trees import trees_by_task
from treeagent.pipeline.update import read_ends
from treeagent.pipeline.world import is_held_out
from treeagent.seams import checked
from treeagent.search.node import Tree, finished_paths, outcome, path_origin, reaches
from treeagent.store import replace_folder
from treeagent.types import NothingToLearn, derive_seed
from treeagent.views.values import is_read

app = typer.Typer()
FOLDER = "reward"
"""Name of the reward model's folder among the checkpoints of the run."""
_CALIBRATION = 8
"""One in this many tasks that are not held out calibrates the model."""
_MOST_PER_TASK = 16
"""Maximum number of pairs of ends per task. A task with many ends would have hundreds of pairs, and most add little."""


@app.command()
def fit(
    run_folder: RunFolder,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of the fit, such as epochs=2.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="CHECKPOINT", help="The model to start from; by default the one that searched."
        ),
    ] = None,
) -> None:
    """Train a Bradley-Terry reward model on the ends of RUN's trees, and audit it on held-out tasks.

    Writes RUN/checkpoints/reward. Use it with rewards.function=learned and
    'rewards.options={model="RUN/checkpoints/reward"}'.

    Example: treeagent reward runs/shop
    """
    own = Run.open(run_folder)
    require_trees(run_folder, COLLECTED)
    given = dict(each.partition("=")[::2] for each in options or ())
    settings = checked(FitOptions, given, "treeagent reward")
    start = find_checkpoint(checkpoint) if checkpoint else searching_policy(own)
    console = Terminal()
    with Run.create(run_folder, own.config, resume=True) as run:
        written, audit = fit_reward(run, start, settings)
    for name in ("tasks", "ends", "pairs", "pair_accuracy", "cap"):
        value = getattr(audit, name)
        console.print(f"{name:24} {round(value, 3) if isinstance(value, float) else value}")
    for point in audit.best_of:
        console.print(
            f"best of {point.n:2}: predicted {point.score:.3f}, true {point.paid:.3f} of {point.possible:.3f}"
        )
    console.print(f"reward model in {written}", soft_wrap=True)


class End(NamedTuple):
    """The end of an episode, as the policy read it, and the environment's own return, in reward units."""

    task_id: str
    token_ids: tuple[int, ...]
    paid: float


def ends(trees: Iterable[Tree]) -> Iterator[End]:
    """The finished paths of trees with a known reward and known tokens, without imagined steps."""
    for tree in trees:
        for path in finished_paths(tree):
            last = path[-1].child
            assert last is not None
            if path[-1].outcome is not None and path_origin(path) == "real" and is_read(last):
                yield End(tree.task.id, tree.prompt_ids(path), outcome(path))


def pairs(found: Sequence[End], least: float, width: float) -> list[dict[str, Any]]:
    """Rows for ``train_scorer``: at most 16 pairs of ends of one task whose returns differ by at least ``least``;
    margins are shares of ``width``, the range of returns."""
    wide = [
        (better, worse)
        for first, second in combinations(found, 2)
        for better, worse in [(first, second) if first.paid > second.paid else (second, first)]
        if reaches(better.paid - worse.paid, least) and better.token_ids != worse.token_ids
    ]
    if len(wide) > _MOST_PER_TASK:
        wide = random.Random(derive_seed("comparisons", found[0].task_id)).sample(wide, _MOST_PER_TASK)
    return [
        {"chosen_ids": better.token_ids, "rejected_ids": worse.token_ids, "margin": (better.paid - worse.paid) / width}
        for better, worse in wide
    ]


def fit_reward(run: Run, start: Path, options: FitOptions) -> tuple[Path, RewardAudit]:
    """Fit the reward model of ``treeagent reward``: a copy of the checkpoint ``start`` that learns which of two
    ends of a task is better. A tenth of the tasks is held out for the audit. Returns the model's folder, which also
    holds its audit with slope and shift of its scores, and the audit."""
    config, out = run.config, run.checkpoints / FOLDER
    (low, high), seed = config.environment.returns, derive_seed(config.seed, "reward")
    loaded = load_checkpoint(start, device_map=config.policy.device_map, merged=True)
    chat = make_chat(loaded, config)
    rows, calibration, held_out = list[dict[str, Any]](), list[End](), list[End]()
    for group in trees_by_task(run.trees, run.collections()):
        for tree in group:
            read_ends(tree, chat)
        found, task = list(ends(group)), group[0].task.id
        if is_held_out(task):
            held_out += found
        elif derive_seed("reward calibration", task) % _CALIBRATION == 0:
            calibration += found
        else:
            rows += pairs(found, config.update.pairs.min_margin, high - low)
    if not held_out:
        raise RunError(
            f"no episode of {run.path} that ended is of a task that is held out for the audit: collect more tasks"
        )
    if not rows:
        raise NothingToLearn(
            "no task has two ends whose returns differ by update.pairs.min_margin: collect more trees, or lower it"
        )
    scorer, metrics = train_scorer(
        make_scorer(loaded, seed), loaded.tokenizer, rows, options, config.policy.lora, seed % 2**32
    )
    for row in metrics:
        run.log("reward", row)
    shares = [min(max((end.paid - low) / (high - low), 0.0), 1.0) for end in calibration]
    slope, shift = calibrate(scores(scorer, [end.token_ids for end in calibration]), shares)
    value: dict[str, Any] = {"slope": slope, "shift": shift, "returns": (low, high)}
    judged = [
        ScoredEnd(end.task_id, value_of(score, **value), end.paid)
        for end, score in zip(held_out, scores(scorer, [end.token_ids for end in held_out]), strict=True)
    ]
    found_out, partial = audit(judged), out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with no_progress_bars():
        scorer.save_pretrained(partial)
        loaded.tokenizer.save_pretrained(partial)
    facts = asdict(found_out) | {"value": value}
    (partial / FILE).write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2))
    replace_folder(partial, out)
    run.finish(FOLDER, {"pairs": len(rows), "update": metrics[-1], "audit": facts})
    return out, found_out
