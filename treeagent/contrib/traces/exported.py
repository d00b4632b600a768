"""The command ``treeagent traces``: a run's episodes or trees for other tools."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from treeagent.cli.options import RunFolder, Trust, require_trust
from treeagent.contrib.traces.traces import Source, TraceFormat, write_traces
from treeagent.envs import make_env
from treeagent.pipeline.folder import Run
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


@app.command()
def traces(
    run_folder: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file of JSON lines to write.")],
    format: Annotated[
        TraceFormat,
        typer.Option(help="OpenAI's messages with tools, or OpenTelemetry GenAI spans."),
    ] = "chat",
    source: Annotated[
        Source, typer.Option("--from", help="The episodes of evaluations, or the searched training trees.")
    ] = "episodes",
    trust: Trust = False,
) -> None:
    """Write a run's episodes or trees as traces for other tools, one JSON line each.

    Reads RUN, builds its environment to get its tools, writes FILE.

    Example: treeagent traces runs/shop --format otlp --out shop.jsonl
    """
    run = Run.open(run_folder)
    require_trust(run.path / "config.toml", (), trust)
    environment = run.config.environment
    with closing(make_env(environment.name, environment.options)) as env:
        tools = env.tools()
    count = write_traces(run, out, format, source, tools)
    Terminal().print(f"{count:,} traces in {out}")
