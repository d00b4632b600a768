"""The command line. Knows which function of the loop serves which command, and how failures read to people."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from treeagent import envs_cli, world_cli

if TYPE_CHECKING:  # what is imported here takes seconds to load, and --help should not
    from treeagent.config import Method, RunConfig
    from treeagent.preflight import Use
    from treeagent.run import Run


class Commands(TyperGroup):
    """Turns the failures that a user can mend into one sentence; all others keep their traceback."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            command = self.get_command(context, context.invoked_subcommand or "")
            resumes = command is not None and any(each.name == "resume" for each in command.params)
            _tell(f"interrupted; {'continue with --resume' if resumes else 'give the same command to go on'}")
            raise typer.Exit(130) from None
        except Exception as error:
            sentence = _sentence(error)
            if sentence is None:
                raise
            _tell(sentence)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    help="Turns a tool environment with a verifier into a better LLM agent: tree search, then learning from the trees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(envs_cli.app, name="envs")
app.add_typer(world_cli.app, name="world")

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="Settings; by default those of the run to resume, or that CHECKPOINT is of.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run's folder.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Every random choice derives from it.")]
Engine = Annotated[
    Literal["local", "ray"] | None,
    typer.Option("--engine", help="Where workers run: this machine, or a Ray cluster (see ray.address)."),
]
Resume = Annotated[bool, typer.Option(help="Go on with the run in RUN; finished stages are kept.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Single settings, such as search.limits.simulations=32."),
]
CheckpointName = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's folder, or a model's name on the Hugging Face hub.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]


@app.command()
def quickstart(
    overrides: Overrides = None,
    config: Config = None,
    out: Out = Path("runs/quickstart"),
    seed: Seed = None,
    engine: Engine = None,
    resume: Resume = False,
) -> None:
    """Do it all: imitate demonstrations, search, learn from the trees by RFT, DPO and GRPO, compare on held-out tasks.

    Writes RUN/trees, RUN/checkpoints, RUN/metrics.jsonl, RUN/results.json and RUN/report.html.

    Example: treeagent quickstart --out runs/shop search.limits.simulations=32
    """
    given = _Given(config, overrides, seed, engine, out, resume)
    with _run(given, ["warm_start", "collect", "update", "evaluate"], lambda config: config.update.methods) as run:
        from treeagent import loop
        from treeagent.pool import kept_workers
        from treeagent.progress import RichProgress
        from treeagent.report.show import show_alarms

        with kept_workers(run.config):
            _print_results(loop.quickstart(run.config, run, RichProgress()))
        show_alarms(run, Console(stderr=True))


@app.command()
def collect(
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    engine: Engine = None,
    resume: Resume = False,
) -> None:
    """Search training tasks with a policy, one tree a task.

    Reads CHECKPOINT, writes RUN/trees/collect-*.jsonl.zst, a file as soon as a wave of trees is finished.

    Example: treeagent collect runs/shop/checkpoints/base --out runs/more collect.tasks=200
    """
    checkpoint_path = _checkpoint(checkpoint)
    given = _Given(config, overrides, seed, engine, out, resume)
    with _run(given, ["collect"], checkpoint=checkpoint_path) as run:
        from treeagent import loop
        from treeagent.progress import RichProgress

        loop.collect(run.config, run, RichProgress(), checkpoint_path)


@app.command()
def export(
    run_folder: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The dataset's folder.")],
    overrides: Overrides = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIEW",
            help="pairs, advantages, sft, values or transitions, by default all of these; world or reflection. "
            "Give it again for more.",
        ),
    ] = None,
    format: Annotated[Literal["parquet", "jsonl"], typer.Option(help="Of the files.")] = "parquet",
) -> None:
    """Write views of the trees as a Hugging Face dataset with one config a view, to train on elsewhere.

    Reads RUN/trees, writes DIR; the same command goes on where it was killed, and takes in trees collected since.

    Example: treeagent export runs/shop --view pairs --view sft --out shop-trees update.pairs.min_margin=0.1
    """
    from treeagent.config import load_config
    from treeagent.export.dataset import export as write
    from treeagent.export.views import USUAL
    from treeagent.progress import RichProgress
    from treeagent.run import Run

    run = Run.open(run_folder)
    config = load_config(run_folder / "config.toml", overrides or ())
    rows = write(config, run, RichProgress(), list(dict.fromkeys(view or USUAL)), format, out)
    for name, count in rows.items():
        Console().print(f"{count:,} rows in {out / name}", highlight=False, markup=False)


