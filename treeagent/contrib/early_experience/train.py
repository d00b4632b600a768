"""``treeagent early-experience``: learn from the results of a policy's own actions before it is updated."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_adapter
from treeagent.cli.options import RunFolder, find_checkpoint, require_trees
from treeagent.contrib.early_experience.rows import reflection_rows, world_rows
from treeagent.generators.turn import make_grammar
from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import train_sft
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.terminal import Terminal
from treeagent.pipeline.trees import read_trees
from treeagent.seams import checked
from treeagent.types import UserError, derive_seed
from treeagent.views.tokens import TokenRow

app = typer.Typer()


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


@app.command()
def early_experience(
    run_folder: RunFolder,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The policy that searched RUN's trees.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options, such as rows=world.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="NEW", help="Folder of the new checkpoint.")] = Path("early"),
) -> None:
    """Train CHECKPOINT on the early experience in RUN's trees: what its own actions led to.

    Reads RUN/trees, writes the checkpoint NEW.

    Example: treeagent early-experience runs/shop runs/shop/checkpoints/warm rows=world --out early
    """
    require_trees(run_folder, COLLECTED)
    given = dict(each.partition("=")[::2] for each in options or ())
    settings = checked(EarlyOptions, given, "treeagent early-experience")
    run = Run.open(run_folder)
    config = run.config
    loaded = load_checkpoint(find_checkpoint(checkpoint), device_map=config.policy.device_map)
    model = with_adapter(loaded.model, config.policy.lora, derive_seed(config.seed, "lora"))
    learner = replace(loaded, model=model)
    rows = list(early_rows(run, learner, settings))
    training = SFTConfig(
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        max_steps=settings.max_steps,
        precision=config.precision(config.policy),
        seed=config.seed,
    )
    train_sft(model, loaded.tokenizer, rows, training)
    save_checkpoint(learner, out)
    Terminal(soft_wrap=True).print(f"{out} has learnt from {len(rows)} rows")


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
