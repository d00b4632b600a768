"""Fit a reward model to the trees of a run, and audit it on held-out tasks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
import torch

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_adapter
from treeagent.agent.value_head import ValueHead
from treeagent.contrib.judging.audit import FILE, RewardAudit, ScoredEnd, audit
from treeagent.contrib.judging.comparisons import Comparison, End, comparisons, ends
from treeagent.contrib.judging.learner import FitOptions, calibrate, scores, train_reward
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.rows import read_ends
from treeagent.pipeline.trees import trees_by_task
from treeagent.pipeline.world import is_held_out
from treeagent.store import write_atomic
from treeagent.types import derive_seed

FOLDER = "reward"
"""Name of the reward model's folder among the checkpoints of the run."""
_CALIBRATION = 8
"""One in this many tasks that are not held out calibrates the model."""


def fit_reward(
    run: Run,
    start: Path,
    options: FitOptions,
    on_step: Callable[[Mapping[str, float]], None] = lambda metrics: None,
) -> tuple[Path, RewardAudit]:
    """Fit the reward model of ``treeagent reward fit``: a copy of the checkpoint ``start`` that learns, with a
    Bradley-Terry loss, which of two ends of a task and which of two siblings is better. A tenth of the tasks is held
    out for the audit. Returns the model's folder, a checkpoint with a value head, and its audit."""
    config, out = run.config, run.checkpoints / FOLDER
    loaded = load_checkpoint(start, device_map=config.policy.device_map)
    width = loaded.model.config.get_text_config().hidden_size
    # The policy's own head was fitted to returns of all tasks, held-out ones included.
    head = ValueHead(width, config.environment.returns, derive_seed(config.seed, "reward"))
    model = with_adapter(loaded.model, config.policy.lora, derive_seed(config.seed, "reward", "lora"))
    fitted = Checkpoint(model, loaded.tokenizer, head)
    parts = _read(run, fitted)
    train, calibration, held_out = (parts[name] for name in ("train", "calibration", "held out"))
    if not held_out.ends:
        raise RunError(
            f"no episode of {run.path} that ended is of a task that is held out for the audit: collect more tasks"
        )
    if model.dtype.itemsize < torch.float32.itemsize and model is loaded.model:
        model.float()  # in bfloat16 most steps are smaller than half of a weight's last digit
    result = train_reward(model, head, train.pairs, options, on_step)
    low, high = head.reward_range
    returns = [min(max(end.paid, low), high) for end in calibration.ends]
    slope, shift = calibrate(head, _scores(fitted, head, calibration.ends), returns)
    found = _audit(fitted, head, held_out)
    save_checkpoint(fitted, out)
    write_atomic(out / FILE, orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2))
    facts = {"pairs": len(train.pairs), "update": asdict(result), "slope": slope, "shift": shift}
    run.finish(FOLDER, facts | {"audit": asdict(found)})
    return out, found


@dataclass(slots=True)
class _Part:
    """The pairs and ends in the trees of some of the tasks."""

    pairs: list[Comparison] = field(default_factory=list[Comparison])
    ends: list[End] = field(default_factory=list[End])


def _read(run: Run, checkpoint: Checkpoint) -> dict[str, _Part]:
    """The pairs and ends of the searched trees, split by task into training, calibration and audit."""
    chat = make_chat(checkpoint, run.config)
    parts = {name: _Part() for name in ("train", "calibration", "held out")}
    for group in trees_by_task(run.trees, run.collections()):
        for tree in group:
            read_ends(tree, chat)
        task = group[0].task.id
        calibrates = derive_seed("reward calibration", task) % _CALIBRATION == 0
        part = parts["held out" if is_held_out(task) else "calibration" if calibrates else "train"]
        part.pairs += comparisons(group, run.config.update.pairs)
        part.ends += [end for tree in group for end in ends(tree)] if part is not parts["train"] else []
    return parts


def _audit(checkpoint: Checkpoint, head: ValueHead, held_out: _Part) -> RewardAudit:
    low, high = head.reward_range
    found = zip(held_out.ends, _scores(checkpoint, head, held_out.ends), strict=True)
    return audit([ScoredEnd(end.task_id, low + (high - low) * _share(score), end.paid) for end, score in found])


def _scores(checkpoint: Checkpoint, head: ValueHead, found: list[End]) -> list[float]:
    return scores(checkpoint.model, head, [end.token_ids for end in found]) if found else []


def _share(score: float) -> float:
    """σ(u), without overflow."""
    return 0.5 * (1 + math.tanh(score / 2))