@app.command()
def train(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHECKPOINT]", help="Where to start; without one, from a warm start.", show_default=False
        ),
    ] = None,
    out: Out = Path("runs/train"),
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    engine: Engine = None,
    resume: Resume = False,
) -> None:
    """Search and adapt: rounds of tree search with the policy as it is and of learning from the trees.

    Writes RUN/trees, RUN/checkpoints/round-N-METHOD, RUN/metrics.jsonl, RUN/results.json and RUN/report.html.

    Example: treeagent train --config configs/quickstart.toml --out runs/adapt adapt.rounds=3
    """
    start, settings = _checkpoint_and_overrides(checkpoint, overrides)
    uses: list[Use] = ["adapt", "update", "evaluate"]
    if start is None and not resume:  # where a resumed run began, its folder tells
        uses.insert(0, "warm_start")
    given = _Given(config, settings, seed, engine, out, resume)
    with _run(given, uses, lambda config: config.adapt.methods, start) as run:
        from treeagent.adapt import adapt
        from treeagent.pool import kept_workers
        from treeagent.progress import RichProgress
        from treeagent.report.show import show_alarms

        with kept_workers(run.config):
            _print_results(adapt(run.config, run, RichProgress(), start))
        show_alarms(run, Console(stderr=True))


@app.command()
def update(
    method: Annotated[
        Literal["rft", "dpo", "grpo"], typer.Argument(metavar="METHOD", help="rft, dpo or grpo.", show_default=False)
    ],
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    engine: Engine = None,
    resume: Resume = True,
    trees: Annotated[
        Path | None, typer.Option("--trees", metavar="RUN", help="Whose trees to learn from; by default RUN's own.")
    ] = None,
) -> None:
    """Update a policy from the trees of a run by one method.

    Reads CHECKPOINT and the trees of all rounds, writes RUN/checkpoints/METHOD. For other settings than the trees' run
    has, take another --out and name that run by --trees; its config is then the default.

    Example: treeagent update dpo runs/shop/checkpoints/base --out runs/dpo50 --trees runs/shop update.dpo.max_steps=50
    """
    from treeagent.run import COLLECTED

    checkpoint_path = _checkpoint(checkpoint)
    _require_trees(trees or out, COLLECTED)  # evaluations leave trees, too
    if trees and not (out / "config.toml").is_file():
        config = config or trees / "config.toml"
    given = _Given(config, overrides, seed, engine, out, resume)
    with _run(given, ["update"], lambda _: [method], checkpoint_path) as run:
        from treeagent import loop
        from treeagent.progress import RichProgress
        from treeagent.report.show import show_alarms
        from treeagent.run import Run

        source = Run.open(trees) if trees else None
        [written] = loop.update(run.config, run, RichProgress(), checkpoint_path, [method], source)
        show_alarms(run, Console(stderr=True))
        Console().print(f"checkpoint in {written}", highlight=False, markup=False)


@app.command()
def merge(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint with an adapter.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The merged checkpoint's folder.", show_default=False)],
) -> None:
    """Make an adapter part of its base: a stock model that vLLM and transformers load.

    Reads CHECKPOINT and its base, writes OUT.

    Example: treeagent merge runs/lora/checkpoints/round-1-rft shop-policy
    """
    from treeagent.checkpoint import merge as write

    write(_checkpoint(str(checkpoint)), out)
    Console().print(f"checkpoint in {out}", highlight=False, markup=False)


@app.command("eval")
def evaluate(
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    engine: Engine = None,
    resume: Resume = True,
) -> None:
    """Measure a policy on held-out tasks: greedy, best of N, tree search, with what each of them spent.

    Reads CHECKPOINT, writes RUN/results.json and prints it as a table.

    Example: treeagent eval runs/shop/checkpoints/dpo --out runs/dpo evaluate.tasks=500
    """
    checkpoint_path = _checkpoint(checkpoint)
    given = _Given(config, overrides, seed, engine, out, resume)
    with _run(given, ["evaluate"], checkpoint=checkpoint_path) as run:
        from treeagent import loop
        from treeagent.progress import RichProgress

        _print_results(loop.evaluate(run.config, run, RichProgress(), checkpoint_path))


