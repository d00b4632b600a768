"""Commands that write data and models for use elsewhere, or bring a model in: export, merge, import."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from treeagent.cli.options import Overrides, RunFolder, find_checkpoint
from treeagent.run.terminal import Terminal

app = typer.Typer()


@app.command()
def export(
    run_folder: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The dataset's folder.")],
    overrides: Overrides = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIEW",
            help="View to export: pairs, advantages, sft, values or transitions (by default all five), policy, "
            "world, reflection or marks. Give it again for more.",
        ),
    ] = None,
    format: Annotated[Literal["parquet", "jsonl"], typer.Option(help="File format.")] = "parquet",
) -> None:
    """Export views of the trees as a Hugging Face dataset, with one config for each view.

    Reads RUN/trees, writes DIR; the same command goes on where it was killed, and takes in trees collected since.

    Example: treeagent export runs/shop --view pairs --view sft --out shop-trees update.pairs.min_margin=0.1
    """
    from treeagent.config import load_config
    from treeagent.export.dataset import export as write
    from treeagent.export.views import USUAL
    from treeagent.run.folder import Run
    from treeagent.run.progress import RichProgress

    run = Run.open(run_folder)
    config = load_config(run_folder / "config.toml", overrides or ())
    rows = write(config, run, RichProgress(), list(dict.fromkeys(view or USUAL)), format, out)
    for name, count in rows.items():
        Terminal().print(f"{count:,} rows in {out / name}")


@app.command("import")
def import_model(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="A model in llama.cpp's format.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The checkpoint's folder.", show_default=False)],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="Number format of the weights: float32 keeps them exactly, the others halve the folder."),
    ] = "float32",
) -> None:
    """Import a GGUF file as a stock Hugging Face checkpoint: weights, tokenizer and chat template.

    Reads FILE.gguf, writes OUT. Quantised weights are written unquantised, so that they can be trained.

    Example: treeagent import SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    """
    from treeagent.agent.gguf import import_gguf
    from treeagent.run.folder import RunError

    if out.exists():
        raise RunError(f"{out} exists: choose a new folder for the checkpoint")
    out.parent.mkdir(parents=True, exist_ok=True)
    Terminal().print(f"checkpoint in {import_gguf(file, out, dtype)}")


@app.command()
def merge(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint with an adapter.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The merged checkpoint's folder.", show_default=False)],
) -> None:
    """Merge an adapter into its base model, so that vLLM and transformers load it as a stock model.

    Reads CHECKPOINT and its base, writes OUT.

    Example: treeagent merge runs/lora/checkpoints/round-1-rft shop-policy
    """
    from treeagent.agent.checkpoint import merge as write

    write(find_checkpoint(str(checkpoint)), out)
    Terminal().print(f"checkpoint in {out}")
