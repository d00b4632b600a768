"""Problems in PDDL files: the user's own files, and those of the package pddlgym."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

from treeagent.envs.planning.options import Files, PlanningOptions
from treeagent.types import Split, UserError

_TENTHS: tuple[Split, ...] = (*("train",) * 8, "validation", "test")
_TRAINING: tuple[Split, ...] = (*("train",) * 9, "validation")


def read_text(path: Path) -> str:
    """Read a PDDL file.

    Raises:
        UserError: there is no such file, or it is not a text file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(f"the PDDL file {path} cannot be read ({error}): name a text file that exists") from error


def find_files(options: PlanningOptions) -> tuple[Path, Mapping[Split, Sequence[Path]]] | None:
    """Return the file of the domain and the files of the problems by split; ``None`` if problems are to be generated.

    Raises:
        UserError: the options name a domain without problems or the reverse, or the files do not exist.
    """
    if options.pddlgym is not None:
        return _of_pddlgym(options.pddlgym)
    if options.domain_file is None and options.problems is None:
        return None
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
        digest = blake2b(read_text(path).encode(), digest_size=8).digest()
        found[parts[int.from_bytes(digest) % len(parts)]].append(path)
    return found