@app.command()
def show(
    run_folder: RunFolder,
    task_id: Annotated[str | None, typer.Argument(metavar="[TASK_ID]", help="Print the trees of this task.")] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Print only one hash over all trees.")] = False,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="Steps of a tree to print.")] = None,
    graph: Annotated[
        Path | None,
        typer.Option("--graph", help="Write the tree as a graph instead: FILE.graphml, .dot or .json.", metavar="FILE"),
    ] = None,
) -> None:
    """Look into a run: what is done and found, the search trees of one task, or a hash to compare two runs by.

    Reads RUN, also while it is being written; writes nothing but the graph asked for.

    Example: treeagent show runs/shop shop1-1000-0-train-17 --depth 3
    """
    from treeagent.report.show import show_run, show_task
    from treeagent.run import Run, RunError
    from treeagent.search.record import check_format
    from treeagent.store import digest as digest_of
    from treeagent.store import read_as

    run = Run.open(run_folder)
    if task_id is None and (depth or graph):
        raise RunError("--depth and --graph are of one tree: name its task too; treeagent show RUN lists some")
    if task_id is not None and digest:
        raise RunError("--digest is of all trees: leave the task out")
    if digest:
        _require_trees(run_folder)
        typer.echo(digest_of(read_as(check_format, run.trees)))
    elif task_id is not None:
        _require_trees(run_folder)
        show_task(run, task_id, Console(), depth=depth, graph=graph)
    else:
        show_run(run, Console())


def main() -> None:
    """Exits with 2 on what the user can mend, with 130 when interrupted."""
    app()


@dataclass(frozen=True)
class _Given:
    """What the command line says of a run."""

    config: Path | None
    overrides: Sequence[str] | None
    seed: int | None
    engine: str | None
    out: Path
    resume: bool


@contextmanager
def _run(
    given: _Given,
    uses: "Sequence[Use]",
    learns: "Callable[[RunConfig], Sequence[Method]]" = lambda config: (),
    checkpoint: Path | None = None,
) -> "Iterator[Run]":
    """The run to write. Its settings are those of ``--config``, else of the run that is resumed, else of the run that
    CHECKPOINT is of, whose environment and turns the policy knows."""
    from treeagent.config import load_config

    file, own = given.config, given.out / "config.toml"
    if file is None and given.resume and own.is_file():
        file = own
    elif file is None and checkpoint is not None and checkpoint.parent.name == "checkpoints":
        of_its_run = checkpoint.parent.parent / "config.toml"
        file = of_its_run if of_its_run.is_file() else None
    chosen = [] if given.engine is None else [f"engine={given.engine}"]
    config = load_config(file, [*(given.overrides or ()), *chosen], seed=given.seed)

    from treeagent.preflight import require
    from treeagent.run import Run
    from treeagent.tracking import tracked

    require(config, uses, learns(config), checkpoint)
    with Run.create(given.out, config, resume=given.resume) as run, tracked(run):
        yield run


def _checkpoint_and_overrides(checkpoint: str | None, overrides: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """An optional CHECKPOINT before KEY=VALUE: what stands in its place may be the first of those."""
    settings = list(overrides or ())
    if checkpoint is None:
        return None, settings
    if "=" in checkpoint:
        return None, [checkpoint, *settings]
    return _checkpoint(checkpoint), settings


def _checkpoint(name: str) -> Path:
    from safetensors import SafetensorError, safe_open

    from treeagent.run import RunError

    path = Path(name)
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise RunError(
                f"{path} holds no checkpoint: there is no config.json in it; RUN/checkpoints/base may be one"
            )
        for file in sorted(path.glob("*.safetensors")):
            try:
                with safe_open(file, "numpy"):  # reads what the file should hold, no weights
                    pass
            except SafetensorError as error:
                raise RunError(f"{file} is damaged or cut short ({error}): restore it, or make it again") from error
    elif path.exists() or not _may_be_hub_name(name):
        raise RunError(f"{name} is no checkpoint: give a folder with a config.json, or a hub name such as org/model")
    return path


def _may_be_hub_name(name: str) -> bool:
    owner, slash, model = name.partition("/")
    a_path = not owner.strip(".") or Path(owner).is_dir()
    return bool(slash and model and "/" not in model and "=" not in name and not a_path)


def _require_trees(folder: Path, kind: str = "") -> None:
    """That the run has some, of shards whose names begin with ``kind``."""
    from treeagent.run import RunError
    from treeagent.store import shard_names

    if not any(name.startswith(kind) for name in shard_names(folder / "trees")):
        raise RunError(f"{folder} holds no trees: make some with treeagent collect CHECKPOINT --out {folder}")


def _print_results(rows: Sequence[dict[str, Any]]) -> None:
    from treeagent.report.table import print_results

    print_results(rows, Console())


def _sentence(error: Exception) -> str | None:
    if isinstance(error, FileNotFoundError):
        return f"{error.filename} does not exist: check the path" if error.filename else str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"cannot read or write {error.filename}: {error.strerror}: check the path and its permissions"
    # Our own exception classes are all of this kind: a sentence that names the value and the fix.
    return str(error) if type(error).__module__.startswith("treeagent.") else None


def _tell(sentence: str) -> None:
    Console(stderr=True).print(Text(sentence, style="red"), soft_wrap=True)
