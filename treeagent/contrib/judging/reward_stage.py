"""Fit a reward model to the trees of a run, and audit it on held-out tasks."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
from peft import PeftModel

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.config import RunConfig
from treeagent.contrib.judging.audit import FILE, RewardAudit, ScoredEnd, audit
from treeagent.contrib.judging.comparisons import Comparison, End, comparisons, ends
from treeagent.contrib.judging.reward_learner import calibrate, scores, train_reward
from treeagent.learners.checkpoints import is_begun
from treeagent.learners.config import RewardModelConfig
from treeagent.learners.lora import with_adapter
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.folder import REWARD, Run, RunError, checkpoint_name
from treeagent.pipeline.hooks import training_hooks
from treeagent.pipeline.index import tree_rows
from treeagent.pipeline.metrics import logged
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.rows import read_ends
from treeagent.pipeline.trees import trees_by_task
from treeagent.pipeline.world import is_held_out
from treeagent.store import regular, write_atomic
from treeagent.types import derive_seed

_VALIDATION = 8
"""One in this many tasks that are not held out is for validation: it decides when the training stops, and calibrates
the model."""
_MOST = 256
"""Most pairs of a validation, which takes a forward pass of each."""
_FIRST = "first"
"""The file in the folder of the trainer's checkpoints that names the checkpoint from which the training began."""


def fit_reward(config: RunConfig, run: Run, progress: Progress, checkpoint: Path) -> tuple[Path, RewardAudit]:
    """Fit the reward model of ``treeagent reward fit``: a copy of ``checkpoint`` that learns, with a Bradley-Terry
    loss, which of two ends of a task and which of two siblings is better. A tenth of the tasks is held out for the
    audit, which is stored with the model. A model that was fitted before is replaced.

    Returns:
        the model's folder, a checkpoint with a value head, and its audit.

    Raises:
        NothingToLearn: no task has two ends, or two siblings, that differ.
        RunError: no task is held out, or an interrupted fit began with another checkpoint.
    """
    out = run.checkpoints / REWARD
    scratch = out.with_name(f".{out.name}")
    if run.is_done(REWARD):
        shutil.rmtree(scratch, ignore_errors=True)  # left by a kill after the last fit
    _require_first(scratch, name := checkpoint_name(checkpoint, run.path))
    run.forget(REWARD)
    loaded = load_checkpoint(checkpoint, device_map=config.policy.device_map)
    head = _new_head(loaded, config)
    adapted = with_adapter(loaded.model, config.policy.lora, derive_seed(config.seed, "reward", "lora"))
    fitted = Checkpoint(adapted, loaded.tokenizer, head)
    parts = _read(run, fitted, config)
    train, validation, held_out = (parts[name] for name in ("train", "validation", "held out"))
    if not held_out.ends:
        raise RunError(
            f"no episode of {run.path} that ended is of a task that is held out for the audit: collect more tasks"
        )
    scratch.mkdir(parents=True, exist_ok=True)
    write_atomic(scratch / _FIRST, name.encode())
    checked = validation.pairs[:_MOST]
    validate = _order(fitted, head, checked) if checked else None
    with logged(run.log, progress) as on_event:
        trained = None if isinstance(adapted, PeftModel) else adapted.num_parameters()
        learner = config.learner(RewardModelConfig, config.update.reward.at_rate(trained))
        hooks = training_hooks(on_event, REWARD, scratch, validate)
        result = train_reward(adapted, loaded.tokenizer, head, train.pairs, learner, **hooks)
    returns = [_clipped(head, end.paid) for end in validation.ends]
    calibration = calibrate(head, _scores(fitted, head, validation.ends), returns)
    found = _audit(fitted, head, held_out)
    save_checkpoint(fitted, out)
    write_atomic(out / FILE, orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2))
    pairs = train.pairs
    kinds = {kind: sum(pair.kind == kind for pair in pairs) for kind in ("ends", "siblings")}
    facts = {"pairs": kinds, "update": asdict(result), "calibration": asdict(calibration)}
    run.finish(REWARD, facts | {"audit": found.to_json()})
    shutil.rmtree(scratch, ignore_errors=True)
    return out, found


