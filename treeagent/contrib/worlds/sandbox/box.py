"""The contract of a sandbox, and one whose state is a dictionary of files and whose runs can only compute."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from treeagent.contrib.worlds.sandbox.process import Sandbox

_INSIDE = Path(__file__).with_name("inside.py")
LARGEST = 2**18
"""Most characters of all files together."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command."""

    output: str
    code: int
    """0 if the command succeeded, as in a shell."""


class Box(Protocol):
    """A sandbox: a folder of text files in which a shell's commands run, whose state can be taken and brought back.

    ``SandboxEnv`` runs ``find . -type f``, ``cat FILE``, ``printf %s TEXT > FILE``, ``python -m pytest``, and what the
    agent asks for."""

    def start(self, files: Mapping[str, str]) -> None:
        """Begin with these files, by relative path, and nothing else."""
        ...

    def run(self, command: str) -> Ran:
        """Run a command to its end, within the box's limits. A command that is stopped fails; none raises."""
        ...

    def snapshot(self) -> object:
        """The state as a value that can be pickled, and that ``restore`` of any box of its kind accepts at any time."""
        ...

    def restore(self, snapshot: object) -> None:
        """Return to the state in which ``snapshot`` was taken."""
        ...

    def close(self) -> None:
        """Free what the box holds."""
        ...


class FileBox:
    """What boxes share whose state is a dictionary of files."""

    def __init__(self) -> None:
        self.files: Mapping[str, str] = {}

    def start(self, files: Mapping[str, str]) -> None:
        self.files = {inside(path): text for path, text in files.items()}

    def write(self, path: str, text: str) -> None:
        """Write a file. Raises ``ValueError`` for a path outside the box, and if the box is full."""
        files = {**self.files, inside(path): text}
        if sum(map(len, files.values())) > LARGEST:
            raise ValueError(f"the box is full: at most {LARGEST} characters")
        self.files = files

    def snapshot(self) -> object:
        return self.files

    def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, Mapping)
        self.files = snapshot

    def close(self) -> None:
        self.files = {}

    def plain(self, words: Sequence[str]) -> Ran | None:
        """Run a command that needs no process: those that ``SandboxEnv`` runs to read and write files."""
        match words:
            case ["find", ".", "-type", "f"]:
                return Ran("\n".join(sorted(self.files)), 0)
            case ["cat", path] if inside(path) in self.files:
                return Ran(self.files[inside(path)], 0)
            case ["printf", "%s", text, ">", path]:
                self.write(path, text)
                return Ran("", 0)
        return None


class PythonBox(FileBox):
    """A box for Python without processes: works on any Linux on x86-64 with seccomp, wants no rights and no containers.

    Of a shell it has ``ls``, ``find``, ``cat``, ``grep``, ``rm``, ``printf %s TEXT > FILE``, ``python FILE``, and
    ``python -m pytest``, which calls the functions ``test_*`` of the files ``test_*.py``. Code runs in the sandbox of
    ``process``: it sees no file of the host, ``open`` reads and writes the box's own files, and what it writes
    is kept if it ends in time."""

    def __init__(self, seconds: float = 10.0, megabytes: int = 256, modules: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._sandbox = Sandbox(seconds, megabytes, modules)

    def run(self, command: str) -> Ran:
        try:
            return self._run(shlex.split(command))
        except ValueError as error:
            return Ran(str(error), 2)
        except KeyError as error:
            return Ran(f"no file {error.args[0]}", 1)

    def values(self, calls: Sequence[tuple[str, str, Sequence[object]]]) -> list[Any]:
        """What functions of the files return for calls (module, function, arguments): ``["value", VALUE]`` each, or
        ``["error", WHY]``. The files stay as they are. Compare the values outside: a cheat inside cannot know them."""
        ran = self._sandbox.run(self._program(), [("value", *call) for call in calls])
        return ran.returned or [["error", ran.error or "it ended before it answered"]] * len(calls)

    def answers(self, requests: Sequence[Sequence[object]]) -> list[Any]:
        """What ``inside.f`` answers to requests about the files, or an empty list if the run was stopped."""
        return self._sandbox.run(self._program(), requests).returned or []

    def _run(self, words: list[str]) -> Ran:
        if (ran := self.plain(words)) is not None:
            return ran
        match words:
            case ["ls"]:
                return Ran("\n".join(sorted(self.files)), 0)
            case ["cat", path]:
                return Ran(self.files[inside(path)], 0)
            case ["rm", path]:
                gone = self._known(path)
                self.files = {each: text for each, text in self.files.items() if each != gone}
                return Ran("", 0)
            case ["grep", text, *paths]:
                searched = [self._known(path) for path in paths] or sorted(self.files)
                lines = [(path, *each) for path in searched for each in enumerate(self.files[path].splitlines(), 1)]
                found = [f"{path}:{number}: {line}" for path, number, line in lines if text in line]
                return Ran("\n".join(found), int(not found))
            case ["python", "-m", "pytest", *paths]:
                return self._inside("test", [self._known(path) for path in paths])
            case ["python", path]:
                return self._inside("run", [self._known(path)])
        raise ValueError(
            f"{' '.join(words[:3])} is not available: use ls, cat FILE, grep TEXT [FILE], rm FILE, python FILE"
        )

    def _known(self, path: str) -> str:
        """A path in its plain form; raises ``KeyError`` if there is no such file."""
        plain = inside(path)
        self.files[plain]
        return plain

    def _inside(self, what: str, paths: list[str]) -> Ran:
        ran = self._sandbox.run(self._program(), [(what, *paths)])
        match ran.returned:
            case [[int() as code, dict() as files]] if all(isinstance(each, str) for each in files.values()):
                try:
                    for path, text in files.items():
                        self.write(path, text)
                except ValueError as error:
                    return Ran(f"{ran.output}{error}", 1)
                return Ran(ran.output, code)
        return Ran(f"{ran.output}{ran.error or 'it ended before it was done'}", 1)

    def _program(self) -> str:
        return f"{_INSIDE.read_text(encoding='utf-8')}\nFILES.update({dict(self.files)!r})\n"


def inside(path: str) -> str:
    """A path in its plain form; raises ``ValueError`` if it leads out of the box."""
    plain = PurePosixPath(path)
    if plain.is_absolute() or ".." in plain.parts or not plain.parts:
        raise ValueError(f"{path!r} is no relative path in the box")
    return str(plain)
