"""Planning problems in PDDL files: the user's own files, and those of the package pddlgym."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds.planning import PlanningEnv, PlanningOptions
from treeagent.contrib.worlds.planning.env import HIDDEN
from treeagent.contrib.worlds.planning.problem import ROOT, Domain, Literal, Problem, Schema, supertypes
from treeagent.types import Split, Task, UserError

Files = str | list[str]
"""A folder of problem files, a problem file, or a list of problem files."""
_CONNECTIVES = {"and", "or", "imply", "forall", "exists", "when", "oneof"}
_SECTIONS = {":requirements", ":predicates", ":types", ":constants", ":domain", ":objects", ":init", ":goal"}
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
        self._play(read_domain(_read_text(domain)))

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
        return read_problem(self._domain, "\n".join(lines))

    def _hidden_by_default(self) -> frozenset[str]:
        if self._pddl.pddlgym is None:
            return frozenset()
        # pddlgym has facts that say which actions may be called.
        calls = {name for each in self._domain.schemas for name in (each.name, each.name.replace("-", ""))}
        return HIDDEN | (calls - self._domain.fluents)


def read_domain(text: str) -> Domain:
    """Parse a PDDL domain: ``:strips``, ``:typing``, ``:negative-preconditions`` and ``:equality``."""
    with _reading():
        name, sections = _sections(text, "domain")
        actions, types = map(_schema, sections.get(":action", [])), supertypes(_typed(sections.get(":types", [])))
        return Domain(name, tuple(actions), types, _typed(sections.get(":constants", [])))


def read_problem(domain: Domain, text: str) -> Problem:
    with _reading():
        _, sections = _sections(text, "problem")
        init = _literals(["and", *sections.get(":init", [])])
        if not all(value for _, value in init):
            raise ValueError("a fact of :init is negative")
        [goal] = sections[":goal"]
        objects = _typed(sections.get(":objects", []))
        return Problem(domain, objects, frozenset(fact for fact, _ in init), _literals(goal))


@contextmanager
def _reading() -> Iterator[None]:
    """Context in which PDDL is read: what is no PDDL becomes a ``UserError``."""
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"the PDDL cannot be read ({error}): write STRIPS with types") from error


def _sections(text: str, kind: str) -> tuple[str, dict[str, Any]]:
    """The name of a domain or problem, and what stands in each of its sections; ``:action`` lists all actions."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text.lower())):
        if token == "(":
            stack.append([])
        else:
            part = stack.pop() if token == ")" else token
            stack[-1].append(part)
    [[[define, [head, name], *parts]]] = stack
    if (define, head) != ("define", kind):
        raise ValueError(f"it is no {kind}")
    sections: dict[str, Any] = {}
    for section, *content in parts:
        if section == ":action":
            sections.setdefault(section, []).append(content)
        elif section in _SECTIONS:
            sections[section] = content
        else:
            raise ValueError(f"{section} is not supported")
    return name, sections


def _schema(parts: Sequence[Any]) -> Schema:
    name, *rest = parts
    given = dict(zip(rest[::2], rest[1::2], strict=True))
    variables, when = _typed(given.get(":parameters", [])), _literals(given.get(":precondition", []))
    return Schema(name, variables, when, _literals(given[":effect"]))


def _typed(words: Sequence[Any]) -> dict[str, str]:
    """Read ``a b - block c`` as the type of each name, ``object`` if none is given."""
    found, pending, rest = dict[str, str](), list[str](), iter(words)
    for word in rest:
        if word != "-":
            pending.append(word)
            continue
        kind = next(rest)
        if not isinstance(kind, str):
            raise ValueError("(either ...) is not supported")
        found |= dict.fromkeys(pending, kind)
        pending = []
    return found | dict.fromkeys(pending, ROOT)


def _literals(formula: Sequence[Any], value: bool = True) -> tuple[Literal, ...]:
    """The facts of a conjunction, each with whether it must hold."""
    match formula:
        case []:
            return ()
        case ["and", *parts] if value:
            return tuple(literal for part in parts for literal in _literals(part))
        case ["not", part]:
            return _literals(part, not value)
        case [str(name), *objects] if name not in _CONNECTIVES and all(isinstance(each, str) for each in objects):
            return (((name, *objects), value),)
    raise ValueError(f"{formula!r:.80} is not supported")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(f"the PDDL file {path} cannot be read ({error}): name a text file that exists") from error


def _find_files(options: "PddlOptions") -> tuple[Path, Mapping[Split, Sequence[Path]]]:
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
