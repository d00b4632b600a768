"""Options that commands share, and functions that open a command's run."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from treeagent.config import RunConfig, load_config, reaching_out
from treeagent.envs.make import env_class
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.recipes import find_policy, find_recipe
from treeagent.pipeline.report.show import print_results, show_alarms
from treeagent.pipeline.terminal import Terminal
from treeagent.store import shard_names
from treeagent.types import UserError

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="NAME|FILE.toml",
        help="Settings: a recipe's name (treeagent recipes lists them) or a TOML file. By default the settings of the "
        "run that is resumed, or of the run that CHECKPOINT is from.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run's folder.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random choice.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Accept code and addresses that the settings of a run name, where no --config was given."
    ),
]
Resume = Annotated[bool, typer.Option(help="Continue the run in RUN; finished stages are kept.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Single settings, such as search.limits.simulations=32.")
]
CheckpointName = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's folder, or a model's name on the Hugging Face hub.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]


def chosen_settings(
    config: str | None,
    overrides: Sequence[str] | None,
    seed: int | None,
    resume: bool,
    trust: bool,
    out: Path,
    checkpoint: Path | None = None,
    trees: Path | None = None,
    otherwise: str | None = None,
) -> RunConfig:
    """The settings of a command, from the first of these that exists: ``--config``; the run that is resumed; the run
    ``trees``; the run that ``checkpoint`` is from; the recipe ``otherwise``."""
    folder = Path(os.path.abspath(checkpoint)).parent if checkpoint is not None else Path()
    runs = out if resume else None, trees, folder.parent if folder.name == "checkpoints" else None
    own = next((run / "config.toml" for run in runs if run is not None and (run / "config.toml").is_file()), None)
    if config is None and own is not None:
        require_trust(own, overrides or (), trust)
    if config is None and own is None and otherwise is not None:
        config = otherwise
        Terminal(stderr=True).print(f"settings of the recipe {config}: choose others by --config", soft_wrap=True)
    found = load_config(own if config is None else find_recipe(config), overrides or (), seed=seed)
    require_trusted_worlds(found, trust)
    # Importing torch takes seconds, so what is missing is told before.
    env_class(found.environment.name)
    for extra, package in ("vllm", "vllm"), ("remote", "openai"):
        if found.policy.generator == extra and find_spec(package) is None:
            raise UserError(f"policy.generator {extra!r} needs {package}: pip install 'treeagent[{extra}]'")
    return found


def require_trust(file: Path, overrides: Sequence[str], trust: bool) -> None:
    """Tell that a file's settings are used, and refuse it if they name code or a machine that the user did not name: a
    downloaded run may neither run code here nor send data elsewhere."""
    for key, value in () if trust else reaching_out(file, overrides):
        raise UserError(
            f"{str(file)!r} sets {key} to {value!r}, which can run code or reach another machine: read the file, then "
            "pass --trust"
        )
    Terminal(stderr=True).print(f"settings of {str(file)!r}", soft_wrap=True)


def require_trusted_worlds(config: RunConfig, trust: bool) -> None:
    """Call ``require_trust`` for the run whose world model ``config`` plans in."""
    for name in ("config.toml", "world.toml") if config.evaluate.world else ():
        if (file := Path(config.evaluate.world) / name).is_file():
            require_trust(file, (), trust)


def checkpoint_and_overrides(checkpoint: str | None, overrides: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """Separate an optional CHECKPOINT from the KEY=VALUE arguments after it."""
    settings = list(overrides or ())
    if checkpoint is not None and "=" in checkpoint and not Path(checkpoint).is_dir():
        return None, [checkpoint, *settings]
    return None if checkpoint is None else find_checkpoint(checkpoint), settings


def find_checkpoint(name: str) -> Path:
    """The checkpoint in a folder, one that comes with the package, or a name on the hub."""
    path = find_policy(name)
    if any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
        return path if path.name not in ("", "..") else path.resolve()  # results are named after the folder
    owner, _, model = name.partition("/")
    a_path = not owner.strip(".") or Path(owner).is_dir() or "/" in model or "=" in name
    if path.exists() or not model or a_path:
        raise RunError(
            f"{name} is no checkpoint: give a folder with a config.json, such as RUN/checkpoints/base, or a hub name "
            "such as org/model"
        )
    return path


def require_trees(folder: Path, kind: str = "") -> None:
    """Check that the run has shards whose names begin with ``kind``."""
    if not any(name.startswith(kind) for name in shard_names(folder / "trees")):
        raise RunError(f"{folder} holds no trees: make some with treeagent collect CHECKPOINT --out {folder}")


def print_end(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Print the results of a run, then its alarms."""
    print_results(rows, Terminal())
    show_alarms(Run.open(out), Terminal(stderr=True))
