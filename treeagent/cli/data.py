"""Commands that export or import data and models: export, rescore, traces, import, merge."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from treeagent.cli.options import (
    Config,
    Overrides,
    RunFolder,
    Trust,
    find_checkpoint,
    trusted_settings,
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


@app.command()
def traces(
    run_folder: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file of JSON lines to write.")],
    format: Annotated[
        Literal["chat", "otlp", "verifiers"],
        typer.Option(help="OpenAI's messages with tools, OpenTelemetry GenAI spans, or traces of verifiers."),
    ] = "chat",
    source: Annotated[
        Literal["episodes", "trees"],
        typer.Option("--from", help="The episodes of evaluations, or the searched training trees."),
    ] = "episodes",
    trust: Trust = False,
) -> None:
    """Write a run's episodes or trees as traces for other tools, one JSON line each.

    Reads RUN, builds its environment to get its tools, writes FILE.

    Example: treeagent traces runs/shop --format otlp --out shop.jsonl
    """
    from contextlib import closing

    from treeagent.contrib.traces.traces import write_traces
    from treeagent.envs import make_env
    from treeagent.pipeline.folder import Run

    run = Run.open(run_folder)
    environment = trusted_settings(run_folder, (), trust).environment
    with closing(make_env(environment.name, environment.options)) as env:
        tools = env.tools()
    count = write_traces(run, out, format, source, tools)
    Terminal().print(f"{count:,} traces in {out}")


@app.command("import")
def import_file(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A model in llama.cpp's format (.gguf), or transcripts (.jsonl, .json)."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.", show_default=False)],
    overrides: Overrides = None,
    config: Config = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="CHECKPOINT",
            help="Of transcripts: the model whose tokens they get, so that it can imitate them.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="Of a model, number format of the weights: float32 keeps them exactly."),
    ] = "float32",
) -> None:
    """Import a GGUF file as a stock Hugging Face checkpoint, or transcripts of other agents as a run.

    Transcripts are OpenAI messages, one JSON line each, or OpenTelemetry GenAI spans in OTLP's JSON. Each becomes a
    tree with one path, which show, view, review, export and update rft can read. The settings (--config, KEY=VALUE)
    name their environment and policy.format; the default format is "tools".

    Example: treeagent import SmolLM2-135M-Instruct.Q4_1.gguf smollm2

    Example: treeagent import chats.jsonl runs/chats --checkpoint Qwen/Qwen3-0.6B
    """
    from treeagent.pipeline.folder import RunError

    if out.exists():
        raise RunError(f"{out} exists: choose a new folder")
    if file.suffix == ".gguf":
        if overrides or config or checkpoint:
            raise RunError("settings and --checkpoint are of transcripts: leave them out for a GGUF file")
        from treeagent.contrib.gguf.files import import_gguf

        out.parent.mkdir(parents=True, exist_ok=True)
        Terminal().print(f"checkpoint in {import_gguf(file, out, dtype)}")
        return

    from treeagent.config import load_config
    from treeagent.pipeline.imported import import_transcripts
    from treeagent.pipeline.recipes import find_recipe

    settings = [*([] if config else ["policy.format=tools"]), *(overrides or ())]
    chosen = load_config(find_recipe(config) if config else None, settings)
    trees, unfit, cut = import_transcripts(chosen, file, out, find_checkpoint(checkpoint) if checkpoint else None)
    Terminal().print(f"{trees:,} trees in {out}")
    if unfit:
        Terminal().print(f"{unfit:,} turns do not fit policy.format={chosen.policy.format} and are not imitated")
    if cut:
        Terminal().print(
            f"{cut:,} transcripts end early, because the rest does not fit into the model's context: "
            "no update learns from them"
        )
