"""Tasks from installed packages: a fault, an issue that shows its effect, and hidden calls with the right values."""

import ast
import doctest
import io
import os
import random
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import accumulate, islice, product
from typing import NamedTuple, TypeAlias

import pydantic.dataclasses
from pydantic_core import to_jsonable_python

from treeagent.contrib.worlds.sandbox import PythonBox
from treeagent.contrib.worlds.tasksets import split_of
from treeagent.types import SPLITS, Split, Task, UserError

_Function: TypeAlias = ast.FunctionDef | ast.ClassDef
_PAIRS = (
    "< <=; > >=; == !=; + -; // %; and or; True False; min max; any all; lower upper; find rfind; lstrip rstrip; "
    "startswith endswith; append appendleft; pop popleft; bisect_left bisect_right; takewhile dropwhile; "
    "partition rpartition; left right; start stop"
)
_SWAPS = {"not": "", **{one: other for pair in _PAIRS.split("; ") for one, other in (pair.split(), pair.split()[::-1])}}
"""What a mistaken programmer writes in place of an operator or a name."""
_CALLS, _EACH, _TURNS = 60, 3, 8
"""Most calls from a docstring's examples, most tasks of a function, and most tries of a docstring."""
_SHOWN, _LEAST, _NOTICED, _QUIET = 2, 5, 8, 6
"""Wrong calls that an issue shows; the fewest that a fault must cause; the most hidden calls that notice the fault, and
that do not."""
_UNUSABLE = (" at 0x", "raises NameError", "raises SyntaxError")
"""Values that hold an address, or come from a call that was no call of the package."""


class Package(NamedTuple):
    """The Python files of an installed distribution, and what they import of the standard library."""

    name: str
    version: str
    files: Mapping[str, str]
    modules: tuple[str, ...]


class Call(NamedTuple):
    """What a user does in a module: statements, then an expression whose value counts."""

    module: str
    before: str
    expression: str

    @property
    def script(self) -> str:
        """A program that prints the value."""
        return "\n".join(filter(None, (f"from {self.module} import *", self.before, f"print(repr({self.expression}))")))


@dataclass(frozen=True, slots=True)
class Fault:
    """A word of a function in a file, in a line (from 1) and at an offset, and what stands in its place."""

    path: str
    function: str
    line: int
    at: int
    right: str
    wrong: str

    @property
    def place(self) -> str:
        """The function, by file and name."""
        return f"{self.path}:{self.function}"

    def applied(self, files: Mapping[str, str]) -> dict[str, str]:
        """The files with the fault."""
        text = files[self.path]
        return {**files, self.path: text[: self.at] + self.wrong + text[self.at + len(self.right) :]}


@pydantic.dataclasses.dataclass(frozen=True)
class Repair:
    """The answer key: a package, its fault, a call that shows it, and hidden calls with the right values."""

    package: str
    version: str
    fault: Fault
    example: Call
    checks: tuple[tuple[Call, str], ...]


@lru_cache
def package(name: str) -> Package:
    """Read an installed distribution."""
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise UserError(f"{name} is not installed: pip install 'treeagent[swe]', or name other packages") from error
    paths = [path for path in found.files or () if path.suffix == ".py" and ".." not in path.parts]
    files = {str(path): path.read_text(encoding="utf-8") for path in paths}
    nodes = [node for text in files.values() for node in ast.parse(text).body]
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    standard = sorted(each for each in names if each.partition(".")[0] in sys.stdlib_module_names)
    return Package(name, found.version, files, tuple(standard))


