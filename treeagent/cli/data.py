"""The command that writes data: export."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from treeagent.cli.options import (
    Overrides,
    find_checkpoint,
)
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run's folder, or a checkpoint with an adapter.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The new folder of the dataset or model.")],
    overrides: Overrides = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIEW",
            help="View to export: pairs, advantages, sft, values or transitions (by default all five), or policy. "
            "Give it again for more.",
        ),
    ] = None,
    format: Annotated[Literal["parquet", "jsonl"], typer.Option(help="File format.")] = "parquet",
) -> None:
    """Export views of a run's trees as a Hugging Face dataset, or a checkpoint's adapter merged into its base model.

    Example: treeagent export runs/shop --view pairs --view sft --out shop-trees update.pairs.min_margin=0.1

    Example: treeagent export runs/lora/checkpoints/round-1-rft --out shop-policy
    """
    if (source / "adapter_config.json").is_file():
        from treeagent.agent.checkpoint import merge

        merge(find_checkpoint(str(source)), out)
        Terminal().print(f"checkpoint in {out}")
        return
    from treeagent.config import load_config
    from treeagent.pipeline.export import USUAL
    from treeagent.pipeline.export import export as write
    from treeagent.pipeline.folder import Run
    from treeagent.pipeline.progress import RichProgress

    run = Run.open(source)
    config = load_config(source / "config.toml", overrides or ())
    rows = write(config, run, RichProgress(), list(dict.fromkeys(view or USUAL)), format, out)
    for name, count in rows.items():
        Terminal().print(f"{count:,} rows in {out / name}")
