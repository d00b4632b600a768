"""Fit a world model to the steps of a run's trees, and audit it on held-out tasks, to find how large a share of trees
may grow in it."""

import asyncio
import hashlib
import random
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import orjson

from treeagent.agent.checkpoint import load_checkpoint, require_device, save_checkpoint
from treeagent.config import RunConfig, dump_config, load_config
from treeagent.generators.chat import ChatFormat
from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import hard_rows, train_sft
from treeagent.pipeline.build import first_checkpoint
from treeagent.pipeline.demonstrate import demonstrations
from treeagent.pipeline.folder import COLLECTED, Run, RunError, changed_settings
from treeagent.pipeline.imagination import SETTINGS, memory_path, require_world, wording, world_model
from treeagent.pipeline.metrics import logged, training_hooks
from treeagent.pipeline.progress import Progress
from treeagent.search.record import from_record
from treeagent.store import read_as, write_atomic
from treeagent.types import derive_seed
from treeagent.views.tokens import TokenRow
from treeagent.views.transitions import opening, transitions
from treeagent.world_model.fidelity import Fidelity, audit
from treeagent.world_model.language import answer_rows
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import Experience

AUDIT_STEPS = 1000
"""Most steps of an audit; the standard error of a share is then at most about 1.6 percentage points."""
HELD_OUT = 0.1
"""Share of the tasks that are held out: the world model is audited on them and never learns from them."""


def fit_world(config: RunConfig, run: Run, progress: Progress) -> Path:
    """Fit the world model of ``treeagent world fit`` and return its folder; RUN/world.toml keeps the settings."""
    out, settings_file = run.checkpoints / "world", run.path / SETTINGS
    if not settings_file.is_file() or not (run.is_done("world") or any(path.exists() for path in _scratch(out))):
        run.forget("world")  # the files that are left belong to a fit whose settings are lost
        for folder in _scratch(out):
            shutil.rmtree(folder, ignore_errors=True)
    elif changed := changed_settings(load_config(settings_file), config):
        raise RunError(
            f"a world model of {run.path} was begun with other settings ({', '.join(changed)} changed): restore "
            f"them, or remove {settings_file} to fit it anew"
        )
    if not run.is_done("world"):
        require_device("world.device_map", config.world.device_map)
        require_world(config)
        write_atomic(settings_file, dump_config(config).encode())
    return fit(config, run, progress, out)


def fit(config: RunConfig, run: Run, progress: Progress, out: Path, last: Path | None = None) -> Path:
    """Train a world model on the real steps of a run's trees and of demonstrations, without those of held-out tasks,
    and store these steps in its memory next to ``out``, which is all that a model on a server gets. ``last``: the
    folder of an earlier model to continue from."""
    if run.is_done(out.name):
        return out
    if last is None:
        trees, known = list(islice(demonstrations(config), config.world.demonstrations)), list[Experience]()
    else:  # the memory of the last model already holds the demonstrations
        trees, known = [], list(remembered_steps(last))
    others = chain.from_iterable(transitions(tree, config.policy.format) for tree in trees)
    # When a round is repeated, trees of later rounds may already be on disk.
    own = [name for name in run.collections() if out.name == "world" or round_of(name) < round_of(out.name)]
    learnt, held_out = split(chain(experiences(run, own), others), known)
    if not learnt:
        raise RunError(f"the trees of {run.path} hold no step to learn from: collect more tasks")
    path = memory_path(out)
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()  # an earlier fit may hold tasks that are held out now
    demonstrated = sum(tree.budget.environment_steps for tree in trees)
    facts: dict[str, Any] = {"learnt": len(learnt), "held_out": len(held_out), "demonstrated_steps": demonstrated}
    with closing(ReplayBuffer(path, create=True)) as memory:
        memory.add(learnt)
        if config.world.generator != "remote":
            facts |= _train(config, run, progress, out, last, learnt, memory)
    run.finish(out.name, facts)
    for folder in _scratch(out):
        shutil.rmtree(folder, ignore_errors=True)
    return out


def remembered_steps(world: Path) -> Iterator[Experience]:
    with closing(ReplayBuffer(memory_path(world))) as memory:
        yield from memory.experiences()


