"""Fit a reward model to the trees of a run, and audit it on tasks that it has not seen."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

import orjson

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.config import RunConfig
from treeagent.learners.config import RewardModelConfig
from treeagent.learners.lora import with_adapter
from treeagent.learners.reward import calibrate, scores, train_reward
from treeagent.rewards.audit import FILE, RewardAudit, ScoredEnd, audit
from treeagent.run.folder import REWARD, Run, RunError
from treeagent.run.metrics import logged
from treeagent.run.progress import Progress
from treeagent.run.trees import marked_trees
from treeagent.search.node import Tree
from treeagent.stages.build import make_chat
from treeagent.stages.hooks import training_hooks
from treeagent.stages.update import by_task, read_ends
from treeagent.stages.world import is_held_out
from treeagent.store import write_atomic
from treeagent.types import derive_seed
from treeagent.views.comparisons import Comparison, End, comparisons, ends

_VALIDATION = 8
"""One of so many tasks that are not held out decides when the training stops, and calibrates the model."""
_MOST = 256
"""Pairs of a validation, which takes a forward pass of each."""


def fit_reward(config: RunConfig, run: Run, progress: Progress, checkpoint: Path) -> tuple[Path, RewardAudit]:
    """Fit the reward model of ``treeagent reward fit``: a copy of ``checkpoint`` that learns by Bradley-Terry which end
    of a task, and which of two siblings, is better. A tenth of the tasks is held out for the audit, which is stored
    with the model. A model that was fitted before is replaced.

    Returns:
        the model's folder, a checkpoint with a value head, and its audit.

    Raises:
        NothingToLearn: no task has two ends or siblings that differ.
        RunError: no task is held out.
    """
    out = run.checkpoints / REWARD
    scratch = out.with_name(f".{out.name}")
    run.forget(REWARD)
    loaded = load_checkpoint(checkpoint, device_map=config.policy.device_map)
    head = _new_head(loaded, config)
    adapted = with_adapter(loaded.model, config.policy.lora, derive_seed(config.seed, "reward", "lora"))
    fitted = Checkpoint(adapted, loaded.tokenizer, head)
    groups = _tasks(run, fitted, config)
    held_out = [group for name, found in groups.items() if is_held_out(name) for group in found]
    seen = {name: found for name, found in groups.items() if not is_held_out(name)}
    validation, train = (
        [group for name, found in seen.items() if _validates(name) is wanted for group in found]
        for wanted in (True, False)
    )
    if not any(True for group in held_out for tree in group for _ in ends(tree)):
        raise RunError(f"none of the {len(groups)} tasks of {run.path} is held out for an audit: collect more tasks")
    pairs, checked = _pairs(train, config), _pairs(validation, config)[:_MOST]
    validate = _order(fitted, head, checked) if checked else None
    with logged(run.log, progress) as on_event:
        learner = config.learner(RewardModelConfig, config.update.reward)
        hooks = training_hooks(on_event, REWARD, scratch, validate)
        result = train_reward(adapted, loaded.tokenizer, head, pairs, learner, **hooks)
    read = [end for group in validation or train for tree in group for end in ends(tree)]
    calibration = calibrate(head, _scores(fitted, head, read), [_clipped(head, end.paid) for end in read])
    found = audit_reward(fitted, head, held_out, config)
    save_checkpoint(fitted, out)
    write_atomic(out / FILE, orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2))
    shutil.rmtree(scratch, ignore_errors=True)
    kinds = {kind: sum(pair.kind == kind for pair in pairs) for kind in ("ends", "siblings")}
    people = sum(pair.source == "human" for pair in pairs)
    facts = {"pairs": kinds | {"of_people": people}, "update": asdict(result), "calibration": asdict(calibration)}
    run.finish(REWARD, facts | {"audit": found.to_json()})
    return out, found


def audit_reward(
    checkpoint: Checkpoint, head: ValueHead, held_out: Sequence[Sequence[Tree]], config: RunConfig
) -> RewardAudit:
    """The audit of a reward model on the trees of tasks."""
    found = [end for group in held_out for tree in group for end in ends(tree)]
    told = map(_share, _scores(checkpoint, head, found))
    scored = [
        ScoredEnd(end.task_id, score, end.paid, end.success, end.turns) for end, score in zip(found, told, strict=True)
    ]
    pairs = [pair for pair in _pairs(held_out, config) if pair.kind == "siblings"]
    better, worse = (scores(checkpoint.model, head, rows) if rows else [] for rows in _sides(pairs))
    return audit(scored, list(zip(better, worse, strict=True)))


def _new_head(checkpoint: Checkpoint, config: RunConfig) -> ValueHead:
    """A head that knows nothing: the policy's own was fitted to returns, held-out tasks included."""
    width = checkpoint.model.config.get_text_config().hidden_size
    return ValueHead(width, config.environment.returns, derive_seed(config.seed, "reward"))


def _tasks(run: Run, checkpoint: Checkpoint, config: RunConfig) -> dict[str, list[list[Tree]]]:
    """The searched trees, changed by the marks of reviewers, in groups of one task each, by the name of the task; a
    harder variation is a group of its own under the name of its task, so that both are held out together."""
    trees, names = list[Tree](), dict[str, str]()
    for name in run.collections():
        bases = run.stages().get(name, {}).get("bases", ())
        for tree, base in zip_longest(marked_trees(run.trees, name), bases):
            if tree is not None and not tree.text_only:
                trees.append(tree)
                names[tree.task.id] = base or tree.task.id
    read_ends(trees, make_chat(checkpoint, config))
    groups = dict[str, list[list[Tree]]]()
    for group in by_task(trees):
        groups.setdefault(names[group[0].task.id], []).append(group)
    return groups


def _validates(task_id: str) -> bool:
    return derive_seed("reward validation", task_id) % _VALIDATION == 0


def _pairs(groups: Sequence[Sequence[Tree]], config: RunConfig) -> list[Comparison]:
    return [pair for group in groups for pair in comparisons(group, config.update.pairs)]


def _sides(pairs: Sequence[Comparison]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return [pair.chosen_ids for pair in pairs], [pair.rejected_ids for pair in pairs]


def _order(checkpoint: Checkpoint, head: ValueHead, pairs: Sequence[Comparison]) -> Callable[[], float]:
    """A function that gives the mean log-likelihood of the pairs, in nats."""

    def measure() -> float:
        better, worse = (scores(checkpoint.model, head, rows) for rows in _sides(pairs))
        return sum(-math.log1p(math.exp(min(two - one, 30.0))) for one, two in zip(better, worse, strict=True)) / len(
            pairs
        )

    return measure


def _scores(checkpoint: Checkpoint, head: ValueHead, found: Sequence[End]) -> list[float]:
    return scores(checkpoint.model, head, [end.token_ids for end in found]) if found else []


def _share(score: float) -> float:
    """σ(u), without overflow."""
    return 0.5 * (1 + math.tanh(score / 2))


def _clipped(head: ValueHead, paid: float) -> float:
    low, high = head.reward_range
    return min(max(paid, low), high)