def _require_first(scratch: Path, name: str) -> None:
    """Check that the training that would resume in the folder ``scratch`` began with the checkpoint ``name``. Raises
    RunError if it did not."""
    recorded = scratch / _FIRST
    first = regular(recorded).read_text() if is_begun(scratch) and recorded.exists() else name
    if first != name:
        raise RunError(
            f"the interrupted fit in {scratch} began with {first}, not with {name}: give --checkpoint {first}, or "
            "remove the folder to begin anew"
        )


@dataclass(slots=True)
class _Part:
    """The pairs and ends in the trees of some of the tasks."""

    pairs: list[Comparison] = field(default_factory=list[Comparison])
    ends: list[End] = field(default_factory=list[End])


def _read(run: Run, checkpoint: Checkpoint, config: RunConfig) -> dict[str, _Part]:
    """The pairs and ends of the searched trees, split into training, validation and audit. A harder variation is in the
    same part as its task."""
    chat, names = make_chat(checkpoint, config), dict[str, str]()
    for name in run.collections():
        bases = run.stages().get(name, {}).get("bases", ())
        names |= {row.task: base for row, base in zip(tree_rows(run.trees, name), bases, strict=False)}
    parts = {name: _Part() for name in ("train", "validation", "held out")}
    for _, group in trees_by_task(run.trees, run.collections()):
        read_ends(group, chat)
        task = names.get(group[0].task.id, group[0].task.id)
        part = parts["held out" if is_held_out(task) else "validation" if _validates(task) else "train"]
        part.pairs += comparisons(group, config.update.pairs)
        part.ends += [end for tree in group for end in ends(tree)] if part is not parts["train"] else []
    return parts


def _audit(checkpoint: Checkpoint, head: ValueHead, held_out: _Part) -> RewardAudit:
    low, high = head.reward_range
    estimates = [low + (high - low) * _share(score) for score in _scores(checkpoint, head, held_out.ends)]
    scored = [
        ScoredEnd(end.task_id, score, end.paid, end.success, end.tokens)
        for end, score in zip(held_out.ends, estimates, strict=True)
    ]
    pairs = [pair for pair in held_out.pairs if pair.kind == "siblings"]
    better, worse = (scores(checkpoint.model, head, rows) if rows else [] for rows in _sides(pairs))
    return audit(scored, list(zip(better, worse, strict=True)), head.reward_range)


def _new_head(checkpoint: Checkpoint, config: RunConfig) -> ValueHead:
    """A new head. The policy's own is not used, because it was fitted to returns of all tasks, held-out ones
    included."""
    width = checkpoint.model.config.get_text_config().hidden_size
    return ValueHead(width, config.environment.returns, derive_seed(config.seed, "reward"))


def _validates(task_id: str) -> bool:
    return derive_seed("reward validation", task_id) % _VALIDATION == 0


def _sides(pairs: Sequence[Comparison]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return [pair.chosen_ids for pair in pairs], [pair.rejected_ids for pair in pairs]


def _order(checkpoint: Checkpoint, head: ValueHead, pairs: Sequence[Comparison]) -> Callable[[], float]:
    """A function that returns the mean log-likelihood of the pairs, in nats."""

    def measure() -> float:
        better, worse = (scores(checkpoint.model, head, rows) for rows in _sides(pairs))
        losses = [math.log1p(math.exp(min(low - high, 30.0))) for high, low in zip(better, worse, strict=True)]
        return -sum(losses) / len(pairs)

    return measure


def _scores(checkpoint: Checkpoint, head: ValueHead, found: Sequence[End]) -> list[float]:
    return scores(checkpoint.model, head, [end.token_ids for end in found]) if found else []


def _share(score: float) -> float:
    """σ(u), without overflow."""
    return 0.5 * (1 + math.tanh(score / 2))


def _clipped(head: ValueHead, paid: float) -> float:
    low, high = head.reward_range
    return min(max(paid, low), high)
