"""Updates of the same trees, all tuned alike: every arm at the same learning rates, validation tasks choose, then test.

``python -m benchmarks.updates --grid`` runs it. An arm trains once at each rate and validates on the way; the weights
of its best validation play the seed's test tasks. The curves also hold the mean probability of what search found at
some states of the trees: of actions that lead to a success ("chosen"), of those that were refused or led to failures
alone ("rejected") and of all others; and at states where a tried action ended the episode, of such actions that
succeed and that fail.
"""

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.config import Method, RunConfig, Training
from treeagent.learners.common import padded
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.evaluate import evaluate
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.trees import read_trees
from treeagent.pipeline.update import _TRAINERS, TrainJob, greedy_success, policy_training_rows
from treeagent.search.node import Edge, Tree, finished_paths, succeeds

STATES = 32
"""States of each kind whose probabilities are followed."""


@dataclass(frozen=True)
class Watched:
    """A state with tried actions, each with the names of the sums that it counts in."""

    prompt_ids: tuple[int, ...]
    actions: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]


def watched_states(trees: Sequence[Tree]) -> Iterator[Watched]:
    """The states below which a success was found and at which some action was rejected or ended the episode."""
    for tree in trees:
        ended = list(finished_paths(tree))
        leading = {id(edge) for path in ended if succeeds(path) for edge in path}
        explored = {id(edge) for path in ended for edge in path}

        def kinds(edge: Edge, leading: set[int] = leading, explored: set[int] = explored) -> tuple[str, ...]:
            over = edge.child is not None and edge.child.ended
            if id(edge) in leading:
                return ("chosen", "ends right") if over else ("chosen",)
            refused = edge.child is not None and edge.child.invalid
            rejected = ("rejected",) if refused or id(edge) in explored else ()
            return (*rejected, "ends wrong") if over else rejected

        for path, node in tree.walk():
            tried = [(edge.action.token_ids, kinds(edge)) for edge in node.edges if edge.visits]
            # Independent episodes keep equal actions as edges of their own: one that leads to a success stands for all.
            actions = tuple(dict(sorted(tried, key=lambda each: "chosen" in each[1])).items())
            names = {name for _, found in actions for name in found}
            if "chosen" in names and len(names) > 1:
                yield Watched(tree.prompt_ids(path), actions)


def sampled_states(trees: Sequence[Tree], seed: int) -> list[Watched]:
    """At most ``STATES`` states with a rejected action, and as many at which an action ended the episode."""
    found, luck = list(watched_states(trees)), random.Random(seed)
    kinds = ("rejected",), ("ends right", "ends wrong")
    chosen = list[Watched]()
    for names in kinds:
        fit = [each for each in found if any(name in names for _, own in each.actions for name in own)]
        chosen += luck.sample(fit, min(STATES, len(fit)))
    return chosen


@torch.no_grad()
def masses(model: Any, states: Sequence[Watched], temperature: float) -> dict[str, float]:
    """Mean probability of each kind of actions; of endings over the states with any."""
    sums: dict[str, list[float]] = {}
    for state in states:
        rows = [(*state.prompt_ids, *ids) for ids, _ in state.actions]
        logits = model(**padded(rows)).logits.float()[:, len(state.prompt_ids) - 1 : -1] / temperature
        logprobs = logits.log_softmax(-1)
        found = defaultdict[str, float](float)
        for row, (ids, names) in enumerate(state.actions):
            total = sum(logprobs[row, place, token].item() for place, token in enumerate(ids))
            for name in names:
                found[name] += math.exp(total)
        named = {name for _, names in state.actions for name in names}
        if "rejected" in named:
            compared = {name: found[name] for name in ("chosen", "rejected")}
            compared["other"] = max(1 - sum(compared.values()), 0.0)
        else:
            compared = {}
        endings = {name: found[name] for name in ("ends right", "ends wrong") if name in named}
        for name, each in (compared | endings).items():
            sums.setdefault(name, []).append(each)
    return {name: fmean(each) for name, each in sums.items()}


def train_point(
    config: RunConfig, method: Method, run: Run, start: Path, out: Path, states: Sequence[Watched]
) -> dict[str, Any]:
    """Train one arm at one learning rate. Saves the best weights in ``out``; returns the curves by step."""
    checkpoint = load_checkpoint(start)
    job = TrainJob(config, start, method, run.trees, [COLLECTED], out)
    rows = list(policy_training_rows(job, make_chat(checkpoint, config)))
    success = greedy_success(checkpoint, config, Counter())
    curves: list[dict[str, float]] = []
    before = run.path / f"before-{config.update.validation_tasks}.json"

    def validate() -> float:
        if not curves and before.exists():  # all points start from the same policy
            curves.append(json.loads(before.read_text()))
            return curves[0]["validation"]
        curves.append({"validation": success(), **masses(checkpoint.model, states, config.policy.temperature)})
        if len(curves) == 1:
            before.write_text(json.dumps(curves[0]))
        return curves[-1]["validation"]

    train, kind = _TRAINERS[method]
    training: Training = getattr(config.update, method)
    temperature = {} if method == "rft" else {"temperature": config.policy.temperature}
    result = train(
        checkpoint.model, checkpoint.tokenizer, rows, config.learner(kind, training), validate=validate, **temperature
    )
    save_checkpoint(Checkpoint(checkpoint.model, checkpoint.tokenizer, checkpoint.head), out)
    steps = [min(place * training.validate_every, result.steps) for place in range(len(curves))]
    return {
        "rows": len(rows),
        "seconds": result.seconds,
        "best step": result.best_step,
        "curves": [{"step": step, **curve} for step, curve in zip(steps, curves, strict=True)],
    }


def tuned(
    config: RunConfig, method: Method, run: Run, start: Path, name: str, rates: Sequence[float]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The figures of an arm, and the outcome of its best point on the test tasks. Points that are on disk are kept."""
    states = sampled_states(list(read_trees(run.trees, [COLLECTED])), config.seed)
    points: dict[float, dict[str, Any]] = {}

    def point(rate: float) -> Path:
        return run.checkpoints / f"{name}-{rate * 1e6:.0f}e-6"

    for rate in rates:
        training = replace(getattr(config.update, method), learning_rate=rate)
        chosen = replace(config, update=replace(config.update, **{method: training}))
        out = point(rate)
        told = out.with_suffix(".json")
        if not told.exists():
            told.write_text(json.dumps(train_point(chosen, method, run, start, out, states)))
        points[rate] = json.loads(told.read_text())
        print(f"  {name} at {rate:g}: {[curve['validation'] for curve in points[rate]['curves']]}", flush=True)
    best = max(rates, key=lambda rate: max(curve["validation"] for curve in points[rate]["curves"]))
    [row] = evaluate(config, run, QuietProgress(), [(point(best), "greedy")])
    figures: dict[str, float] = {"learning rate": best, "rows": points[best]["rows"]}
    figures |= {f"seconds at {rate:g}": points[rate]["seconds"] for rate in rates}
    for rate in rates:
        for curve in points[rate]["curves"]:
            for kind in curve.keys() - {"step"}:
                if kind == "validation" or rate == best:
                    at = f" at {rate:g}" if kind == "validation" else ""
                    figures[f"{kind}{at} after {curve['step']}"] = curve[kind]
    figures["best validation"] = max(curve["validation"] for curve in points[best]["curves"])
    figures["best step"] = points[best]["best step"]
    return figures, row
