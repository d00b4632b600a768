"""Options that commands share, and functions that open a command's run."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treeagent.pipeline.terminal import Terminal

if TYPE_CHECKING:  # these modules take seconds to import, which would slow down --help
    from treeagent.cli.preflight import Use
    from treeagent.config import Method, RunConfig
    from treeagent.pipeline.folder import Run
    from treeagent.pipeline.progress import RichProgress
    from treeagent.search.node import Tree


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

Hindsight = Annotated[
    bool,
    typer.Option(
        "--hindsight", help="Also ask the policy how much the outcome would have changed each step (criticality)."
    ),
]
HindsightModel = Annotated[
    str,
    typer.Option("--model", metavar="CHECKPOINT", help="Of --hindsight: the policy; by default the one that searched."),
]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Accept code and addresses that the settings of a run name, where no --config was given.",
    ),
]

Resume = Annotated[bool, typer.Option(help="Continue the run in RUN; finished stages are kept.")]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Single settings, such as search.limits.simulations=32."),
]

CheckpointName = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT", help="A checkpoint's folder, a GGUF file, or a model's name on the Hugging Face hub."
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]


@dataclass(frozen=True)
class Given:
    """The options of a command that writes a run."""

    config: str | None
    """A file or a recipe's name."""
    overrides: Sequence[str] | None
    seed: int | None
    out: Path
    resume: bool
    trust: bool = False


@contextmanager
def open_run(
    options: Given,
    uses: "Sequence[Use]",
    learns: "Callable[[RunConfig], Sequence[Method]]" = lambda config: (),
    checkpoint: Path | None = None,
    tree_source: Path | None = None,
) -> "Iterator[tuple[Run, RichProgress]]":
    """Context that yields the run to write and its progress. If the command learns or asks a judge, the run's alarms
    are printed at the end.

    The settings come from the first of these that exists: ``--config``; the run that is resumed; ``tree_source``; the
    run that CHECKPOINT belongs to, since the policy was trained in its environment and format.

    Args:
        options: the options of the command.
        uses: the parts of the command that use tasks.
        learns: returns the update methods that the command uses, given the settings.
        checkpoint: the checkpoint to start from, if any.
        tree_source: the run whose trees are used for learning, if it is another run.

    Raises:
        UserError: as ``require_trust`` and ``preflight.require``.
    """
    from treeagent.config import load_config
    from treeagent.pipeline.recipes import find_recipe

    runs = [options.out] if options.resume else []
    if tree_source is not None:
        runs.append(tree_source)
    if checkpoint is not None and (folder := Path(os.path.abspath(checkpoint)).parent).name == "checkpoints":
        runs.append(folder.parent)
    overrides = [*(options.overrides or ())]
    stored_config = options.out / "config.toml"
    own = next((run / "config.toml" for run in runs if (run / "config.toml").is_file()), None)
    file = own if options.config is None else find_recipe(options.config)
    if options.config is None and own is not None:
        require_trust(own, overrides, options.trust)
    config = load_config(file, overrides, seed=options.seed)
    require_trusted_worlds(config, options.trust)

    from treeagent.cli.preflight import require
    from treeagent.pipeline.folder import Run
    from treeagent.pipeline.machine import fit_to_machine
    from treeagent.pipeline.progress import RichProgress
    from treeagent.pipeline.report.show import show_alarms
    from treeagent.pipeline.trackers import tracked

    methods = learns(config)
    require(config, uses, methods, checkpoint)
    resumed = load_config(stored_config) if options.resume and stored_config.is_file() else None
    config, warning = fit_to_machine(config, checkpoint, resumed)
    print_line = partial(Terminal(stderr=True).print, soft_wrap=True)
    if warning:
        print_line(warning)
    if options.resume and resumed is None:
        print_line(f"{options.out} holds no run yet: a new one begins")
    with Run.create(options.out, config, resume=options.resume) as run, tracked(run):
        yield run, RichProgress()
        if methods:
            show_alarms(run, Terminal(stderr=True))


