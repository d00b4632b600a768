"""What runs in the sandbox before the agent's code: its files, an import from them, and a runner of tests.

``PythonBox`` sends this text. It has no files and no modules but those that ``child`` loads."""

import builtins
import importlib
import io
import itertools
import random
import sys
import traceback
from typing import Any

FILES: dict[str, str] = {}
BEFORE: dict[str, str] = {}


class Opened(io.StringIO):
    """A file of the box. Closing it keeps what was written."""

    def __init__(self, path: str, mode: str) -> None:
        if set(mode) - set("rwat+"):
            raise ValueError(f"mode {mode!r} is not available: only text files are")
        if "r" in mode and path not in FILES:
            raise FileNotFoundError(f"No such file in the box: {path!r}")
        super().__init__("" if "w" in mode else FILES.get(path, ""))
        self.path, self.writes = path, mode.strip("rt") != ""
        if "a" in mode:
            self.seek(0, io.SEEK_END)
        if self.writes:
            FILES[path] = self.getvalue()

    def close(self) -> None:
        if self.writes and not self.closed:
            FILES[self.path] = self.getvalue()
        super().close()


class Finder:
    """Imports modules from the files."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        stem = name.replace(".", "/")
        for file, package in ((f"{stem}.py", False), (f"{stem}/__init__.py", True)):
            if file in FILES:
                return type(sys.__spec__)(name, self, origin=file, is_package=package)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(compile(FILES[module.__spec__.origin], module.__spec__.origin, "exec"), module.__dict__)


def opened(path: object, mode: str = "r", *rest: object, **named: object) -> Opened:
    return Opened(str(path), mode)


def why(error: BaseException) -> str:
    """An exception with the line of the box's files that raised it."""
    lines = [each for each in traceback.extract_tb(error.__traceback__) if each.filename in FILES]
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if not lines:
        return said
    source = FILES[lines[-1].filename].splitlines()[(lines[-1].lineno or 1) - 1].strip()
    return f"{lines[-1].filename}, line {lines[-1].lineno}: {source}: {said}"


def tests(paths: tuple[str, ...]) -> int:
    failed = done = 0
    for path in paths or sorted(each for each in FILES if each.rpartition("/")[2].startswith("test_")):
        found: dict[str, Any] = {"__name__": path}
        try:
            exec(compile(FILES[path], path, "exec"), found)
            functions = [each for name, each in found.items() if name.startswith("test_")]
        except BaseException as error:
            print(f"FAIL {path}: {why(error)}")
            failed += 1
            continue
        for function in functions:
            done += 1
            try:
                function()
            except BaseException as error:
                failed += 1
                print(f"FAIL {function.__name__}: {why(error)}")
    print(f"{done - failed if failed < done else 0} passed, {failed} failed")
    return int(failed > 0 or done == 0)


def text(module: str, before: str, expression: str) -> str:
    """What an expression gives in a module after some statements, as ``repr`` writes it. Iterators are read, up to 20
    elements; an exception is ``raises TypeError``."""
    random.seed(0)
    try:
        found = dict(vars(importlib.import_module(module)))
        exec(before, found)
        value = eval(expression, found)
        return repr(list(itertools.islice(value, 20)) if hasattr(value, "__next__") else value)[:400]
    except BaseException as error:
        return f"raises {type(error).__name__}"


def f(what: str, *arguments: Any) -> Any:
    """Run a file, tests, or a function, as the box asks."""
    builtins.open = opened  # type: ignore[assignment]
    sys.meta_path.insert(0, Finder())
    BEFORE.update(FILES)
    if what == "text":
        return text(*arguments)
    if what == "value":
        try:
            module, name, given = arguments
            return "value", getattr(__import__(module, fromlist=[name]), name)(*given)
        except BaseException as error:
            return "error", why(error)
    code = 0
    if what == "test":
        code = tests(arguments)
    else:
        try:
            exec(compile(FILES[arguments[0]], arguments[0], "exec"), {"__name__": "__main__"})
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException as error:
            code = 1
            print(why(error))
    return code, {path: text for path, text in FILES.items() if BEFORE.get(path) != text}
