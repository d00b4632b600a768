"""Train a checkpoint on the early experience in stored trees."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_adapter
from treeagent.contrib.early_experience.rows import reflection_rows, world_rows
from treeagent.generators.turn import make_grammar
from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import train_sft
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import read_trees
from treeagent.types import UserError, derive_seed
from treeagent.views.tokens import TokenRow


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class EarlyOptions:
    """Options of ``treeagent early-experience``."""

    rows: Literal["world", "reflections", "both"] = "both"
    """What is learnt: the environment's answers to the policy's own actions ("world"), turns that say why the best
    action is better than another ("reflections"), or both."""
    min_return: float = 1.0
    """Lowest return of the best path that a reflection praises."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    batch_size: Annotated[int, Field(gt=0)] = 8
    max_steps: Annotated[int, Field(gt=0)] = 200


def early_experience(run: Run, start: Path, out: Path, options: EarlyOptions) -> int:
    """Train a copy of the checkpoint ``start`` on the trees of a run, and save it to ``out``. Returns the number of
    rows."""
    config = run.config
    loaded = load_checkpoint(start, device_map=config.policy.device_map)
    model = with_adapter(loaded.model, config.policy.lora, derive_seed(config.seed, "lora"))
    checkpoint = replace(loaded, model=model)
    rows = list(early_rows(run, checkpoint, options))
    settings = SFTConfig(
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
        max_steps=options.max_steps,
        precision=config.precision(config.policy),
        seed=config.seed,
    )
    train_sft(model, loaded.tokenizer, rows, settings)
    save_checkpoint(checkpoint, out)
    return len(rows)


def early_rows(run: Run, checkpoint: Checkpoint, options: EarlyOptions) -> Iterator[TokenRow]:
    """The rows that the options name, of all searched trees of a run."""
    chat = make_chat(checkpoint, run.config)
    for tree in read_trees(run.trees, run.collections()):
        if tree.root.context_ids and chat.prompt_ids(tree.root.state.messages) != tree.root.context_ids:
            raise UserError(f"another policy searched the tree of task {tree.task.id}: give that one as CHECKPOINT")
        if options.rows != "reflections":
            yield from world_rows(tree)
        if options.rows != "world":
            grammar = make_grammar(run.config.policy.format)
            yield from reflection_rows(tree, options.min_return, grammar, chat.encode_action)
