"""The measurements of a benchmark as a file: ``results/NAME.json``.

A benchmark adds a row as soon as it is measured, and the whole file is rewritten atomically. A benchmark that was
killed goes on where it stopped: it skips rows of the same arm, seed and settings.
"""

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Self

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from treeagent.pipeline.outcomes import Outcome
from treeagent.store import regular, write_atomic
from treeagent.types import UserError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
MEASURED = ("treeagent", "benchmarks", "configs", "pyproject.toml")
"""Paths that results depend on. A change elsewhere does not make the checkout dirty."""
_PACKAGES = ("treeagent", "torch", "transformers", "trl")
_STRICT = ConfigDict(extra="forbid")
Finite = Annotated[float, Field(allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[Finite, Field(ge=0)]


@dataclass(frozen=True, config=_STRICT)
class Machine:
    """The hardware of a machine, without its name."""

    cpu: str
    cores: Annotated[int, Field(gt=0)]
    """Cores that the program may use."""
    memory_gib: Positive
    gpu: str = ""
    """Empty if there is none."""

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' * (self.cores != 1)} of {self.cpu}"
        return f"{cores}, {self.memory_gib:.0f} GiB, {self.gpu or 'no GPU'}"


@dataclass(frozen=True, config=_STRICT)
class Session:
    """One start of the benchmark. A benchmark that was killed and started again has several."""

    commit: str
    dirty: bool
    """Whether files that results depend on differed from the commit."""
    command: str
    machine: Machine
    versions: Mapping[str, str]
    date: str
    """Date of the start, in UTC."""
    seconds: Positive = 0.0
    """Seconds from the start to the last row."""


@dataclass(frozen=True, config=_STRICT)
class Row:
    """The result of one arm with one seed."""

    arm: str
    seed: int
    """Seed of the run, or number of the repetition in a speed benchmark."""
    settings: str
    """``digest`` of all settings but the seed."""
    session: Natural = 0
    """Index of the session that measured it."""
    first_task: Natural = 0
    """Index of its first task in the split."""
    solved: Annotated[str, Field(pattern="^[01]*$")] = ""
    """A "1" for each held-out task that ended in success, a "0" for each other one, in the order of the split."""
    pass_at_n: bool = False
    """Whether the success is pass@N: only a success ends an episode in this environment, so the end told the search
    about it."""
    environment_steps: Positive = 0.0
    """Sum over all its tasks."""
    generated_tokens: Positive = 0.0
    seconds: Positive = 0.0
    figures: Mapping[str, Finite] = Field(default_factory=dict)
    """Further numbers by name, such as a ratio."""

    @property
    def success(self) -> float:
        """Share of the tasks that were solved.

        Raises:
            UserError: no tasks were played.
        """
        if not self.solved:
            raise UserError(f"the row of {self.arm!r}, seed {self.seed}, played no tasks: it has no success")
        return self.solved.count("1") / len(self.solved)

    @property
    def tasks(self) -> int:
        return len(self.solved)


@dataclass(frozen=True, config=_STRICT)
class Result:
    """The content of a result file. Every arm has one row per seed, all measured with the same settings."""

    name: str
    question: str
    budgets: Mapping[str, Finite] = Field(default_factory=dict)
    """Limits that all arms have in common, such as ``generated_tokens`` per task."""
    sessions: tuple[Session, ...] = ()
    rows: tuple[Row, ...] = ()

    @model_validator(mode="after")
    def _one_row_a_seed(self) -> Self:
        kinds = [(row.arm, row.seed) for row in self.rows]
        if twice := {kind for kind in kinds if kinds.count(kind) > 1}:
            raise ValueError(f"arm and seed {min(twice)} have several rows: keep one")
        for arm in self.arms:
            if len({row.settings for row in self.rows if row.arm == arm}) > 1:
                raise ValueError(f"the rows of {arm!r} have different settings: measure all of its seeds again")
        if any(row.session >= len(self.sessions) for row in self.rows):
            raise ValueError("a row names a session that is not there: delete the file and measure again")
        return self

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms, in the order of their first rows."""
        return tuple(dict.fromkeys(row.arm for row in self.rows))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({row.seed for row in self.rows}))

    @property
    def seconds(self) -> float:
        """Seconds of all sessions together."""
        return sum(session.seconds for session in self.sessions)

    def of(self, arm: str) -> dict[int, Row]:
        """The rows of an arm by seed."""
        return {row.seed: row for row in sorted(self.rows, key=lambda row: row.seed) if row.arm == arm}


_RESULT = TypeAdapter(Result)


def read(path: Path) -> Result | None:
    """The result in a file; None if there is no file.

    Raises:
        UserError: the file is not a valid result file.
    """
    if not path.exists():
        return None
    try:
        return _RESULT.validate_json(regular(path).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        raise UserError(f"{path.name} is no result file: {location + ': ' * bool(location)}{first['msg']}") from None


def digest(settings: Mapping[str, Any]) -> str:
    """A short hash of settings: equal settings have equal hashes."""
    return hashlib.sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]


class Record:
    """A result file open for writing, by one program at a time."""

    def __init__(self, path: Path, result: Result) -> None:
        """Use ``recording`` instead. The last session of ``result`` is the current one."""
        self.path, self.result = path, result
        self._started = time.perf_counter()

    def has(self, arm: str, seed: int, settings: str) -> bool:
        """Whether this row was measured before."""
        row = self.result.of(arm).get(seed)
        return row is not None and row.settings == settings

    def add(self, row: Row) -> None:
        """Add a row and write the file. Rows of the same arm with other settings are dropped, because all rows of an
        arm must have the same settings."""
        *before, session = self.result.sessions
        other_rows = [
            one for one in self.result.rows
            if one.arm != row.arm or (one.settings == row.settings and one.seed != row.seed)
        ]  # fmt: skip
        self.result = replace(
            self.result,
            sessions=(*before, replace(session, seconds=round(time.perf_counter() - self._started, 1))),
            rows=(*other_rows, _rounded(replace(row, session=len(before)))),
        )
        write(self.path, self.result)


def _rounded(row: Row) -> Row:
    """A row whose measured numbers are rounded to six significant digits, to keep files short."""
    figures = {name: float(f"{value:.6g}") for name, value in row.figures.items()}
    return replace(row, seconds=float(f"{row.seconds:.6g}"), figures=figures)


@contextmanager
def recording(
    name: str,
    question: str,
    budgets: Mapping[str, float] | None = None,
    folder: Path = RESULTS,
) -> Iterator[Record]:
    """Open ``folder/NAME.json`` for writing, and keep the rows that it has.

    Raises:
        UserError: the file has another question or other budgets, or another program is writing it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, budgets = folder / f"{name}.json", dict(budgets or {})
    with (folder / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it when the program ends
        except BlockingIOError:
            raise UserError(f"another program is writing {path.name}: wait for it, or give another --name") from None
        yield _continued(path, name, question, budgets)


def _continued(path: Path, name: str, question: str, budgets: dict[str, float]) -> Record:
    """The existing rows, or none, with a session for this program."""
    found = read(path) or Result(name, question, budgets)
    if (found.question, dict(found.budgets)) != (question, budgets):
        raise UserError(f"{path.name} has another question or other budgets: delete it to measure anew")
    used = {row.session for row in found.rows}
    new_numbers = {old: new for new, old in enumerate(sorted(used))}  # sessions without rows are dropped
    return Record(
        path,
        replace(
            found,
            sessions=(*(found.sessions[old] for old in new_numbers), this_session()),
            rows=tuple(replace(row, session=new_numbers[row.session]) for row in found.rows),
        ),
    )


def write(path: Path, result: Result) -> None:
    """Write a result file atomically. Each row has a line of its own, so that diffs between files are short."""
    fields = asdict(result)
    rows = fields.pop("rows")
    head = orjson.dumps(fields, option=orjson.OPT_INDENT_2).decode().removesuffix("\n}")
    lines = ",\n    ".join(orjson.dumps(row).decode() for row in rows)
    write_atomic(path, f'{head},\n  "rows": [\n    {lines}\n  ]\n}}\n'.encode())


def outcome_row(
    arm: str, seed: int, settings: str, first_task: int, outcomes: Sequence[Outcome], **figures: float
) -> Row:
    """The row of an arm that played test tasks from ``first_task`` on."""
    return Row(
        arm,
        seed,
        settings,
        first_task=first_task,
        solved="".join("01"[outcome.success] for outcome in outcomes),
        pass_at_n=any(outcome.end_shows_success for outcome in outcomes),
        environment_steps=sum(outcome.budget.environment_steps for outcome in outcomes),
        generated_tokens=sum(outcome.budget.generated_tokens for outcome in outcomes),
        figures=figures,
    )


def this_session() -> Session:
    """The session that begins now, of the program that Python was started with. Absolute paths in the command are
    reduced to their last part."""
    arguments = [Path(part).name if part.startswith("/") else part for part in sys.argv[1:]]
    return Session(
        commit=_git("rev-parse", "--short=12", "HEAD") or "unknown",
        dirty=bool(_git("status", "--porcelain", "--", *MEASURED)),
        command=shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *arguments]),
        machine=this_machine(),
        versions={package: _version(package) for package in _PACKAGES},
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def this_machine() -> Machine:
    """CPU, cores and memory as Linux tells them, and the GPUs that the driver lists."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus: list[str] = []
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        process = subprocess.run(query, capture_output=True, text=True, check=False)
        gpus = process.stdout.splitlines() if process.returncode == 0 else []
    gpu = f"{len(gpus)} × {gpus[0]}" if gpus else ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(models[0] if models else platform.machine(), cores, round(memory, 1), gpu)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _git(*arguments: str) -> str:
    """Output of a git command; empty outside of a checkout or without git."""
    try:
        process = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return process.stdout.strip()
