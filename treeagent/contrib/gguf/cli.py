"""The command that imports a GGUF file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from treeagent.types import UserError

app = typer.Typer()


@app.command()
def gguf(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model in llama.cpp's format (.gguf).")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.", show_default=False)],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="Number format of the weights: float32 keeps them exactly."),
    ] = "float32",
) -> None:
    """Import a GGUF file as a standard Hugging Face checkpoint.

    Example: treeagent gguf SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    """
    from treeagent.contrib.gguf.files import import_gguf

    if out.exists():
        raise UserError(f"{out} exists: choose a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    typer.echo(f"checkpoint in {import_gguf(file, out, dtype)}")