def _train(
    config: RunConfig,
    run: Run,
    progress: Progress,
    out: Path,
    last: Path | None,
    learnt: Sequence[Experience],
    memory: ReplayBuffer,
) -> dict[str, Any]:
    settings, fitting = config.world, config.learner(SFTConfig, config.world.training, config.world)
    words, (plain, harder) = wording(config), _scratch(out)
    if last is None:
        asked = (words.prompt(one.history, one.action)[-1].content for one in learnt)
        texts = chain(asked, (words.target(one) for one in learnt))
        seeds = derive_seed(config.seed, "world"), derive_seed(config.seed, "world", "lora")
        checkpoint = replace(first_checkpoint(settings, texts, *seeds), head=None)
    else:
        checkpoint = load_checkpoint(last, device_map=settings.device_map)
    chat = ChatFormat(checkpoint.tokenizer)

    def rows_of(found: Sequence[Experience], end_rows: int = 1) -> list[TokenRow]:
        answers = answer_rows(found, chat, words, memory, settings.examples, end_rows)
        return [TokenRow(*row) for row in answers if len(row.token_ids) <= settings.max_tokens]

    def learn(rows: Sequence[TokenRow], steps: int | None, folder: Path, rate: float) -> dict[str, Any]:
        sft = replace(fitting, max_steps=steps, learning_rate=rate)
        hooks = training_hooks(on_event, folder.name.removeprefix("."), folder)
        return asdict(train_sft(checkpoint.model, checkpoint.tokenizer, rows, sft, **hooks))

    rows = rows_of(learnt, settings.end_rows)
    if not rows:
        raise RunError(
            f"none of the {len(learnt)} steps to learn from is a row within world.max_tokens ({settings.max_tokens}): "
            "raise it"
        )
    total = sum(settings.end_rows if one.terminated else 1 for one in learnt)
    with logged(run.log, progress) as on_event:
        steps, rate = fitting.max_steps if last is None else settings.refit_steps, fitting.learning_rate
        facts: dict[str, Any] = {"update": learn(rows, steps, plain, rate)}
        if settings.hard_steps and (ends := rows_of([one for one in learnt if one.terminated])):
            count = settings.hard_steps * fitting.batch_size * fitting.accumulation // 2
            seed = derive_seed(config.seed, f"{out.name}-hard")
            hard = hard_rows(checkpoint.model, ends, count, seed)
            mixed = [*hard, *random.Random(seed).choices(rows, k=count)]
            facts["hard"] = learn(mixed, settings.hard_steps, harder, rate / 2)
    save_checkpoint(checkpoint, out)
    return {"rows": len(rows), "left_out": total - len(rows), **facts}


def _scratch(out: Path) -> tuple[Path, Path]:
    """Folders of the unfinished trainings: the one on all rows, and the one on hard rows."""
    return out.with_name(f".{out.name}"), out.with_name(f".{out.name}-hard")


def imagined_trees(number: int) -> str:
    return f"{COLLECTED}-{number}-imagined"


def claims_kept(run: Run, number: int) -> float | None:
    """CR of a round's imagined trees (Word2World): the share of replayed imagined successes that succeeded in the
    environment; None if none was replayed."""
    facts = run.stages().get(imagined_trees(number), {})
    return facts["claims_kept"] / facts["claims"] if facts.get("claims") else None


def experiences(run: Run, names: Iterable[str] | None = None) -> Iterator[Experience]:
    """The opening of each tree's task, and every step taken in the environment."""
    for name in run.collections() if names is None else names:
        for tree in read_as(from_record, run.trees, name):
            began = [opening(tree)] if tree.root.state.messages else []
            found = chain(began, transitions(tree, run.config.policy.format))
            yield from (one for one in found if one.origin == "real")


def round_of(name: str) -> int:
    """The number in a name of trees or of a world model; 0 if it has none."""
    found = re.search(r"\d+", name)
    return int(found[0]) if found else 0


def split(found: Iterable[Experience], known: Iterable[Experience] = ()) -> tuple[list[Experience], list[Experience]]:
    """Split steps into (learnt, held out), whole tasks at a time. A step on both sides is held out, unless it is in
    ``known``, which an earlier fit has learnt."""
    before = {one.digest(): one for one in known}
    learnt: dict[str, Experience] = {}
    held_out: dict[str, Experience] = {}
    for one in found:
        if (digest := one.digest()) not in before:
            (held_out if is_held_out(one.task_id) else learnt).setdefault(digest, one)
    learnt |= before
    return [one for digest, one in learnt.items() if digest not in held_out], list(held_out.values())


def is_held_out(task_id: str) -> bool:
    share = int.from_bytes(hashlib.blake2b(task_id.encode(), digest_size=4).digest()) / 2**32
    return share < HELD_OUT


def audit_world(config: RunConfig, run: Run, world: Path, most: int = AUDIT_STEPS) -> Fidelity:
    """Test the world model in the folder ``world`` on up to ``most`` steps of held-out tasks: whole real trees, newest
    first, then demonstrations. The findings are written to RUN/fidelity.json."""
    real = [name for name in run.collections() if name != imagined_trees(round_of(name))]
    newest_first = sorted(real, key=round_of, reverse=True)
    own, known = list(experiences(run, newest_first)), list(remembered_steps(world))
    held_out = split(own, known)[1]
    if config.world.demonstrations and sum(not one.opens for one in held_out) < most:
        trees = islice(demonstrations(config), config.world.demonstrations)
        more = (transitions(tree, config.policy.format) for tree in trees if is_held_out(tree.task.id))
        held_out = split(chain(own, *more), known)[1]
    number = round_of(world.name)
    ratios = (claims_kept(run, each) for each in (number, number - 1))
    low, high = config.environment.returns
    steps = [one for one in held_out if not one.opens]
    if not steps:
        raise RunError(f"no task of {run.path} is held out: collect more tasks")
    selected = list[Experience]()
    for tree in (list(found) for _, found in groupby(steps, key=lambda one: one.task_id)):
        if selected and len(selected) + len(tree) > most:
            break
        selected += tree
    with world_model(config, world) as model:
        fidelity = asyncio.run(
            audit(
                model,
                selected,
                learnt=known,
                free=config.world.free,
                noise=config.world.noise,
                reward_span=high - low,
                cr=next((ratio for ratio in ratios if ratio is not None), None),
            )
        )
    write_atomic(run.path / "fidelity.json", orjson.dumps(fidelity.to_json(), option=orjson.OPT_INDENT_2))
    return fidelity
