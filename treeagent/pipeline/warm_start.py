"""Warm start: train a first policy by imitation of noisy demonstrations."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path

from treeagent.agent.checkpoint import save_checkpoint
from treeagent.config import RunConfig
from treeagent.generators.attention import context_length
from treeagent.generators.chat import ChatFormat
from treeagent.learners.config import SFTConfig, ValueConfig
from treeagent.learners.sft import train_sft
from treeagent.learners.value import fit_value
from treeagent.pipeline.alarms import refusal_sentence, warm_start_alarms
from treeagent.pipeline.build import first_checkpoint, make_chat, value_head
from treeagent.pipeline.demonstrate import demonstration_path, demonstrations, tokenise
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.metrics import logged, training_hooks
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.update import sample_rows
from treeagent.search.node import Node, Tree, path_return, reaches
from treeagent.types import derive_seed
from treeagent.views.imitation import path_targets
from treeagent.views.tokens import TokenRow, path_rows

TOKENIZER_EPISODES = 1500
"""Demonstrations on whose text a tokenizer from scratch is trained."""
_NOISY = 0.6
"""Above this noise, even a correct demonstrator may fail in every episode."""


def warm_start(config: RunConfig, run: Run, progress: Progress) -> Path:
    """Train a model to imitate demonstrations and their outcomes. Returns the folder of the checkpoint."""
    out = run.checkpoints / "warm"
    if run.is_done("warm_start"):
        return out
    settings, collected = config.warm_start, list[TokenRow]()
    outcomes, cut_off, steps = list[float | None](), 0, 0
    with progress.track("demonstrations", settings.episodes) as advance:

        def played() -> Iterator[Tree]:
            for tree in demonstrations(config):
                advance(1)
                yield tree

        trees = played()
        first = list(islice(trees, TOKENIZER_EPISODES))
        _require_successes(config, first)
        ends = [path[-1].child if (path := demonstration_path(tree)) else tree.root for tree in first]
        texts = (message.content for end in ends if end is not None for message in end.state.messages)
        weights_seed, adapter_seed = derive_seed(config.seed, "weights"), derive_seed(config.seed, "lora")
        checkpoint = first_checkpoint(config.policy, texts, weights_seed, adapter_seed)
        checkpoint = replace(checkpoint, head=value_head(checkpoint, config, "hidden"))
        chat = make_chat(checkpoint, config)
        for tree in chain(first, trees):  # one at a time: rows are small, states are not
            collected += demonstration_rows(config, chat, tree)
            outcomes.append(_outcome(tree))
            cut_off += (end := _end(tree)) is not None and end.truncated
            steps += tree.budget.environment_steps
    most = min(settings.max_tokens, context_length(checkpoint.model))
    rows = [row for row in collected if len(row.token_ids) <= most]
    if not rows:
        raise RunError(
            f"the demonstrations leave none of {len(collected)} rows within warm_start.max_tokens "
            f"({settings.max_tokens}) and the model's context: raise these"
        )
    sft = config.learner(SFTConfig, settings.training)
    model, tokenizer, head = checkpoint.model, checkpoint.tokenizer, checkpoint.head
    scratch = run.checkpoints / ".warm_start"
    with logged(run.log, progress) as on_event:
        result = train_sft(model, tokenizer, rows, sft, head=head, **training_hooks(on_event, "warm_start", scratch))
    if config.value_reads != "hidden":  # a head on log-probabilities is fitted once the policy's weights are final
        head = value_head(checkpoint, config)
        fitting = ValueConfig(precision=config.precision(config.policy), seed=config.seed)
        fit_value(model, head, sample_rows(rows, config), fitting)
    save_checkpoint(replace(checkpoint, head=head), out)
    most_steps = config.environment.max_steps
    warnings = warm_start_alarms(cut_off, len(outcomes), most_steps, len(collected), len(rows))
    for sentence in warnings:
        progress.warn(sentence)
    ended = [outcome for outcome in outcomes if outcome is not None]
    facts = {
        "demonstrations": len(outcomes),
        "demonstrations_failed": len(outcomes) - len(ended),
        "demonstration_success": sum(reaches(outcome, 1.0) for outcome in ended) / max(len(ended), 1),
        "environment_steps": steps,
        "rows": len(rows),
        "left_out": len(collected) - len(rows),
        "update": asdict(result),
        "alarms": warnings,
    }
    run.finish("warm_start", facts)
    shutil.rmtree(scratch, ignore_errors=True)
    return out


def _require_successes(config: RunConfig, demonstrations: Sequence[Tree]) -> None:
    name, count = config.environment.name, len(demonstrations)
    earned = any((_outcome(tree) or 0.0) > 0 for tree in demonstrations)
    if not earned and config.warm_start.noise <= _NOISY and config.environment.returns[1] > 0:
        why = refusal_sentence(demonstrations) or f"the first ends with {demonstrations[0].error or 'no error'!r}"
        raise RunError(
            f"0 of {count} demonstrations of environment {name!r} earn anything, so that there is nothing to imitate; "
            f"{why}: run treeagent envs check {name}, and mend the demonstrator, step or verify, or raise "
            f"environment.max_steps ({config.environment.max_steps})"
        )


def _end(demonstration: Tree) -> Node | None:
    """The state in which a demonstration ended; None if it failed before its end."""
    path = demonstration_path(demonstration)
    last = path[-1].child if path else None
    return last if last is not None and last.ended and not last.unknown else None


def _outcome(demonstration: Tree) -> float | None:
    """The return of a demonstration; None if it has no end."""
    return None if _end(demonstration) is None else path_return(demonstration_path(demonstration))


def demonstration_rows(config: RunConfig, chat: ChatFormat, demonstration: Tree) -> Iterator[TokenRow]:
    """The rows of a demonstrated path, with value targets as of trees."""
    tree = tokenise(demonstration, chat)
    path, played = demonstration_path(tree), demonstration_path(demonstration)  # shorter if its context is full
    known = path and _outcome(demonstration) is not None
    yield from path_rows(tree, path, path_targets(played, config.search.discount) if known else ())