@lru_cache
def functions(text: str) -> Mapping[str, _Function]:
    """The functions and classes of a file, by line and name, outer ones first."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, _Function)]
    return {f"{node.lineno} {node.name}": node for node in nodes}


@lru_cache
def faults(name: str) -> Sequence[Fault]:
    """All faults of one word in the functions of a package."""
    return [fault for path, text in sorted(package(name).files.items()) for fault in _faults(path, text)]


def _faults(path: str, text: str) -> Iterator[Fault]:
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    bodies = [node for node in functions(text).values() if isinstance(node, ast.FunctionDef)]
    places = {row: node.name for node in bodies for row in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (row, column), right = token.start, token.string
        wrong = [str(int(right) + 1), str(max(int(right) - 1, 0))] if right.isdigit() else [_SWAPS.get(right, right)]
        for each in wrong:
            if row in places and each != right:
                yield Fault(path, places[row], row, starts[row - 1] + column, right, each)


def calls(source: Package, path: str, owner: str) -> list[Call]:
    """Calls like the examples in a docstring, with other numbers, texts and lists. The examples themselves are left
    out, because the docstring tells their values, and what waits, because its value depends on the machine."""
    module, rng = path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), random.Random(owner)
    examples, found, shown = _examples(functions(source.files[path])[owner]), dict[str, Call](), set[str]()
    numbers = [number for number, example in enumerate(examples) if isinstance(example, ast.Expr)]
    for number in (numbers * _CALLS)[: 2 * _CALLS]:
        plain = [ast.unparse(each) for each in [*_needed(examples[:number], examples[number]), examples[number]]]
        varied = [ast.unparse(ast.fix_missing_locations(_Varied(rng).visit(ast.parse(each)))) for each in plain]
        shown.add("\n".join(plain))
        found["\n".join(varied)] = Call(module, "\n".join(varied[:-1]), varied[-1])
    return [call for text, call in found.items() if text not in shown and "sleep" not in text][:_CALLS]


def _examples(owner: _Function) -> list[ast.stmt]:
    """The statements of the examples in a docstring."""
    try:
        shown = doctest.DocTestParser().get_examples(ast.get_docstring(owner) or "")
        return [statement for each in shown for statement in ast.parse(each.source).body]
    except (SyntaxError, ValueError):  # no example that Python could run
        return []


def _needed(earlier: Sequence[ast.stmt], last: ast.stmt) -> list[ast.stmt]:
    """The earlier statements that set a name which the last or a needed one uses, or that use what one of them sets."""
    known, kept = set[str]().union(*(_names(each, ast.Store) for each in earlier)), list[ast.stmt]()
    wanted = _names(last, ast.Load) & known
    for node in reversed(earlier):
        stored, used = _names(node, ast.Store), _names(node, ast.Load) & known
        if (stored or used) & wanted:
            wanted = wanted - stored | used
            kept.insert(0, node)
    return kept


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The names that a statement sets (``ast.Store``) or uses (``ast.Load``)."""
    nodes = list(ast.walk(node))
    found = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, context)}
    if context is ast.Store:
        found |= {each.asname or each.name for each in nodes if isinstance(each, ast.alias)}
        found |= {each.name for each in nodes if isinstance(each, _Function)}
    return found


