"""Planning problems in PDDL files: the user's own files, and those of the package pddlgym."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.envs.planning import PlanningEnv, PlanningOptions
from treeagent.envs.planning.env import HIDDEN
from treeagent.envs.planning.problem import Problem, literals_of, read_domain, reading, sections_of, typed
from treeagent.types import Split, Task, UserError

Files = str | list[str]
"""A folder of problem files, a problem file, or a list of problem files."""
_TENTHS: tuple[Split, ...] = (*("train",) * 8, "validation", "test")
_TRAINING: tuple[Split, ...] = (*("train",) * 9, "validation")


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PddlOptions(PlanningOptions):
    """Settings of ``PddlEnv``; ``domain`` and ``size`` have no effect."""

    domain_file: str | None = None
    """PDDL file of your own domain; set ``problems``, too."""
    problems: Files | dict[Split, Files] | None = None
    """PDDL files of your own problems, or their folder. A hash of the text assigns a tenth of them to validation and a
    tenth to test. To choose the splits, give a table: ``{train = "easy", test = "hard"}``."""
    pddlgym: str | None = None
    """A domain of the package pddlgym, such as "blocks_operator_actions". Its test problems are the test split; a hash
    assigns a tenth of the others to validation."""


class PddlEnv(PlanningEnv):
    """Planning problems in PDDL files, played as those of ``planning``."""

    options_type = PddlOptions

    def __init__(self, options: PddlOptions | None = None) -> None:
        self.options = self._pddl = options or PddlOptions()
        domain, self._files = _find_files(self._pddl)
        self._play(_read_text(domain))

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        files = self._files.get(split, ())
        if start + count > len(files):
            raise UserError(f"{split} has {len(files)} problem files, not {start + count}: ask for fewer tasks")
        return [self._task(split, number) for number in range(start, start + count)]

    def _task(self, split: Split, number: int) -> Task:
        path = self._files[split][number]
        lines = tuple(_read_text(path).splitlines())
        try:
            prompt = self._prompt(lines)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        named_alike = sum(other.stem == path.stem for other in self._files[split]) > 1
        name = f"{path.stem}-{number}" if named_alike else path.stem
        return Task(f"{self._domain.name}-{split}-{name}", prompt, split, number, {"problem": list(lines)})

    def _problem(self, lines: tuple[str, ...]) -> Problem:
        return read_problem(self._text, "\n".join(lines))

    def _hidden_by_default(self) -> frozenset[str]:
        if self._pddl.pddlgym is None:
            return frozenset()
        # pddlgym has facts that say which actions may be called.
        calls = {name for each in self._domain.schemas for name in (each.name, each.name.replace("-", ""))}
        return HIDDEN | (calls - self._domain.fluents)


def read_problem(domain: str, problem: str) -> Problem:
    """Parse a PDDL problem, given the texts of its domain and of the problem."""
    read = read_domain(domain)
    with reading():
        _, sections = sections_of(problem, "problem")
        init = literals_of(["and", *sections.get(":init", [])])
        if not all(value for _, value in init):
            raise ValueError("a fact of :init is negative")
        [goal] = sections[":goal"]
        objects = typed(sections.get(":objects", []))
        return Problem(read, objects, frozenset(fact for fact, _ in init), literals_of(goal))


def _read_text(path: Path) -> str:
    """Read a PDDL file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(f"the PDDL file {path} cannot be read ({error}): name a text file that exists") from error


def _find_files(options: "PddlOptions") -> tuple[Path, Mapping[Split, Sequence[Path]]]:
    """Return the file of the domain and the files of the problems by split."""
    if options.pddlgym is not None:
        return _of_pddlgym(options.pddlgym)
    if options.domain_file is None or options.problems is None:
        raise UserError(
            f"domain_file={options.domain_file!r} and problems={options.problems!r}: set both for problems in files"
        )
    domain = Path(options.domain_file).expanduser()
    if not isinstance(options.problems, dict):
        return domain, _by_hash(_problem_files(options.problems, domain), _TENTHS)
    return domain, {split: _problem_files(files, domain) for split, files in options.problems.items()}


def _of_pddlgym(name: str) -> tuple[Path, Mapping[Split, Sequence[Path]]]:
    try:
        folder = Path(str(metadata.distribution("pddlgym").locate_file("pddlgym/pddl")))
    except metadata.PackageNotFoundError as error:
        # Only its files are used, so its requirements, such as gym, are not needed.
        raise UserError("pddlgym is missing: pip install --no-deps pddlgym==0.0.7") from error
    if not (folder / name).is_dir() or not (folder / f"{name}.pddl").is_file():
        names = sorted(path.stem for path in folder.glob("*.pddl") if path.with_suffix("").is_dir())
        raise UserError(f"pddlgym has no domain {name!r}: use one of {', '.join(names)}")
    found = _by_hash(sorted((folder / name).glob("*.pddl")), _TRAINING)
    return folder / f"{name}.pddl", {**found, "test": sorted((folder / f"{name}_test").glob("*.pddl"))}


def _problem_files(files: Files, domain: Path) -> Sequence[Path]:
    paths = [Path(each).expanduser() for each in ([files] if isinstance(files, str) else files)]
    if len(paths) == 1 and paths[0].is_dir():
        paths = [path for path in sorted(paths[0].glob("*.pddl")) if path.resolve() != domain.resolve()]
    if not paths:
        raise UserError(f"{files!r} has no file *.pddl: name a folder of problems, or problem files")
    return paths


def _by_hash(paths: Sequence[Path], parts: Sequence[Split]) -> Mapping[Split, Sequence[Path]]:
    found: dict[Split, list[Path]] = {"train": [], "validation": [], "test": []}
    for path in paths:
        digest = blake2b(_read_text(path).encode(), digest_size=8).digest()
        found[parts[int.from_bytes(digest) % len(parts)]].append(path)
    return found
