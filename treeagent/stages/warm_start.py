"""A policy to begin with: one that imitates noisy demonstrations."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.value_head import ValueHead
from treeagent.config import RunConfig
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.learners.config import SFTConfig
from treeagent.learners.lora import with_adapter
from treeagent.learners.sft import train_sft
from treeagent.learners.watch import TrainResult
from treeagent.run.alarms import refusal_sentence, row_alarms
from treeagent.run.folder import Run, RunError
from treeagent.run.metrics import logged
from treeagent.run.progress import Advance, Progress
from treeagent.search.node import Tree, path_return, reaches
from treeagent.stages.build import make_chat, value_head
from treeagent.stages.demonstrate import demonstrated, demonstration_grammar, demonstrations, tokenise
from treeagent.stages.hooks import training_hooks
from treeagent.types import derive_seed
from treeagent.views.early_experience import reflection_rows, reflections, world_rows
from treeagent.views.tokens import TokenRow, path_rows

_TOKENIZER_EPISODES = 1500
"""Demonstrations whose text a tokenizer from scratch is made of."""
_FEWEST_SUCCESSES = 0.01
"""Least share of the demonstrations that must earn a positive return."""
_NOISY = 0.6
"""Noise beyond which a demonstrator may fail always."""


def warm_start(config: RunConfig, run: Run, progress: Progress) -> Path:
    """A model that imitates noisy demonstrations, from scratch unless ``policy.model`` names one; with a value head
    that learns their outcomes along."""
    out = run.checkpoints / "warm"
    if run.is_done("warm_start"):
        return out
    settings, early = config.warm_start, config.warm_start.early_experience
    with progress.track("demonstrations", settings.episodes) as advance:
        played = _advancing(demonstrations(config), advance)
        first = list(islice(played, _TOKENIZER_EPISODES))
        if not any(map(demonstrated, first)):
            raise RunError(
                f"none of the first {len(first)} demonstrations of environment {config.environment.name!r} took a step "
                f"({first[0].error}): see that its tasks start and its demonstrator acts, as treeagent envs check does"
            )
        _require_successes(config, first)
        checkpoint = _initial_checkpoint(config, first)
        # One demonstration at a time: its rows are small, its states are not.
        told = list(map(_lessons(config, checkpoint), chain(first, played)))
    world = [row for each in told for row in each.world if len(row.token_ids) <= settings.max_tokens]
    rows = [row for each in told for row in each.imitation if len(row.token_ids) <= settings.max_tokens]
    reflected = [row for each in told for row in each.reflections if len(row.token_ids) <= settings.max_tokens]
    if (early.wants("world") and not world) or (early.wants("reflection") and not reflected):
        raise RunError(
            f"the demonstrations leave {len(world)} world rows within warm_start.max_tokens ({settings.max_tokens}) "
            f"and {len(reflected)} reflections within policy.max_new_tokens ({config.policy.max_new_tokens}) beside: "
            f"raise these, or set warm_start.early_experience.rows, now {early.rows!r}, to what there is"
        )
    taken = sum(len(each.imitation) for each in told)
    if not rows:
        raise RunError(
            f"none of {taken} demonstrations that took a step is within warm_start.max_tokens "
            f"({settings.max_tokens}): raise it"
        )
    sft = config.learner(SFTConfig, settings.training)
    before, after = run.checkpoints / ".warm_start_world", run.checkpoints / ".warm_start"
    with logged(run.log, progress) as on_event:

        def train_on(
            rows: Sequence[TokenRow], sft: SFTConfig, name: str, scratch: Path, head: ValueHead | None
        ) -> TrainResult:
            hooks = training_hooks(on_event, name, scratch)
            return train_sft(checkpoint.model, checkpoint.tokenizer, rows, sft, head=head, **hooks)

        if early.wants("world"):
            train_on(world, replace(sft, max_steps=early.world_steps), "warm_start_world", before, None)
        result = train_on([*rows, *reflected], sft, "warm_start", after, checkpoint.head)
    save_checkpoint(checkpoint, out)
    outcomes = [each.outcome for each in told if each.outcome is not None]
    distinct = len({(row.token_ids, row.value_targets) for row in rows})
    warnings = row_alarms(
        taken=taken,
        kept=len(rows),
        distinct=distinct,
        drawn=result.steps * sft.batch_size * sft.accumulation,
    )
    for sentence in warnings:
        progress.warn(sentence)
    run.finish(
        "warm_start",
        {
            "demonstrations": len(told),
            "demonstrations_failed": len(told) - len(outcomes),
            "demonstration_success": sum(reaches(outcome, 1.0) for outcome in outcomes) / max(len(outcomes), 1),
            "environment_steps": sum(each.environment_steps for each in told),
            "rows": len(rows),
            "left_out": taken - len(rows),
            "duplicates": len(rows) - distinct,
            "world_rows": len(world),
            "reflections": len(reflected),
            "parameters": sum(parameter.numel() for parameter in checkpoint.model.parameters()),
            "update": asdict(result),
            "alarms": warnings,
        },
    )
    for scratch in (before, after):
        shutil.rmtree(scratch, ignore_errors=True)
    return out


def _require_successes(config: RunConfig, demonstrations: Sequence[Tree]) -> None:
    """Stop before training where there is next to nothing to imitate.

    A demonstrator that errs at no more than 60 % of its decisions still earns something in more than 1 % of its
    episodes; where it does not, its calls are refused, or the environment pays nothing. Where the environment's best
    return is 0 or less, returns do not tell a success.

    Raises:
        RunError: fewer than 1 % of the demonstrations earn a positive return, at ``warm_start.noise`` of 0.6 or less.
    """
    if config.warm_start.noise > _NOISY or config.environment.returns[1] <= 0:
        return
    outcomes = [_outcome(tree) or 0.0 for tree in demonstrations]
    earned = sum(outcome > 0 for outcome in outcomes)
    if earned >= _FEWEST_SUCCESSES * len(outcomes):
        return
    solved = sum(reaches(outcome, 1.0) for outcome in outcomes)
    raise RunError(
        f"{solved} of {len(outcomes)} demonstrations ({solved / len(outcomes):.1%}) of environment "
        f"{config.environment.name!r} succeed, so that there is nothing to imitate; "
        f"{refusal_sentence(demonstrations) or 'no call was refused'}: run treeagent envs check "
        f"{config.environment.name}, and mend the demonstrator, step or verify, or raise environment.max_steps "
        f"({config.environment.max_steps})"
    )


def _outcome(demonstration: Tree) -> float | None:
    """The return of a demonstration, in reward units; ``None`` where it took no step, or failed before its end."""
    played = demonstrated(demonstration)
    # Not by the tree's error: that may be an alternative's.
    if played and (last := played[-1].child) is not None and last.ended and not last.unknown:
        return path_return(played)
    return None


def _initial_checkpoint(config: RunConfig, demonstrations: Sequence[Tree]) -> Checkpoint:
    if config.policy.model is not None:
        checkpoint = load_checkpoint(config.policy.model, device_map=config.policy.device_map)
        head = value_head(checkpoint, config)
        adapted = with_adapter(checkpoint.model, config.policy.lora, derive_seed(config.seed, "lora"))
        return Checkpoint(adapted, checkpoint.tokenizer, head)
    texts = [text for tree in demonstrations for text in _texts(config, tree)]
    shape = ScratchConfig(**asdict(config.policy.scratch))
    tokenizer = train_tokenizer(texts, shape)
    model = random_model(tokenizer, shape, derive_seed(config.seed, "weights"))
    begun = Checkpoint(model, tokenizer)
    return replace(begun, head=value_head(begun, config))


def _texts(config: RunConfig, demonstration: Tree) -> Iterator[str]:
    """What a tokenizer is to spell shortly."""
    path = demonstrated(demonstration)
    last = path[-1].child if path else demonstration.root
    assert last is not None
    yield from (message.content for message in last.state.messages)
    if config.warm_start.early_experience.wants("reflection"):
        yield from (
            one.turn
            for one in reflections(demonstration, config.update.imitation.min_return, demonstration_grammar(config))
        )


@dataclass(frozen=True, slots=True)
class _Lessons:
    """What one demonstration teaches."""

    imitation: Sequence[TokenRow]
    world: Sequence[TokenRow]
    reflections: Sequence[TokenRow]
    outcome: float | None
    """The return of the demonstration; None if it took no step, or if the environment failed."""
    environment_steps: int
    """Environment steps, those of alternatives included."""


def _lessons(config: RunConfig, checkpoint: Checkpoint) -> Callable[[Tree], _Lessons]:
    """Demonstrations to rows, with the outcome as every state's value, and to rows of early experience where they are
    wanted, of reflections those that the policy could say."""
    chat, grammar, wanted = (
        make_chat(checkpoint, config),
        demonstration_grammar(config),
        config.warm_start.early_experience,
    )

    def lessons(demonstration: Tree) -> _Lessons:
        tree = tokenise(demonstration, chat)
        path = demonstrated(tree)
        outcome = _outcome(demonstration) if path else None
        alone = tree.budget.simulations <= 1
        reflected: Iterable[TokenRow] = ()
        if wanted.wants("reflection"):
            reflected = reflection_rows(tree, config.update.imitation.min_return, grammar, chat.encode_action)
        return _Lessons(
            list(path_rows(tree, path, [outcome] * (len(path) + 1))),
            list(world_rows(tree)) if wanted.wants("world") and not alone else [],
            [row for row in reflected if sum(row.mask) <= config.policy.max_new_tokens],
            outcome,
            tree.budget.environment_steps,
        )

    return lessons


def _advancing(items: Iterator[Tree], advance: Advance) -> Iterator[Tree]:
    for item in items:
        advance(1)
        yield item