class _Varied(ast.NodeTransformer):
    """Changes some of the numbers, texts and lists."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self._rng.random() < 0.5:
            if type(node.value) is int:
                return ast.Constant(abs(node.value + self._rng.choice((-2, -1, 1, 2, 3))))
            if isinstance(text := node.value, str) and text:
                at = self._rng.randrange(len(text))
                letter = str(self._rng.randrange(10)) if text[at].isdigit() else self._rng.choice(text)
                return ast.Constant(text[:at] + self._rng.choice((letter, "")) + text[at + 1 :])
        return node

    def visit_List(self, node: ast.List) -> ast.AST:
        self.generic_visit(node)
        if len(node.elts) > 1 and self._rng.random() < 0.4:
            at = self._rng.randrange(len(node.elts))
            node.elts[at : at + 1] = [node.elts[at]] * self._rng.choice((0, 2, 3))
        return node


def opened(source: Package, files: Mapping[str, str]) -> PythonBox:
    """A sandbox with these files of a package."""
    box = PythonBox(30.0, modules=source.modules)
    box.start(files)
    return box


def texts(source: Package, files: Mapping[str, str], made: Sequence[Call]) -> list[str]:
    """The values of calls in these files; an empty list if the run was stopped."""
    return opened(source, files).answers([("text", *call) for call in made])


def holds(source: Package, files: Mapping[str, str], checks: Sequence[tuple[Call, str]]) -> bool:
    """Whether calls give the right values in these files. The right values do not enter the sandbox."""
    return texts(source, files, [call for call, _ in checks]) == [value for _, value in checks]


@lru_cache(maxsize=4096)
def _known(name: str, path: str, owner: str) -> tuple[Mapping[Call, str], Sequence[Fault]]:
    """The right values of the calls that checks can use, and the faults of the owner itself."""
    source, node = package(name), functions(package(name).files[path])[owner]
    found = zip(made := calls(source, path, owner), texts(source, source.files, made), strict=False)
    right = {call: value for call, value in found if not any(each in value for each in _UNUSABLE)}
    own = [each for each in faults(name) if each.path == path and node.lineno <= each.line <= (node.end_lineno or 0)]
    random.Random(owner).shuffle(own)
    return right, own


def proven(source: Package, path: str, owner: str, split: Split, turn: int) -> tuple[Task, Fault] | None:
    """The task of an owner's fault number ``turn`` in a split; None if too few calls notice it, or it ends the run."""
    right, known = _known(source.name, path, owner)
    fault = next(islice((each for each in known if split_of(each.place) == split), turn, None), None)
    if fault is None or not right:
        return None
    found = dict(zip(right, texts(source, fault.applied(source.files), list(right)), strict=False))
    noticed = sorted((call for call in found if found[call] != right[call]), key=lambda call: "raises" in found[call])
    if len(noticed) < _LEAST or "raises" in found[noticed[_SHOWN - 1]]:
        return None
    quiet = [call for call in right if found[call] == right[call] and not right[call].startswith("raises")]
    checks = [(call, right[call]) for call in (*noticed[_SHOWN:][:_NOTICED], *quiet[:_QUIET])]
    if not holds(source, source.files, checks):
        return None
    issue = [
        f"{source.name} {source.version} gives wrong results. Find the fault in its source and repair it: hidden tests "
        f"make other calls.\n>>> from {noticed[0].module} import *"
    ]
    for call in noticed[:_SHOWN]:
        lines = (f">>> {line}" for line in [*call.before.splitlines(), call.expression])
        issue += [*lines, found[call], f"but right is: {right[call]}"]
    key = Repair(source.name, source.version, fault, noticed[0], tuple(checks))
    return Task("", "\n".join(issue), split, 0, to_jsonable_python(key)), fault


class Drawn:
    """The tasks of some packages, made when they are asked for. All faults of a function are in one split."""

    def __init__(self, packages: Sequence[str]) -> None:
        files = [(source, *each) for source in map(package, packages) for each in sorted(source.files.items())]
        nodes = [(source, path, *each) for source, path, text in files for each in functions(text).items()]
        owners = [(source, path, owner) for source, path, owner, node in nodes if _examples(node)]
        random.Random(0).shuffle(owners)
        self._rest = {split: product(range(_TURNS), owners) for split in SPLITS}
        self._found: dict[Split, list[Task]] = {split: [] for split in SPLITS}
        self._made, self._each = set[Fault](), Counter[str]()

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """The first tasks of a split; raises ``ValueError`` if it has fewer."""
        found, workers = self._found[split], os.cpu_count() or 1

        def made_of(drawn: tuple[int, tuple[Package, str, str]]) -> tuple[Task, Fault] | None:
            turn, (source, path, owner) = drawn
            return proven(source, path, owner, split, turn)

        with ThreadPoolExecutor(workers) as pool:
            while len(found) < count:
                if not (drawn := list(islice(self._rest[split], 2 * workers))):
                    raise ValueError(f"{split} has {len(found)} tasks, not {count}: name more packages")
                for made in pool.map(made_of, drawn):
                    if made is not None and made[1] not in self._made and self._each[made[1].place] < _EACH:
                        self._made.add(made[1])
                        self._each[made[1].place] += 1
                        found.append(replace(made[0], id=f"swe-{split}-{len(found)}", seed=len(found)))
        return found[:count]