def require_trust(file: Path, overrides: Sequence[str], trust: bool) -> None:
    """Print that the settings of a file are used that the user did not name, and check that they are safe. A downloaded
    run must not be able to run code here or to send data to another machine.

    Raises:
        UserError: the file names code or another machine, and the user has neither named the same value nor given
            --trust.
    """
    from treeagent.config import reaching_out
    from treeagent.types import UserError

    if not trust:
        for key, value in reaching_out(file, overrides):
            raise UserError(
                f"{str(file)!r} sets {key} to {value!r}, which can run code or reach another machine: read the file, "
                "then pass --trust"
            )
    Terminal(stderr=True).print(f"settings of {str(file)!r}", soft_wrap=True)


def require_trusted_worlds(config: "RunConfig", trust: bool) -> None:
    """Call ``require_trust`` for each run whose world model ``config`` uses."""
    options = config.environment.options
    runs = [config.evaluate.world, str(options.get("run", "")) if config.environment.name == "imagined" else ""]
    for run in filter(None, runs):
        for name in ("config.toml", "world.toml"):
            if (file := Path(run) / name).is_file():
                require_trust(file, (), trust)


def trusted_settings(run_folder: Path, overrides: Sequence[str] | None, trust: bool) -> "RunConfig":
    """The settings of a run that was found on disk, with overrides from the command line.

    Raises:
        UserError: as ``require_trust``, for the run or for the one whose world model it uses.
    """
    from treeagent.config import load_config

    file = run_folder / "config.toml"
    require_trust(file, overrides or (), trust)
    config = load_config(file, overrides or ())
    require_trusted_worlds(config, trust)
    return config


def checkpoint_and_overrides(checkpoint: str | None, overrides: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """Separate an optional CHECKPOINT from the KEY=VALUE arguments after it."""
    settings = list(overrides or ())
    if checkpoint is None:
        return None, settings
    if "=" in checkpoint and not Path(checkpoint).is_dir():  # the folder of a run may be "lr=0.1"
        return None, [checkpoint, *settings]
    return find_checkpoint(checkpoint), settings


def find_checkpoint(name: str) -> Path:
    from treeagent.pipeline.folder import RunError

    path = Path(name)
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise RunError(
                f"{path} holds no checkpoint: there is no config.json in it; RUN/checkpoints/base may be one"
            )
        if path.name in ("", ".."):  # results call a policy by the name of its folder
            path = Path(os.path.abspath(path))
    elif path.suffix == ".gguf":
        if not path.is_file():
            raise RunError(f"{name} does not exist: give the path of a GGUF file")
    elif path.exists() or not _may_be_hub_name(name):
        raise RunError(
            f"{name} is no checkpoint: give a folder with a config.json, a GGUF file, or a hub name such as org/model"
        )
    return path


def _may_be_hub_name(name: str) -> bool:
    owner, slash, model = name.partition("/")
    a_path = not owner.strip(".") or Path(owner).is_dir()
    return bool(slash and model and "/" not in model and "=" not in name and not a_path)


def require_trees(folder: Path, kind: str = "") -> None:
    """Check that the run has shards whose names begin with ``kind``."""
    from treeagent.pipeline.folder import RunError
    from treeagent.store import shard_names

    if not any(name.startswith(kind) for name in shard_names(folder / "trees")):
        raise RunError(f"{folder} holds no trees: make some with treeagent collect CHECKPOINT --out {folder}")


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    from treeagent.pipeline.report.show import print_results

    print_results(rows, Terminal())


def measured_in_hindsight(
    run_folder: Path, model: str, trust: bool, overrides: Sequence[str] = ()
) -> tuple[str, Callable[["Tree"], None]]:
    """Return the name of the policy that is asked in hindsight, by which files of the run record it, and a function
    that measures a tree with it.

    Args:
        run_folder: the run with the trees to measure.
        model: a checkpoint; empty for the policy that searched.
        trust: the option ``--trust``.
        overrides: settings on the command line.
    """
    config = trusted_settings(run_folder, overrides, trust)

    from treeagent.contrib.hindsight.hindsight import hindsight, searching_policy
    from treeagent.pipeline.folder import Run, checkpoint_name

    checkpoint = find_checkpoint(model) if model else searching_policy(Run.open(run_folder), "--model")
    return checkpoint_name(checkpoint, run_folder), hindsight(checkpoint, config)
