"""``treeagent envs``: list environments, check one against the contract, write a template of a new one."""

import keyword
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from treeagent.config import load_config
from treeagent.envs import BUILT_IN, Env, WorkerEnv, env_class, example, make_env
from treeagent.envs.check import CheckReport, cause_of, check_env, check_tasks, first_tasks
from treeagent.pipeline.recipes import first_sentence
from treeagent.pipeline.shots import check_formats
from treeagent.pipeline.terminal import Terminal
from treeagent.seams import names
from treeagent.store import write_atomic
from treeagent.types import Task, UserError

app = typer.Typer(help="List environments, check one, write the start of a new one.", no_args_is_help=True)


class Findings(NamedTuple):
    """The findings of the checks of one environment, each once."""

    tasks: int
    branches: int
    equal_branches: int
    violations: tuple[str, ...]
    skipped: tuple[str, ...]
    advice: tuple[str, ...]


@app.command("list")
def list_envs() -> None:
    """List the built-in environments with the extra that each needs, its kind of snapshots and a description.

    Example: treeagent envs list
    """
    table = Table("name", "extra", "snapshots", "what it is", box=None)
    for name in names("environment.name", BUILT_IN):
        kind = env_class(name)
        table.add_row(name, kind.extra, kind.snapshot_kind, first_sentence(kind.__doc__ or ""))
    Terminal().print(table)


@app.command()
def check(
    env: Annotated[str, typer.Argument(metavar="ENV", help='A built-in environment, or your own as "module:Class".')],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of the environment, such as difficulty=1.")
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Number of tasks to check.")] = 3,
    worker: Annotated[bool, typer.Option("--worker", help="Run the environment in a process of its own.")] = False,
) -> None:
    """Check an environment's contract. Exits with 1 on any violation.

    A branch must equal its replay, and a seed must determine an episode. Instances must not share state, and no
    observation may show the answer. No trivial episode may succeed. A call must work in every policy.format or in none.

    Example: treeagent envs check shop difficulty=1
    """
    config = load_config(None, [f"environment.name={env}", *(f"environment.options.{each}" for each in options or ())])
    settings, make, say = config.environment.options, WorkerEnv if worker else make_env, Terminal(soft_wrap=True).print
    with closing(make(env, settings)) as checked, closing(make(env, settings)) as other:
        found = find(env, checked, other, tasks)
        # Told before close(), which may raise.
        say(
            f"{env}: {found.equal_branches} of {found.branches} branches equal their replays "
            f"({found.tasks} tasks, snapshots {checked.snapshot_kind})"
        )
        for kind, told in ("not checked", found.skipped), ("advice", found.advice), ("violation", found.violations):
            for sentence in told:
                say(f"{kind}: {sentence}")
        say("violations found" if found.violations else "passed")
    if found.violations:
        raise typer.Exit(1)


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the module: one word in lower case, such as lights.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write to.")] = Path(),
) -> None:
    """Write DIR/NAME.py, a small working environment to edit, and its test DIR/NAME_test.py.

    Example: treeagent envs new lights
    """
    taken = keyword.iskeyword(name) or name in sys.stdlib_module_names
    if taken or not (name.isidentifier() and name.islower()):
        raise UserError(f"{name!r} cannot name a module: give a word in lower case that Python does not use, as lights")
    title, say = name.title().replace("_", ""), Terminal(soft_wrap=True).print
    source = Path(example.__file__)
    written = {f"{name}.py": source, f"{name}_test.py": source.with_name("example_test.py")}
    for file in written:
        if (out / file).exists():
            raise UserError(f"{out / file} exists: choose another name or another --out")
    out.mkdir(parents=True, exist_ok=True)
    for file, copied in written.items():
        text = copied.read_text(encoding="utf-8").replace("treeagent.envs.example", name)
        write_atomic(out / file, text.replace("Example", title).replace("example-", f"{name}-").encode())
        say(f"wrote {out / file}")
    say(f"check it: cd {shlex.quote(str(out))} && treeagent envs check {name}:{title}")
    say(f"learn in it, there: treeagent quickstart --config own --out runs/{name} environment.name={name}:{title}")


def find(name: str, checked: Env, other: Env, count: int) -> Findings:
    """Check an environment on its first ``count`` training tasks. ``other`` is a second instance of it."""
    tasks = first_tasks(checked, "train", count)
    if not tasks or not isinstance(tasks[0], Task):
        given = f"gives {tasks[0]!r:.80} as a task" if tasks else "has no task in its split 'train'"
        raise UserError(f"environment {name!r} {given}: a check needs a treeagent.types.Task")
    reports = [check_env(checked, task, other=other) for task in tasks]
    violations = [*check_tasks(checked), *(each for report in reports for each in report.violations)]
    skipped = [each for report in reports for each in report.skipped]
    if not violations:  # the next check plays episodes, which needs an environment that keeps the contract
        try:
            differing, unplayed = check_formats(checked, tasks)
        except Exception as error:  # a user's environment may raise anything
            differing, unplayed = [f"the check of formats, which plays in an event loop, met {cause_of(error)}"], []
        violations, skipped = [*violations, *differing], [*skipped, *unplayed]
    branches, equal = (sum(getattr(report, kind) for report in reports) for kind in ("branches", "equal_branches"))
    told = (tuple(dict.fromkeys(each)) for each in (violations, skipped, _advice(checked, reports)))
    return Findings(len(tasks), branches, equal, *told)


def _advice(env: Env, reports: Sequence[CheckReport]) -> Iterator[str]:
    for report in reports:
        if report.best > 0.0 and not report.solved:
            yield f"no episode counts as a success: the best earned {report.best:g}, and only 1 is one"
    if longest := max(report.longest for report in reports):
        yield f"demonstrations take up to {longest} calls: environment.max_steps must allow as many"
    solved, failed, unended = (sum(getattr(each, kind) for each in reports) for kind in ("solved", "failed", "unended"))
    if solved and unended and not failed and not env.only_success_ends:
        yield (
            f"all {solved} episodes that ended were successes, {unended} others ran on to a limit: if nothing but a "
            "success can end an episode, set only_success_ends = True, so that results say so"
        )
